"""`MessageStore`: the few verbs a user needs, composed of the rooms of this package. No byte is touched here."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, get_args
from weakref import finalize

import numpy as np
import pyarrow as pa

from store.any_log import (
    BATCH_BYTES,
    BATCH_ROWS,
    Boundary,
    Fingerprint,
    Int64s,
    MessageFilter,
    Oversized,
    QueueRange,
    ReadSpec,
)
from store.append import Append
from store.errors import FilterError, OffsetLost, ReadOnlyStore, UnknownTopic
from store.files.config import StoreConfig
from store.files.consumer_offsets import ConsumerOffsets
from store.files.kinds import warn_of_topics
from store.files.opened import Opened, Place
from store.files.topics import Topics
from store.format.columns import DEFAULT_COLUMNS, check_columns
from store.format.message import Message
from store.format.stored_message import StoredMessage, inflated
from store.index.index import END_OF_TIME, Index
from store.integers import integer, one_of, seconds, text
from store.log.commit_log import CommitLog
from store.log.consume_queues import ConsumeQueues
from store.publish.appender import AppendResult
from store.publish.locks import OFFSETS_BYTE, StoreLock
from store.publish.log_end import LogEnd
from store.publish.putting import PutResult, Putting
from store.publish.watch import Watch, Watches
from store.publish.watermark import Watermark
from store.read.arrivals import Arrival, arrivals
from store.read.filters import EVERYTHING, filter_of
from store.read.fingerprint import can_have, fingerprint
from store.read.getting import GetResult, GetStatus, get_message
from store.read.published import PublishedQueues
from store.read.query import is_queued, message_at, messages_with_key, offset_by_time, offset_of_id
from store.read.scan import scan_queue
from store.read.whole_topic import ranges, to_arrow
from store.system_errors import explained_verbs
from store.upkeep.directory import Directory
from store.upkeep.retention import Cleaned, Retention
from store.writer import Writer

# What is gone when a store is closed.
_ROOMS = (
    "_topics",
    "_groups",
    "_log",
    "_index",
    "_queues",
    "_published",
    "_putting",
    "_writer",
    "_watermark",
    "_watches",
)


@explained_verbs
class MessageStore(Opened):
    """A store directory, open. Use `MessageStore.open`, best in a `with` statement.

    Any number of stores, in any processes of one host, may be open on one directory, to write and to read.
    One store may be used by several threads, of the process that opened it: in one that is forked from it, as after
    `close`, every verb raises, `StoreForked` or `StoreClosed`. A verb, or an iterator of batches, that is under way in
    another thread meanwhile comes to its end or raises that. A store that is dropped is closed, with a
    `ResourceWarning`.
    """

    def __init__(self, directory: Directory, config: StoreConfig, *, read_only: bool) -> None:
        super().__init__(str(directory.root), f"MessageStore.open({str(directory.root)!r})")
        self.path = directory.root
        self.config = config
        self._topics = Topics(directory.root)
        self._groups = ConsumerOffsets(directory.root)
        # What only the files can tell is learnt when there are any: a broker may be about to make the first.
        learns = read_only and not directory.has_configuration
        queue_file_size = None if learns else config.mappedFileSizeConsumeQueue
        log_file_size = None if learns else config.mappedFileSizeCommitLog
        self._log = CommitLog(directory.root, log_file_size, writable=not read_only)
        self._index = Index.of(directory.root, config, writable=not read_only)
        self._writer: Writer | None = None
        # None of the rooms refers to this object: when it is dropped, it goes at once.
        if read_only:
            self._watermark: Watermark | LogEnd = LogEnd(directory.root, self._log)
            is_message = self._watermark.is_message
            queues = ConsumeQueues(directory.root, queue_file_size, writable=False, is_message=is_message)
            # A topic may have been deleted and created again: what was seen of its queues means nothing then.
            self._topics = Topics(directory.root, changed=queues.forget)
        else:
            queues = ConsumeQueues(directory.root, queue_file_size, writable=True)
            self._writer = Writer(directory, config, self._log, self._index, queues)
            self._watermark = self._writer.watermark
        self._place = Place(directory.root) if self._writer is None else self._writer.place
        self._queues = queues
        self._published = PublishedQueues(self._topics, self._log, queues, self._watermark)
        self._putting = Putting(self._topics, config, self._published.ever_put)
        self._watches = Watches(self._watermark)
        self._dropped = finalize(self, _drop, str(self.path), self._writer, self._watches)
        self._dropped.atexit = not read_only

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        create: bool = True,
        read_only: bool = False,
        config: StoreConfig | str | os.PathLike[str] | None = None,
    ) -> MessageStore:
        """Open the store in directory `path` (or a `file:` URL), local to this host.

        create: make a store of a missing or empty directory (not with `read_only`).
        read_only: take no lock and write nothing; also for the directory of a RocketMQ broker.
        config: a `StoreConfig` or the path of a `store.conf`; default: the directory's own
        `config/store.conf`, else RocketMQ's defaults. File sizes of an existing store stay what they are.

        Raises `NotAStore`, `UnsupportedStore`, `StoreLocked`, `StoreFull`, `ConfigError`, `CorruptSegment`,
        `CorruptStore`; as every verb `StoreUnavailable` for what the system refuses. Warns `UnsupportedWarning` of
        topics that RocketMQ's consumer sees otherwise.
        """
        directory = Directory.at(path)
        if read_only or not create:
            directory.must_be_store(writing=not read_only)
        else:
            directory.create()
        warn_of_topics(directory.root)
        return MessageStore(directory, directory.configuration(config), read_only=read_only)

    # --- topics ----------------------------------------------------------------------------------------

    def create_topic(self, topic: str, queues: int = 4) -> int:
        """Create a topic, or add queues to one; returns its number of queues.

        Raises `InvalidTopic` for a name that RocketMQ refuses or fewer queues than there are; `StoreFull`.
        """
        writer = self._writing()
        return writer.exclusively(lambda: self._topics.create(topic, queues))

    def topics(self) -> dict[str, int]:
        """Topic name to number of queues, as it stands now."""
        return self._topics.queue_counts()

    # --- putting ---------------------------------------------------------------------------------------

    def put(self, message: Message) -> PutResult:
        """Append one message; when this returns, every reader sees it (with SYNC_FLUSH it is on the device).

        Raises `UnknownTopic`, `UnknownQueue`, `MessageRefused`, `StoreFull`, `FlushFailed`.
        """
        return self.put_many([message])[0]

    def put_many(self, messages: Iterable[Message]) -> list[PutResult]:
        """Append messages, of any topics, in one append: readers see all of them or none. Raises as `put`."""
        writer, putting, messages = self._writing(), self._putting, Putting.listed(messages)
        if not messages:
            return []
        placed = writer.append([putting.of_messages(messages)])
        return putting.results(messages, placed)  # also where the store was closed meanwhile

    def append_table(self, topic: str, table: Any) -> AppendResult:
        """Append a table of messages to one topic, vectorised: a pyarrow Table or RecordBatch, a pandas frame, or
        what else offers itself as an Arrow stream. Readers see all of it or nothing.

        Columns: body (binary or string); optionally tags, keys (string, or list of strings), properties
        (map<string, string>), queueId, shardingKey, flag, bornTimestamp (timestamp, or integer ms). Rows that name no
        queue go round all queues, 16 to each while they last.

        What is longer than some 32 MiB is made into records while this has the turn to append: tables of gigabytes
        keep everybody else who appends waiting for seconds.

        Raises `InvalidColumns` and what `put` raises.
        """
        return self._writing().append(self._putting.of_table(topic, table))

    def begin(self) -> Append:
        """An append of several tables and messages, to any topics, that are seen all at once.

        Raises `ReadOnlyStore`.
        """
        return Append(self.path, self._putting, self._writing())

    def flush(self) -> None:
        """Bring everything published so far to the device. Raises `FlushFailed`, then and ever after."""
        self._writing().flush()

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def confirm_offset(self) -> int:
        """Commit log offset (bytes) up to which messages are visible; it never steps back."""
        return self._watermark.confirm_offset

    @property
    def dispatched_offset(self) -> int:
        """Commit log offset (bytes) up to which the queues go; below `confirm_offset` where a broker is behind."""
        return self._published.dispatched_offset()

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the oldest message still there. Raises `UnknownTopic`, `UnknownQueue`."""
        return self.offsets(topic, queue_id)[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset after the newest message. Raises `UnknownTopic`, `UnknownQueue`."""
        return self._published.max_offset(topic, queue_id)

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """`min_offset` and `max_offset` at one moment."""
        return self._published.offsets(topic, queue_id)

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        message_filter: MessageFilter | None = None,
    ) -> GetResult:
        """RocketMQ's `getMessage`: a few messages, a status, the offset to go on from.

        `group` names the consumer group, for the day's statistics only. An unknown topic or queue answers
        NO_MESSAGE_IN_QUEUE as in RocketMQ. Raises `CorruptRecord`, and `MessageTooLarge` for a first message whose body
        becomes larger than `maxDecompressedMessageSize`; the next one is at `offset + 1`.
        """
        offset, max_messages = integer("offset", offset), integer("max_messages", max_messages)
        if message_filter is not None and not hasattr(message_filter, "match_codes"):
            raise FilterError(f"message_filter={message_filter!r}: give message_filter('paid || shipped')")
        try:
            minimum, maximum = self.offsets(topic, queue_id)
        except UnknownTopic:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        queue, accept = self._queues.of(topic, int(queue_id)), message_filter or EVERYTHING
        return get_message(self._log, queue, offset, minimum, maximum, max_messages, accept, self.config)

    def sizes(self, topic: str, queue_id: int, start: int, end: int) -> Int64s:
        """Record sizes (bytes) of messages [start, end), int64, shape (end - start,); raises as `scan`."""
        queue = self._published.holding(QueueRange(topic, queue_id, start, end))
        return queue.entries(start, end)["size"].astype(np.int64)

    def tags_codes(self, topic: str, queue_id: int, start: int, end: int) -> Int64s:
        """Tags codes of messages [start, end) as their queue has them, int64, shape (end - start,).

        The range must be published. Raises `OffsetLost` where retention took the queue's files.
        """
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
        oversized: Oversized = "error",
    ) -> Iterator[pa.RecordBatch]:
        """Messages [start, end) of one queue as record batches, in order, with exactly `columns` (see COLUMNS).

        tags: an expression such as "paid || shipped", or any filter, see `store.message_filter`. check_crc: compare
        bodies with their checksums; without it a record's header is checked still, but what stands behind its body only
        where a column or a filter needs it.
        A batch has at most `max_rows` rows and `max_bytes` bytes of records, and of bodies as they become where
        producers compressed them (one row at least). max_body_bytes: how large one body may become, by default
        `maxDecompressedMessageSize`; a larger one is a `MessageTooLarge`, or with oversized="null" null in its row.

        Raises at once `OffsetLost` (start < min), `OffsetNotYet` (end > max), `UnknownTopic`, `InvalidColumns`,
        `FilterError`, `InvalidArgument` (no limit below 1); while iterating `CorruptRecord`, `MessageTooLarge`, and
        `OffsetLost` when retention overtakes the reader.
        """
        check_columns(columns)
        one_of("oversized", oversized, get_args(Oversized))
        spec = ReadSpec(
            tuple(columns),
            filter_of(tags),
            check_crc=check_crc,
            max_rows=integer("max_rows", max_rows, 1),
            max_bytes=integer("max_bytes", max_bytes, 1),
            max_body_bytes=None if max_body_bytes is None else integer("max_body_bytes", max_body_bytes, 1),
            oversized=oversized,
        )
        return self.read(QueueRange(topic, queue_id, start, end), spec)

    def read(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """`scan` of a range, as `spec` says; its filter may be any. Raises as `scan`."""
        check_columns(spec.columns)
        queue = self._published.holding(wanted)
        return scan_queue(self._log, queue, wanted.start, wanted.end, spec, self.config.maxDecompressedMessageSize)

    def to_arrow(
        self,
        topic: str,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        *,
        queues: Iterable[int] | Mapping[int, tuple[int, int]] | None = None,
        begin: int | None = None,
        end: int | None = None,
        tags: str | MessageFilter | None = None,
    ) -> pa.RecordBatchReader:
        """The messages of a topic as they stand now, queue after queue, as a stream of batches with `columns`.

        queues: some queue ids, or the range [start, end) of each; default: all there is. begin, end: only what was
        stored in [begin, end), ms since 1970. Raises as `scan`, and `InvalidArgument` for a range that ends before it
        begins.
        """
        return to_arrow(self, topic, ranges(self, topic, queues, begin, end), columns, tags)

    def fingerprint(self, topic: str, queue_id: int, offset: int) -> Fingerprint | None:
        """Which message stands at `offset`, below the queue's end; None where it is deleted.

        Raises `UnknownTopic`, `UnknownQueue`.
        """
        queue, offset = self._published.of(topic, queue_id), integer("offset", offset, 0)
        try:
            return fingerprint(self._log, queue, offset)
        except OffsetLost:
            return None

    def can_have(self, topic: str, queue_id: int, offset: int, was: Fingerprint) -> bool:
        """Whether the message at `offset` is the one that had the fingerprint `was`; or, if deleted, can have been.

        If not, the topic was created anew, or the store put back from a backup. Raises as `fingerprint`.
        """
        return can_have(self._log, self._published.of(topic, queue_id), offset, was)

    # --- finding ---------------------------------------------------------------------------------------

    def query(
        self, topic: str, key: str, max_messages: int = 64, begin: int = 0, end: int = END_OF_TIME
    ) -> list[StoredMessage]:
        """The newest messages of a topic that have a key, stored in [begin, end] (ms); oldest first.

        A key is one of `Message.keys` or a producer's id. Messages appended with messageIndexEnable=false are not
        found. Raises `UnknownTopic`, `CorruptRecord`, `MessageTooLarge`, and `ConfigError` for an index of other sizes
        than configured.
        """
        self._topics.known(topic)
        key, max_messages = text("key", key), integer("max_messages", max_messages, 1)
        begin, end = integer("begin", begin), integer("end", end)
        confirm = self.confirm_offset
        has = partial(is_queued, self._log, self._topics.known, self._published.of)
        found = messages_with_key(self._log, self._index, confirm, topic, key, max_messages, begin, end, has)
        return [self._inflated(message) for message in found]

    def message_by_id(self, offset_msg_id: str) -> StoredMessage:
        """The message with this offsetMsgId; a producer's own id is a key (see `query`). As in RocketMQ, also one of a
        topic that was deleted and created again.

        Raises `InvalidMessageId`, `OffsetLost`, `OffsetNotYet`, `CorruptRecord`, `MessageTooLarge`.
        """
        message = message_at(self._log, offset_of_id(offset_msg_id), self.confirm_offset)
        is_queued(self._log, self._topics.known, self._published.of, message)
        return self._inflated(message)

    def _inflated(self, message: StoredMessage) -> StoredMessage:
        """A message with its body as its producer had it."""
        where = f"topic {message.topic}, queue {message.queue_id}, offset {message.queue_offset}"
        return inflated(message, where, self.config.maxDecompressedMessageSize)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Queue offset of the first message stored at `timestamp` (ms) or after; by UPPER of the last up to then.

        Raises `UnknownTopic`, `UnknownQueue`, and `OffsetLost` where a file is missing.
        """
        queue, timestamp = self._published.of(topic, queue_id), integer("timestamp", timestamp)
        one_of("boundary", boundary, tuple(Boundary))
        return offset_by_time(self._log, queue, lambda: self.offsets(topic, queue_id), timestamp, boundary)

    # --- waiting ---------------------------------------------------------------------------------------

    def wait(self, seen: int, timeout: float) -> int:
        """Sleep until the confirm offset is no longer `seen`, at most `timeout` seconds; returns it.

        `close` in another thread ends it, with `StoreClosed`.
        """
        seen, deadline = integer("seen", seen), time.monotonic() + seconds("timeout", timeout)
        with self._watches.one() as watch:
            while (confirm := self.confirm_offset) == seen and (left := deadline - time.monotonic()) > 0:
                watch.wait(left)
        return confirm

    def arrivals(self, begin: int, end: int) -> list[Arrival]:
        """The messages between two confirm offsets, seen one after the other; not far apart.

        Raises `OffsetLost` when retention took them, `CorruptRecord`.
        """
        return arrivals(self._log, integer("begin", begin, 0), integer("end", end, 0))

    def watch(self) -> Watch:
        """What wakes one more waiting thread at each publication; polls while a RocketMQ broker has the directory."""
        return self._watches.new()

    # --- consumer groups -------------------------------------------------------------------------------

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The queue offset that a consumer group has to read next, None when it never committed one."""
        return self._groups.offsets(group, topic).get(integer("queue_id", queue_id))

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the next offsets (queue id to queue offset) of a consumer group, on the device when this returns.

        Also with `read_only`, for whoever reads has something to commit; appends are not kept waiting. Raises
        `InvalidGroup`, `UnknownTopic`, `UnknownQueue`, `OffsetOutOfRange` (below 0), `StoreBusy`, and `StoreLocked`
        while a broker runs.
        """
        groups = self._groups
        for queue_id in offsets:
            self._topics.check_queue(topic, queue_id)
        with closing(StoreLock(self.path, self.config.lockTimeoutMillis / 1000, OFFSETS_BYTE)) as lock:
            self._place.check()
            lock.refuse_broker()
            lock.exclusively(lambda: groups.commit(group, topic, offsets))

    # --- deleting --------------------------------------------------------------------------------------

    def clean(
        self,
        now: float | None = None,
        *,
        asked: bool = False,
        forced: bool = False,
        dry_run: bool = False,
        config: StoreConfig | None = None,
    ) -> Cleaned:
        """Delete old messages, as RocketMQ's broker does: one step, to be called every now and then.

        now: seconds since 1970. asked: at any hour, not only `deleteWhen`. forced: whatever their age. dry_run: only
        say what would go. config: whose settings count instead of the store's own. Raises `ReadOnlyStore`.
        """
        settings, now = config or self.config, now if now is None else seconds("now", now)
        retention = Retention(self.path, settings, self._log, self._index, self._queues)
        if dry_run:
            return retention.preview(*retention.decide(self.confirm_offset, now, asked=asked, forced=forced))
        writer = self._writing()
        decision, used = writer.after_repair(
            lambda: retention.decide(self.confirm_offset, now, asked=asked, forced=forced)
        )
        if decision.starts:  # or else a crash of the machine would take the entries of records that are gone, too
            writer.flush()
        return retention.clean(decision, used, writer.after_repair)

    # --- closing ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, leave the directory, close its files; the last writer to leave marks it as closed cleanly.

        A file whose bytes are still in use, in a batch that was handed out, closes with their last use. The second
        time, and in a forked process, this does nothing.

        Raises `FlushFailed`, `StoreBusy`, `StoreReplaced`: everything is closed then, but the directory is not marked.
        """
        if self._dropped.detach() is None:
            return
        self._is_over = True
        watches, writer = self._watches, self._writer
        try:
            self._let_go()
            watches.close()
        finally:
            if writer is not None:
                writer.close()

    def _let_go(self) -> None:
        if "_dropped" in vars(self):
            self._dropped.detach()
        for room in _ROOMS:
            vars(self).pop(room, None)

    if not TYPE_CHECKING:  # which knows what attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            """For what is missing: so no verb works without its rooms, and none has to ask whether it may."""
            self.must_be_open()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- looking up ------------------------------------------------------------------------------------

    def _writing(self) -> Writer:
        if self._writer is None:
            raise ReadOnlyStore(f"{self.path}: open with read_only=True; open it without to write")
        return self._writer


def _drop(path: str, writer: Writer | None, watches: Watches) -> None:
    """What `close` would have done, for a store that was dropped; it may be in the middle of anything."""
    warnings.warn(f"{path}: this store was dropped; close it, or use a with statement", ResourceWarning, stacklevel=2)
    watches.close()
    if writer is not None:
        writer.drop()
