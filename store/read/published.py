"""The published part of a store's queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from store.append.log_end import LogEnd, life_begin
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.consume_queues import ConsumeQueues, QueueName
from store.disk.queues_in_log import FirstEntry, must_have_first_file
from store.disk.topics import Topics
from store.format.columns import check_columns
from store.format.entering import QueueEntry
from store.format.layout import (
    CQ_ENTRY,
    RECORD_HEADER,
    SYS_INNER_BATCH,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from store.format.stored_message import StoredMessage, must_match_entry
from store.model.errors import CorruptRecord, CorruptSegment, OffsetLost, OffsetNotYet, UnknownQueue, UnknownTopic
from store.model.log_protocol import Boundary, Bounds, Fingerprint, Queue, QueueRange, ReadSpec
from store.read.fingerprint import fingerprint
from store.read.query import offset_by_time
from store.read.scan import Decoding, scan_queue

_LOOKED_AT = 64 << 20  # bytes of log


class PublishedQueues:
    def __init__(self, topics: Topics, log: CommitLog, queues: ConsumeQueues, end: PublishedEnd | LogEnd) -> None:
        self._topics = topics
        self.log = log
        self._queues = queues
        self._end = end
        self._log_begin = 0
        self._begins: dict[QueueName, int] = {}  # checked by `_must_have_first_file`

    def of(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue. Raises `UnknownTopic`, `UnknownQueue`."""
        return self._queues.of(topic, self._topics.check_queue(topic, queue_id))

    def there(self, queues: Iterable[Queue]) -> Iterator[tuple[Queue, ConsumeQueue]]:
        """Yield the queues that exist. Looks up each topic once, because a lookup is a system call."""
        counts: dict[str, int] = {}
        for queue in queues:
            if (count := counts.get(queue.topic)) is None:
                count = counts[queue.topic] = self._topics.queue_count(queue.topic)
            if 0 <= queue.queue_id < count:
                yield queue, self._queues.of(queue.topic, queue.queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        try:
            return self.of(topic, queue_id).max_offset(self._end.confirm_offset)
        except CorruptSegment:  # recreated, or a file was deleted: retry without the cache
            self._queues.forget()
        return self.of(topic, queue_id).max_offset(self._end.confirm_offset)

    def offsets(self, topic: str, queue_id: int) -> Bounds:
        return self.bounded(topic, queue_id)[1]

    def bounded(self, topic: str, queue_id: int) -> tuple[ConsumeQueue, Bounds]:
        """Return a queue and a consistent snapshot of its bounds.

        Raises as `of`, and `CorruptSegment`, `OffsetLost` if files or entries are missing.
        """
        first = -1
        while True:
            before, first = first, self.log.min_offset()
            try:
                queue = self.of(topic, queue_id)
                return queue, self._bounds(queue, first, self._end.confirm_offset)
            except (OffsetLost, CorruptSegment):
                if first == before:  # retention deleted nothing since the last attempt
                    raise
            self._queues.forget()  # recreated, or retention deleted a file concurrently

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Return the bounds of the queues that exist, all for one published end, so that an append is seen in all its
        queues or in none.
        """
        found, first, end = {}, self.log.min_offset(), self._end.confirm_offset
        for queue, it in self.there(queues):
            try:
                found[queue] = self._bounds(it, first, end)
            except (OffsetLost, CorruptSegment):
                with suppress(UnknownTopic):
                    found[queue] = self.offsets(queue.topic, queue.queue_id)
        return found

    def _bounds(self, queue: ConsumeQueue, first: int, end: int) -> Bounds:
        """Return a queue's bounds. first, end: the log's first offset and published end, read before this call.

        Raises `OffsetLost`, `CorruptSegment`, also if the topic is deleted concurrently.
        """
        if first != self._log_begin:  # retention deleted files
            self._queues.close_deleted()
            self._log_begin = first
        while True:
            max_offset = queue.max_offset(end)
            min_offset = queue.min_offset(first, max_offset)
            if min_offset <= max_offset:
                if min_offset < max_offset and self._begins.get((queue.topic, queue.queue_id)) != min_offset:
                    self._must_have_first_file(queue, min_offset)
                return Bounds(min_offset, max_offset)
            first, end = self.log.min_offset(), self._end.confirm_offset  # retention deleted files concurrently

    def _must_have_first_file(self, queue: ConsumeQueue, min_offset: int) -> None:
        """Raise `CorruptSegment` if the file before `min_offset` is lost, or if a damaged first entry hides a message.

        Checks each first offset once, because it may read the beginning of the log.
        """
        if queue.begin < min_offset <= queue.first() + 1:  # rare
            at, size, _ = queue.entries(min_offset, min_offset + 1)[0].item()
            begins = {(queue.topic, queue.queue_id): FirstEntry(min_offset, at, size)}
            must_have_first_file(self.log, begins, self._topics.deletions(), _LOOKED_AT)
        self._begins[queue.topic, queue.queue_id] = min_offset

    def queue_containing(self, wanted: QueueRange) -> ConsumeQueue:
        """Return the queue of a published range. Raises `OffsetLost`, `OffsetNotYet`, and as `of`."""
        start, end = wanted.start, wanted.end
        queue, (minimum, maximum) = self.bounded(wanted.queue.topic, wanted.queue.queue_id)
        where = f"{self.log.segments.directory.parent}: topic {wanted.queue.topic!r}, queue {wanted.queue.queue_id}"
        if start < minimum and start < end:
            raise OffsetLost(f"{where}: offset {start} was deleted. Begin at offset {minimum}, the oldest one")
        if end > maximum:
            raise OffsetNotYet(f"{where}: asked for messages up to offset {end}, but the queue ends at {maximum}")
        return queue

    def scan(self, wanted: QueueRange, spec: ReadSpec, max_body_bytes: int) -> Iterator[pa.RecordBatch]:
        """Check the columns and the range, then return the range's matching messages.

        max_body_bytes: limit of a body if `spec` has none.
        """
        check_columns(spec.columns)
        return scan_queue(
            self.log, self.queue_containing(wanted), wanted.start, wanted.end, Decoding(spec, max_body_bytes)
        )

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary) -> int:
        """Return the queue offset for a store time (ms), see `query.offset_by_time`."""
        queue = self.of(topic, queue_id)
        return offset_by_time(self.log, queue, lambda: self.offsets(topic, queue_id), timestamp, boundary)

    def fingerprint(self, topic: str, queue_id: int, offset: int) -> Fingerprint | None:
        """Return the fingerprint of a published message, None if it is deleted."""
        queue = self.of(topic, queue_id)
        try:
            return fingerprint(self.log, queue, offset)
        except OffsetLost:
            return None

    def has(self, message: StoredMessage) -> bool:
        """Return whether a message read from the log is in the queue that its record names.

        It is not if its topic was deleted, even if recreated. Raises `UnknownQueue`, and `CorruptRecord` if the queue
        has another message there: usually no checksum covers a record's queue and offset, so they may be damaged.
        """
        is_half = message.sys_flag & SYS_TRANSACTION_MASK in (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)
        if is_half or message.sys_flag & SYS_INNER_BATCH:  # no entry to compare with
            return True
        try:
            queue = self.of(message.topic, message.queue_id)
        except UnknownQueue:
            if self._is_older(message):
                return False
            raise
        if message.queue_offset < queue.begin:
            return False
        try:
            entries = queue.entries(message.queue_offset, message.queue_offset + 1)
        except OffsetLost:
            entries = np.empty(0, CQ_ENTRY)
        at = message.physical_offset
        if at not in entries["physical_offset"]:
            is_deleted = not self.log.segments.exists(at)  # by retention
            if is_deleted or at < life_begin(self.log, queue) or self._is_older(message):
                return False
            raise CorruptRecord(
                f"commit log offset {at}: its record names topic {message.topic}, queue {message.queue_id}, offset "
                f"{message.queue_offset}, but that queue has another record there; run 'pyspark-mq "
                "verify': it says whether the queue or the log is damaged, and what to do"
            )
        try:
            head = self.log.segments.read(at, RECORD_HEADER["total_size"].itemsize)
        except OffsetLost:  # retention deleted it concurrently
            return True
        entry, size = QueueEntry(*message[:3], *entries[0].item()), int.from_bytes(head, "big")
        if size != entry.size:
            raise CorruptRecord(
                f"{entry}: the entry says {entry.size} bytes, its record {size}; run 'pyspark-mq verify --repair'"
            )
        must_match_entry(message, entry)
        return True

    def dispatched_offset(self) -> int:
        """Return the log offset up to which records have queue entries. A broker's queues may lag behind the log."""
        confirm_offset = self._end.confirm_offset
        if not (isinstance(self._end, LogEnd) and self._end.by_log):
            return confirm_offset  # our writers publish log and queues together
        return max((self._queues.of(*name).dispatched(confirm_offset) for name in self._queues.existing()), default=0)

    def ever_put(self, topic: str) -> int:
        """Return the number of messages ever put into a topic."""
        return sum(self.max_offset(topic, number) for number in range(self._topics.known(topic)))

    def _is_older(self, message: StoredMessage) -> bool:
        """Return whether a message is from before its topic was recreated. True if no queue has files yet."""
        queues = (self.of(message.topic, number) for number in range(self._topics.known(message.topic)))
        begins = [life_begin(self.log, queue) for queue in queues if queue.has_files]
        return not begins or message.physical_offset < min(begins)
