"""`StoreReader`: what a store can do that is open to read. Nothing of it takes the lock of those who append."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa

from store.archive.of_store import StoreArchive
from store.archive.tiered import TieredLog
from store.files.config import StoreConfig
from store.files.consumer_offsets import ConsumerOffsets
from store.files.opened import Opened, PinnedPath
from store.files.topics import Topics
from store.format.columns import DEFAULT_COLUMNS, check_columns
from store.key_index.index import Index
from store.log.commit_log import CommitLog
from store.log.consume_queues import ConsumeQueues
from store.model.errors import CorruptRecord, CorruptSegment, FilterError, OffsetLost, OffsetNotYet, UnknownTopic
from store.model.integers import integer, one_of, seconds
from store.model.log_protocol import (
    BATCH_BYTES,
    BATCH_ROWS,
    Boundary,
    Bounds,
    Fingerprint,
    Int64s,
    MessageFilter,
    Queue,
    QueueRange,
    ReadSpec,
    Unreadable,
)
from store.publish.locks import among_groups
from store.publish.log_end import LogEnd
from store.publish.published_end import PublishedEnd
from store.publish.watch import Watch, Watches
from store.read.arrivals import Arrival, arrivals
from store.read.filters import EVERYTHING, filter_of
from store.read.fingerprint import can_have, fingerprint
from store.read.getting import GetRequest, GetResult, GetStatus, get_message
from store.read.published import PublishedQueues


class StoreReader(Opened):
    """The verbs of a `MessageStore` that read, and those of consumer groups. Its rooms are made, and closed, there."""

    path: Path
    config: StoreConfig
    _place: PinnedPath
    _topics: Topics
    _groups: ConsumerOffsets
    _log: CommitLog
    _index: Index
    _queues: ConsumeQueues
    _published: PublishedQueues
    _published_end: PublishedEnd | LogEnd
    _watches: Watches

    def topics(self) -> dict[str, int]:
        """Topic name to number of queues, as it stands now."""
        self.must_be_open()
        return self._topics.queue_counts()

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def confirm_offset(self) -> int:
        """Commit log offset (bytes) up to which messages are visible; it never steps back."""
        self.must_be_open()
        return self._published_end.confirm_offset

    @property
    def dispatched_offset(self) -> int:
        """Commit log offset (bytes) up to which the queues go; below `confirm_offset` where a broker is behind."""
        self.must_be_open()
        return self._published.dispatched_offset()

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the oldest message still there. Raises `UnknownTopic`, `UnknownQueue`, `CorruptSegment`."""
        self.must_be_open()
        return self.offsets(topic, queue_id)[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset after the newest message. Raises `UnknownTopic`, `UnknownQueue`, `CorruptSegment`."""
        self.must_be_open()
        return self._published.max_offset(topic, queue_id)

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """`min_offset` and `max_offset` at one moment."""
        self.must_be_open()
        return self._published.offsets(topic, queue_id)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """`offsets` of those of many queues that are there, in their order."""
        self.must_be_open()
        return self._published.bounds(queues)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Queue offset of the first message stored at `timestamp` (ms) or after; by UPPER of the last up to then.

        Raises `UnknownTopic`, also when the topic is deleted meanwhile, `UnknownQueue`, and `OffsetLost` where a file
        is missing.
        """
        self.must_be_open()
        timestamp = integer("timestamp", timestamp)
        one_of("boundary", boundary, tuple(Boundary))
        return self._published.offset_by_time(topic, queue_id, timestamp, boundary)

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        message_filter: MessageFilter | None = None,
        *,
        as_records: bool = False,
    ) -> GetResult:
        """RocketMQ's `getMessage`: a few messages, a status, the offset to go on from.

        `group` is RocketMQ's first argument, and changes nothing here. An unknown topic or queue answers
        NO_MESSAGE_IN_QUEUE as in RocketMQ. Raises `CorruptRecord`, `CorruptSegment`, `OffsetLost` where a file is gone
        that retention did not take, and `UnreadableBody` for a first message whose body does not decompress, or becomes
        larger than `maxDecompressedMessageSize`; the next one is at `offset + 1`.
        as_records: give the records as they stand in the log, mapped and not decoded, instead of messages; tags are
        compared by their hashes only then, and what has the right hash is for the caller to look at.
        What is older than the store comes from its archive, if it has one, but not as records; raises `ArchiveError`
        and `ObjectsUnavailable`, too, then.
        """
        self.must_be_open()
        offset, max_messages = integer("offset", offset), integer("max_messages", max_messages)
        if message_filter is not None and not hasattr(message_filter, "match_codes"):
            raise FilterError(f"message_filter={message_filter!r}: give message_filter('paid || shipped')")
        try:
            queue, own = self._published.bounded(topic, queue_id)
        except UnknownTopic:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        request = GetRequest(offset, max_messages, message_filter or EVERYTHING, as_records)
        try:
            if offset < own.min_offset and not as_records and (log := self._tiered()):
                return log.get_message(Queue(topic, queue_id), own, request)
            return get_message(self._log, queue, own, request, self.config)
        except (CorruptRecord, CorruptSegment, OffsetLost, OffsetNotYet, UnknownTopic):
            with suppress(UnknownTopic):
                now = self.offsets(topic, queue_id)
                if now[0] <= own.min_offset and now[1] >= own.max_offset:
                    raise
        # Retention took some of it meanwhile, or the topic was deleted.
        return self.get_message(group, topic, queue_id, offset, max_messages, message_filter, as_records=as_records)

    def sizes(self, topic: str, queue_id: int, start: int, end: int) -> Int64s:
        """Record sizes (bytes) of messages [start, end), int64, shape (end - start,); raises as `scan`."""
        self.must_be_open()
        start, end = integer("start", start), integer("end", end)
        queue = self._published.holding(QueueRange(Queue(topic, queue_id), start, end))
        return queue.entries(start, end)["size"].astype(np.int64)

    def tags_codes(self, topic: str, queue_id: int, start: int, end: int) -> Int64s:
        """Tags codes of messages [start, end) as their queue has them, int64, shape (end - start,).

        The range must be published. Raises `OffsetLost` where retention took the queue's files.
        """
        self.must_be_open()
        start, end = integer("start", start, 0), integer("end", end, 0)
        return self._published.of(topic, queue_id).entries(start, end)["tags_code"].astype(np.int64)

    def scan(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        tags: str | MessageFilter | None = None,
        *,
        check_crc: bool = True,
        max_rows: int = BATCH_ROWS,
        max_bytes: int = BATCH_BYTES,
        max_body_bytes: int | None = None,
        unreadable: Unreadable = "error",
    ) -> Iterator[pa.RecordBatch]:
        """Messages [start, end) of one queue as record batches, in order, with exactly `columns` (see COLUMNS).

        tags: an expression such as "paid || shipped", or any filter, see `store.message_filter`. check_crc: compare
        bodies with their checksums; without it a record's header is checked still, but what stands behind its body only
        where a column or a filter needs it.
        A batch has at most `max_rows` rows and `max_bytes` bytes of records, and of bodies as they become where
        producers compressed them (one row at least). max_body_bytes: how large one body may become, by default
        `maxDecompressedMessageSize`. unreadable: what to do with a larger one, and one that does not decompress:
        "error" raises after the messages before it; "null" makes it null, "raw" gives it as it is stored, and column
        `bodyError` has the reason.

        Raises at once `OffsetLost` (start < min), `OffsetNotYet` (end > max), `UnknownTopic`, `InvalidColumns`,
        `FilterError`, `InvalidArgument` (no limit below 1); while iterating `CorruptRecord`, `UnreadableBody`,
        `OffsetLost` when retention overtakes the reader, or the topic is deleted.
        """
        self.must_be_open()
        check_columns(columns)
        one_of("unreadable", unreadable, get_args(Unreadable))
        spec = ReadSpec(
            tuple(columns),
            filter_of(tags),
            check_crc=check_crc,
            max_rows=integer("max_rows", max_rows, 1),
            max_bytes=integer("max_bytes", max_bytes, 1),
            max_body_bytes=None if max_body_bytes is None else integer("max_body_bytes", max_body_bytes, 1),
            unreadable=unreadable,
        )
        return self.read(QueueRange(Queue(topic, queue_id), integer("start", start), integer("end", end)), spec)

    def read(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """`scan` of a range, as `spec` says; its filter may be any. Raises as `scan`.

        What is older than the store comes from its archive, if it has one. Raises `ArchiveError` and
        `ObjectsUnavailable`, too, then.
        """
        self.must_be_open()
        try:
            return self.read_own(wanted, spec)
        except OffsetLost:
            if (log := self._tiered()) is None:
                raise
            return log.scan(wanted, spec)

    def tiered(self, archive: StoreArchive, *, keeps_blocks: bool = False) -> TieredLog:
        """Return this store and an archive of it as one log. keeps_blocks: as `TieredLog` takes it."""
        self.must_be_open()
        return TieredLog(self._published, self.config, archive, keeps_blocks=keeps_blocks)

    def _tiered(self) -> TieredLog | None:
        """Return `tiered` with the archive that the settings remember, None without one."""
        archive = StoreArchive.remembered(self.path, self.config)
        return self.tiered(archive) if archive.url else None

    def read_own(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """`read` of what the store has itself."""
        self.must_be_open()
        return self._published.scan(wanted, spec, self.config.maxDecompressedMessageSize)

    def fingerprint(self, topic: str, queue_id: int, offset: int) -> Fingerprint | None:
        """Which message stands at `offset`, below the queue's end; None where it is deleted.

        Raises `UnknownTopic`, `UnknownQueue`.
        """
        self.must_be_open()
        return self._published.fingerprint(topic, queue_id, integer("offset", offset, 0))

    def fingerprints(self, offsets: Mapping[Queue, int]) -> dict[Queue, Fingerprint]:
        """`fingerprint` in each of many queues; without queues that are not there, and messages that are deleted."""
        self.must_be_open()
        found = {}
        for queue, it in self._published.there(offsets):
            with suppress(OffsetLost):
                found[queue] = fingerprint(self._log, it, offsets[queue])
        return found

    def can_have(self, topic: str, queue_id: int, offset: int, was: Fingerprint) -> bool:
        """Whether the message at `offset` is the one that had the fingerprint `was`; or, if deleted, can have been.

        If not, the store was put back from a backup, or a RocketMQ broker restarted the queue. Raises as `fingerprint`.
        """
        self.must_be_open()
        queue, offset = self._published.of(topic, queue_id), integer("offset", offset, 0)
        return offset < queue.begin or can_have(self._log, queue, offset, was)

    # --- waiting ---------------------------------------------------------------------------------------

    def wait(self, seen: int, timeout: float) -> int:
        """Sleep until the confirm offset is no longer `seen`, at most `timeout` seconds; returns it.

        `close` in another thread ends it, with `StoreClosed`.
        """
        self.must_be_open()
        seen, deadline = integer("seen", seen), time.monotonic() + seconds("timeout", timeout)
        with self._watches.one() as watch:
            while (confirm := self.confirm_offset) == seen and (left := deadline - time.monotonic()) > 0:
                watch.wait(left)
        return confirm

    def arrivals(self, begin: int, end: int) -> list[Arrival]:
        """The messages between two confirm offsets, seen one after the other; not far apart.

        Raises `OffsetLost` when retention took them, `CorruptRecord`.
        """
        self.must_be_open()
        return arrivals(self._log, integer("begin", begin, 0), integer("end", end, 0))

    def watch(self) -> Watch:
        """What wakes one more waiting thread at each publication; polls if a RocketMQ broker owns the directory."""
        self.must_be_open()
        return self._watches.new()

    # --- consumer groups -------------------------------------------------------------------------------

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The queue offset that a consumer group has to read next, None when it never committed one."""
        self.must_be_open()
        return self._groups.offsets(group, topic).get(integer("queue_id", queue_id))

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the next offsets (queue id to queue offset) of a consumer group, on the device when this returns.

        Also with `read_only`, for whoever reads has something to commit; appends are not kept waiting. Raises
        `InvalidGroup`, `UnknownTopic`, `UnknownQueue`, `OffsetOutOfRange` (below 0), `StoreBusy`, and `StoreLocked`
        while a broker runs.
        """
        self.must_be_open()
        groups, place, topics = self._groups, self._place, self._topics
        for queue_id in offsets:
            topics.check_queue(topic, queue_id)
        with among_groups(self.path, self.config.lockTimeoutMillis / 1000):
            place.check()
            groups.commit_positions(group, {Queue(topic, queue_id): at for queue_id, at in offsets.items()})
