"""One `getMessage`: a few messages of one queue, with RocketMQ's status and corrected offset (DefaultMessageStore).

A call examines some entries of the queue. It answers with decoded messages, or with the records as they stand in the
log, which is how a pull over the wire is answered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np

from store.files.config import StoreConfig
from store.format.arrays import Bytes
from store.format.entering import QueueEntry
from store.format.layout import CQ_ENTRY, MIN_RECORD_BYTES, SYS_COMPRESSED
from store.format.stored_message import StoredMessage, decode_record, inflated, must_be_entered, stored_messages
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue
from store.log.queue_files import MAKE_ANEW, Entries
from store.model.errors import CorruptRecord, OffsetLost, UnreadableBody
from store.model.log_protocol import Bounds, Int64s, MessageFilter
from store.read.scan import EntryColumns, checked_block, may_match

MOST_RECORDS = 4096
_MANY = 160  # fewer are decoded in less time one by one
_BY_TAG = {"tags"}
_FILTER_SECONDS = 0.02  # a condition on properties decodes each message


class GetStatus(Enum):
    """RocketMQ's GetMessageStatus, those that are answered here."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MESSAGE_IN_QUEUE = 8


@dataclass(frozen=True, slots=True)
class GetResult:
    """What one `get_message` answers. All offsets are queue offsets; the maximum is one past the last message.

    records: instead of messages, if those were asked for: pieces of the log, each of whole records.
    """

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GetRequest:
    """What one `get_message` asks for: at most `max_messages` that match, from queue offset `offset` on.

    as_records: answer with the records as they stand in the log, up to a limit far above RocketMQ's, because they are
    not decoded here.
    """

    offset: int
    max_messages: int
    message_filter: MessageFilter
    as_records: bool = False


def get_message(
    log: CommitLog, queue: ConsumeQueue, bounds: Bounds, request: GetRequest, config: StoreConfig
) -> GetResult:
    """Return messages of a queue, which has those of `bounds`.

    As in RocketMQ one call stays within one ConsumeQueue file, examines at most
    `max(maxFilterMessageSize / 20, max_messages)` entries, and returns no more than
    `maxTransferCountOnMessageInMemory` messages or `maxTransferBytesOnMessageInMemory` bytes (the first message
    always). RocketMQ's lower limits for messages that left memory are not applied: there is no network behind.
    Compressed bodies become at most `maxDecompressedMessageSize`, all of them together.

    Raises as `MessageStore.get_message`, and `OffsetLost` if retention deletes some of the range concurrently.
    """
    (minimum, maximum), offset, max_messages = bounds, request.offset, request.max_messages

    def answer(status: GetStatus, next_begin: int) -> GetResult:
        return GetResult(status, next_begin, minimum, maximum)

    if maximum == 0:
        return answer(GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    if offset < minimum:
        return answer(GetStatus.OFFSET_TOO_SMALL, minimum)
    if offset == maximum:
        return answer(GetStatus.OFFSET_OVERFLOW_ONE, offset)
    if offset > maximum:
        return answer(GetStatus.OFFSET_OVERFLOW_BADLY, maximum)
    end = min(maximum, offset + most_examined(config, max_messages), queue.file_end(offset))
    examined = _Examined(log, queue, offset, queue.entries(offset, end), request.message_filter, config)
    if request.as_records:
        pieces = examined.records(min(max_messages, MOST_RECORDS))
        return GetResult(status_of(pieces.records), pieces.next_begin, minimum, maximum, records=pieces.records)
    found = examined.messages(min(max_messages, config.maxTransferCountOnMessageInMemory))
    return GetResult(status_of(found.messages), found.next_begin, minimum, maximum, found.messages)


def most_examined(config: StoreConfig, max_messages: int) -> int:
    """Return how many entries one call examines at most."""
    return max(config.maxFilterMessageSize // CQ_ENTRY.itemsize, max_messages)


def status_of(found: Sequence[object]) -> GetStatus:
    return GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE


class RecordPieces(NamedTuple):
    """records: bytes of a log, each one record or several adjacent ones. next_begin: the queue offset after the last
    examined entry."""

    records: list[memoryview]
    next_begin: int


class _Found(NamedTuple):
    """next_begin: the queue offset after the last examined entry."""

    messages: list[StoredMessage]
    next_begin: int


@dataclass(frozen=True)
class _Examined:
    """The entries that one call examines; the first is that of queue offset `offset`."""

    log: CommitLog
    queue: ConsumeQueue
    offset: int
    entries: Entries
    message_filter: MessageFilter
    config: StoreConfig

    def messages(self, count_limit: int) -> _Found:
        """Raises as `get_message`."""
        return self._in_columns(count_limit) or self._one_by_one(count_limit)

    def _in_columns(self, count_limit: int) -> _Found | None:
        """Return the result of `_one_by_one`, or None if they are few, or anything is out of the ordinary."""
        if min(count_limit, len(self.entries)) < _MANY:
            return None
        rows = np.flatnonzero(may_match(self.entries, self.message_filter))
        some = EntryColumns.of(self.offset + rows[:count_limit], self.entries[rows[:count_limit]])
        max_bytes = self.config.maxTransferBytesOnMessageInMemory
        count = int(np.searchsorted(np.cumsum(some.sizes), max_bytes, side="right"))
        if count < _MANY or some.sizes.min() < MIN_RECORD_BYTES:
            return None
        try:
            block = checked_block(self.log, self.queue, some.at(slice(0, count)))
        except (CorruptRecord, OffsetLost):
            return None
        if (block.field("sys_flag") & SYS_COMPRESSED).any():
            return None
        messages, matches = stored_messages(block), self.message_filter.match
        if self.message_filter.columns and not all(matches(each.tags, each.properties) for each in messages):
            return None
        return _Found(messages, self.offset + (int(rows[count]) if count < len(rows) else len(self.entries)))

    def _one_by_one(self, count_limit: int) -> _Found:
        messages: list[StoredMessage] = []
        taken_bytes, left = 0, self.config.maxDecompressedMessageSize
        views: dict[int, Bytes] = {}  # of whole segments, each mapped once a call
        for entry in self._candidates(max(1, count_limit + 1)):
            too_large = taken_bytes + entry.size > self.config.maxTransferBytesOnMessageInMemory
            if messages and (len(messages) >= count_limit or too_large):
                return _Found(messages, entry.queue_offset)
            message = decode_record(self._record(views, entry), entry)
            must_be_entered(message, entry)
            if not self.message_filter.match(message.tags, message.properties):
                continue
            if message.queue_id != self.queue.queue_id:  # of a light queue, see `LightBlock`
                message = message._replace(queue_id=self.queue.queue_id)
            try:
                message = inflated(message, entry, left)
            except UnreadableBody:
                if not messages:
                    raise
                return _Found(messages, entry.queue_offset)  # the next call raises it, or has room for it
            messages.append(message)
            taken_bytes += entry.size
            left = max(0, left - len(message.body))
        return _Found(messages, self.offset + len(self.entries))

    def _candidates(self, at_once: int) -> Iterator[QueueEntry]:
        """Yield the entries whose message may match. They are filtered `at_once` at a time."""
        for first in range(0, len(self.entries), at_once):
            some = self.entries[first : first + at_once]
            is_filtered = bool(self.message_filter.columns)
            kept = may_match(some, self.message_filter).tolist() if is_filtered else [True] * len(some)
            for row, fields in compress(enumerate(some.tolist()), kept):
                yield QueueEntry(self.queue.topic, self.queue.queue_id, self.offset + first + row, *fields)

    def _record(self, views: dict[int, Bytes], entry: QueueEntry) -> bytes:
        """Return the record of an entry. views: the segments, by the offset at which each begins."""
        size = self.log.segments.size
        if not self.log.can_be_record(entry.physical_offset, entry.size):
            raise CorruptRecord(f"{entry}: an entry of {entry.size} bytes; {MAKE_ANEW}")
        position = entry.physical_offset % size
        begin = entry.physical_offset - position
        view = views.get(begin)
        if view is None:
            view = views[begin] = self.log.segments.view(begin, size)
        return view[position : position + entry.size].tobytes()

    # --- records as they stand in the log --------------------------------------------------------------

    def records(self, count_limit: int) -> RecordPieces:
        """Return the first records that match, mapped: at most `count_limit`, and the first always.

        Tags are compared by their hashes, as by RocketMQ's broker; the client compares the tags. Conditions on
        properties take at most `_FILTER_SECONDS` and one message, because the calling thread serves others, too.
        Raises `CorruptRecord`, `OffsetLost`.
        """
        count_limit, stop = max(1, count_limit), len(self.entries)
        rows = np.flatnonzero(may_match(self.entries, self.message_filter))
        if not _BY_TAG.issuperset(self.message_filter.columns):
            rows, stop = self._matching(rows, count_limit)
        chosen = rows[:count_limit]
        sizes = self.entries["size"][chosen].astype(np.int64)
        max_bytes = self.config.maxTransferBytesOnMessageInMemory
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
        chosen = chosen[: max(1, fitting)]
        next_begin = self.offset + (int(rows[len(chosen)]) if len(chosen) < len(rows) else stop)
        return RecordPieces(self._mapped(chosen), next_begin)

    def _matching(self, rows: Int64s, count_limit: int) -> tuple[Int64s, int]:
        """Return those of `rows` whose properties match, and how many entries were examined in time, at least one.

        Behind `count_limit` rows one more follows, which says where to go on.
        """
        matching: list[int] = []
        until = time.thread_time() + _FILTER_SECONDS
        for number, row in enumerate(rows.tolist()):
            if number and time.thread_time() > until:
                return np.array(matching, np.int64), row
            if len(matching) == count_limit:
                matching.append(row)
                break
            entry = QueueEntry(self.queue.topic, self.queue.queue_id, self.offset + row, *self.entries[row].item())
            message = decode_record(self._view(row, row + 1).tobytes(), entry)
            if self.message_filter.match(message.tags, message.properties):
                matching.append(row)
        return np.array(matching, np.int64), len(self.entries)

    def _mapped(self, rows: Int64s) -> list[memoryview]:
        """Return the records of these rows, adjacent ones as one piece."""
        if not len(rows):
            return []
        physical, sizes = (self.entries[name][rows].astype(np.int64) for name in ("physical_offset", "size"))
        is_apart = (physical[1:] != physical[:-1] + sizes[:-1]) | (physical[1:] % self.log.segments.size == 0)
        bounds = [0, *(np.flatnonzero(is_apart) + 1).tolist(), len(rows)]
        return [self._view(int(rows[first]), int(rows[end - 1]) + 1) for first, end in pairwise(bounds)]

    def _view(self, first: int, end: int) -> memoryview:
        """Return the log from the record of row `first` to that of row `end - 1`."""
        begin = int(self.entries["physical_offset"][first])
        stop = int(self.entries["physical_offset"][end - 1]) + int(self.entries["size"][end - 1])
        is_record = begin >= 0 and (end - first > 1 or self.log.can_be_record(begin, stop - begin))
        if not is_record or not begin + MIN_RECORD_BYTES <= stop <= self.log.next_segment(begin):
            raise CorruptRecord(
                f"{self.queue.topic}, queue {self.queue.queue_id}, offset {self.offset + first}: an entry of "
                f"{stop - begin} bytes at {begin} of the log; {MAKE_ANEW}"
            )
        return self.log.segments.view(begin, stop - begin).data
