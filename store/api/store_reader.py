"""The reading methods of a store. None of them acquires the append lock."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa

from store.append.locks import among_groups
from store.append.log_end import LogEnd
from store.append.published_end import PublishedEnd
from store.append.watch import Watch, Watches
from store.archive.of_store import StoreArchive
from store.archive.tiered import TieredLog
from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.consume_queues import ConsumeQueues
from store.disk.consumer_offsets import ConsumerOffsets
from store.disk.index import Index
from store.disk.opened import Opened, PinnedPath
from store.disk.topics import Topics
from store.format.columns import DEFAULT_COLUMNS, check_columns
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
from store.read.arrivals import Arrival, arrivals
from store.read.filters import EVERYTHING, filter_of
from store.read.fingerprint import can_have, fingerprint
from store.read.getting import GetRequest, GetResult, GetStatus, get_message
from store.read.published import PublishedQueues


class StoreReader(Opened):
    """The reading methods of a store. A subclass sets the attributes below, and closes them."""

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
        """Return the current topics, name to number of queues."""
        self.must_be_open()
        return self._topics.queue_counts()

    @property
    def confirm_offset(self) -> int:
        """Commit log offset (bytes) up to which messages are visible. It never decreases."""
        self.must_be_open()
        return self._published_end.confirm_offset

    @property
    def dispatched_offset(self) -> int:
        """Commit log offset (bytes) up to which queues have entries. A broker's may lag behind `confirm_offset`."""
        self.must_be_open()
        return self._published.dispatched_offset()

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message in the store, or `max_offset` of an empty queue.

        Ignores the archive, which may have older messages. Raises `UnknownTopic`, `UnknownQueue`, `CorruptSegment`.
        """
        self.must_be_open()
        return self.offsets(topic, queue_id)[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the newest message. Raises as `min_offset`."""
        self.must_be_open()
        return self._published.max_offset(topic, queue_id)

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return `min_offset` and `max_offset` at one moment. Raises as these two."""
        self.must_be_open()
        return self._published.offsets(topic, queue_id)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Return the `offsets` of the queues that exist, in the given order."""
        self.must_be_open()
        return self._published.bounds(queues)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Return the queue offset of the first message stored at or after `timestamp` (ms); with Boundary.UPPER, of the
        last stored at or before it.

        Raises `UnknownTopic`, `UnknownQueue`, `OffsetLost`.
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
        """Return a few messages, a status, and the offset to read next, as RocketMQ's `getMessage`.

        group: ignored; it is RocketMQ's first argument.
        as_records: return mapped records instead of decoded messages, without the archive. Only hashes of tags are
        compared, so the caller must check for collisions.

        An unknown topic or queue gives NO_MESSAGE_IN_QUEUE, as in RocketMQ. Older messages are read from the archive,
        if there is one.

        Raises `CorruptRecord`, `CorruptSegment`, and `OffsetLost` if a file is lost. Raises `UnreadableBody` if the
        first message's body does not decompress or exceeds `maxDecompressedMessageSize`; read on at `offset + 1`. With
        an archive, raises `ArchiveError` and `ObjectsUnavailable` as well.
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
        # Retention or a topic deletion deleted messages concurrently.
        return self.get_message(group, topic, queue_id, offset, max_messages, message_filter, as_records=as_records)

    def sizes(self, topic: str, queue_id: int, start: int, end: int) -> Int64s:
        """Return record sizes (bytes) of messages [start, end), shape (end - start,). Raises as `scan`."""
        self.must_be_open()
        start, end = integer("start", start), integer("end", end)
        queue = self._published.queue_containing(QueueRange(Queue(topic, queue_id), start, end))
        return queue.entries(start, end)["size"].astype(np.int64)

    def tags_codes(self, topic: str, queue_id: int, start: int, end: int) -> Int64s:
        """Return tags codes of published messages [start, end), shape (end - start,). Raises `OffsetLost`."""
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
        """Return messages [start, end) of one queue as record batches, in order, with exactly `columns` (see COLUMNS).

        tags: an expression such as "paid || shipped", or any filter, see `store.message_filter`.
        check_crc: compare bodies with their checksums. Without it, record headers are still checked, but the part
        behind a body only if a column or a filter needs it.
        max_rows, max_bytes: limits of a batch, which has at least one row. `max_bytes` limits the records, and also
        their decompressed bodies.
        max_body_bytes: limit of one decompressed body; default: `maxDecompressedMessageSize`.
        unreadable: for a body over that limit, or one that does not decompress. "error" raises after the messages
        before it. "null" reads it as null, "raw" as it is stored; column `bodyError` has the reason.

        Raises at once `OffsetLost` (start < min), `OffsetNotYet` (end > max), `UnknownTopic`, `InvalidColumns`,
        `FilterError`, `InvalidArgument`. While iterating, raises `CorruptRecord`, `UnreadableBody`, and `OffsetLost` if
        retention overtakes the reader or the topic is deleted.
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
        """Return messages as `scan`; those that the store has deleted are read from its archive, if it has one.

        With an archive, also raises `ArchiveError` and `ObjectsUnavailable`.
        """
        self.must_be_open()
        try:
            return self.read_own(wanted, spec)
        except OffsetLost:
            if (log := self._tiered()) is None:
                raise
            return log.scan(wanted, spec)

    def tiered(self, archive: StoreArchive, *, keeps_blocks: bool = False) -> TieredLog:
        self.must_be_open()
        return TieredLog(self._published, self.config, archive, keeps_blocks=keeps_blocks)

    def _tiered(self) -> TieredLog | None:
        archive = StoreArchive.remembered(self.path, self.config)
        return self.tiered(archive) if archive.url else None

    def read_own(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Return messages as `scan`, without the archive."""
        self.must_be_open()
        return self._published.scan(wanted, spec, self.config.maxDecompressedMessageSize)

    def fingerprint(self, topic: str, queue_id: int, offset: int) -> Fingerprint | None:
        """Identify the message at `offset`, which must be below the queue's end; None if it is deleted.

        Raises `UnknownTopic`, `UnknownQueue`.
        """
        self.must_be_open()
        return self._published.fingerprint(topic, queue_id, integer("offset", offset, 0))

    def fingerprints(self, offsets: Mapping[Queue, int]) -> dict[Queue, Fingerprint]:
        """Identify the message at each offset. Leaves out missing queues and deleted messages."""
        self.must_be_open()
        found = {}
        for queue, it in self._published.there(offsets):
            with suppress(OffsetLost):
                found[queue] = fingerprint(self._log, it, offsets[queue])
        return found

    def can_have(self, topic: str, queue_id: int, offset: int, was: Fingerprint) -> bool:
        """Return whether the message at `offset` has fingerprint `was`, or if it is deleted, may have had it.

        If not, the store was restored from a backup, or a RocketMQ broker restarted the queue. Raises as `fingerprint`.
        """
        self.must_be_open()
        queue, offset = self._published.of(topic, queue_id), integer("offset", offset, 0)
        return offset < queue.begin or can_have(self._log, queue, offset, was)

    def wait(self, seen: int, timeout: float) -> int:
        """Wait up to `timeout` seconds until the confirm offset differs from `seen`, and return it.

        Raises `StoreClosed` if another thread closes the store.
        """
        self.must_be_open()
        seen, deadline = integer("seen", seen), time.monotonic() + seconds("timeout", timeout)
        with self._watches.one() as watch:
            while (confirm := self.confirm_offset) == seen and (left := deadline - time.monotonic()) > 0:
                watch.wait(left)
        return confirm

    def arrivals(self, begin: int, end: int) -> list[Arrival]:
        """Return the messages between two confirm offsets, which should be close together. Raises `CorruptRecord`,
        `OffsetLost`.
        """
        self.must_be_open()
        return arrivals(self._log, integer("begin", begin, 0), integer("end", end, 0))

    def watch(self) -> Watch:
        """Return a `Watch`, which wakes one waiting thread at each publication. With a broker's directory, it polls."""
        self.must_be_open()
        return self._watches.new()

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the queue offset that a consumer group reads next, None if it never committed one."""
        self.must_be_open()
        return self._groups.offsets(group, topic).get(integer("queue_id", queue_id))

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set a group's next offsets (queue id to queue offset). When this returns, they are on the device.

        Works with `read_only`, too. Does not block appends. Raises `InvalidGroup`, `UnknownTopic`, `UnknownQueue`,
        `OffsetOutOfRange` (below 0), `StoreBusy`, and `StoreLocked` while a RocketMQ broker runs on the directory.
        """
        self.must_be_open()
        groups, place, topics = self._groups, self._place, self._topics
        for queue_id in offsets:
            topics.check_queue(topic, queue_id)
        with among_groups(self.path, self.config.lockTimeoutMillis / 1000):
            place.check()
            groups.commit_positions(group, {Queue(topic, queue_id): at for queue_id, at in offsets.items()})
