"""`get_message`: a few messages of one queue, with RocketMQ's status and corrected offset (DefaultMessageStore)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.consume_queue import ConsumeQueue
from store.disk.queue_files import MAKE_ANEW, Entries
from store.format.entering import QueueEntry
from store.format.hashes import java_hash_code
from store.format.layout import CQ_ENTRY, MIN_RECORD_BYTES, SYS_COMPRESSED
from store.format.stored_message import StoredMessage, decode_record, inflated, must_match_entry, stored_messages
from store.model.errors import CorruptRecord, OffsetLost, UnreadableBody
from store.model.log_protocol import Bounds, Int64s, MessageFilter
from store.read.scan import EntryColumns, checked_block, may_match

MOST_RECORDS = 4096
_MANY = 160  # fewer messages are decoded faster one by one
_BY_TAG = {"tags"}
_NOTHING = memoryview(b"")
_SHORT_BYTES = 1024  # on average
_FILTER_SECONDS = 0.02  # for filters on properties, which decode each message


class GetStatus(Enum):
    """The values of RocketMQ's GetMessageStatus that `get_message` returns."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MESSAGE_IN_QUEUE = 8


@dataclass(frozen=True, slots=True)
class GetResult:
    """Result of `get_message`. All offsets are queue offsets.

    max_offset: the offset after the last message.
    records: pieces of the log, each of complete records; instead of `messages` with `GetRequest.as_records`.
    """

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)


class GetRequest(NamedTuple):
    """Arguments of `get_message`.

    as_records: return raw records. Their limit is far above RocketMQ's, because they are not decoded.
    """

    offset: int
    max_messages: int
    message_filter: MessageFilter
    as_records: bool = False

    def most_messages(self, config: StoreConfig) -> int:
        """Return the limit of messages, at least 1."""
        most = MOST_RECORDS if self.as_records else config.maxTransferCountOnMessageInMemory
        return max(1, min(self.max_messages, most))

    def most_entries(self, config: StoreConfig) -> int:
        if not self.message_filter.columns:
            return self.most_messages(config)
        return max(config.maxFilterMessageSize // CQ_ENTRY.itemsize, self.max_messages)


def get_message(
    log: CommitLog, queue: ConsumeQueue, bounds: Bounds, request: GetRequest, config: StoreConfig
) -> GetResult:
    """Return messages of a queue.

    Reads one ConsumeQueue file; with a filter, at most `max(maxFilterMessageSize / 20, max_messages)` entries. Returns
    at most `maxTransferCountOnMessageInMemory` messages and `maxTransferBytesOnMessageInMemory` bytes, but always the
    first message. Decompressed bodies have at most `maxDecompressedMessageSize` bytes together. RocketMQ has the same
    limits, and lower ones for messages that are not in memory.

    Raises as `MessageStore.get_message`, and `OffsetLost` if retention deletes a part of the range concurrently.
    """
    (minimum, maximum), offset = bounds, request.offset

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
    end = min(maximum, offset + request.most_entries(config), queue.file_end(offset))
    examined = _Examined(log, queue, offset, queue.entries(offset, end), request.message_filter, config)
    if request.as_records:
        pieces = examined.records(request.most_messages(config))
        return GetResult(status_of(pieces.records), pieces.next_begin, minimum, maximum, records=pieces.records)
    found = examined.messages(request.most_messages(config))
    return GetResult(status_of(found.messages), found.next_begin, minimum, maximum, found.messages)


def status_of(found: Sequence[object]) -> GetStatus:
    return GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE


class RecordPieces(NamedTuple):
    """Undecoded records of a queue.

    records: bytes of the log, each of adjacent records. next_begin: queue offset after the last examined entry.
    """

    records: list[memoryview]
    next_begin: int


class _Found(NamedTuple):
    messages: list[StoredMessage]
    next_begin: int


@dataclass(slots=True)
class _Examined:
    """The queue entries that one call examines. offset: queue offset of the first entry."""

    log: CommitLog
    queue: ConsumeQueue
    offset: int
    entries: Entries
    message_filter: MessageFilter
    config: StoreConfig
    _begin: int = 0  # log offset of `_segment`
    _segment: memoryview = _NOTHING

    def messages(self, count_limit: int) -> _Found:
        return self._in_columns(count_limit) or self._one_by_one(count_limit)

    def _in_columns(self, count_limit: int) -> _Found | None:
        """Do `_one_by_one` vectorized; None if messages are few, damaged or compressed, or if some do not match."""
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
        max_bytes, left = self.config.maxTransferBytesOnMessageInMemory, self.config.maxDecompressedMessageSize
        is_filtered, queue_id = bool(self.message_filter.columns), self.queue.queue_id
        for row, at, size, tags_code in self._candidates(max(1, count_limit + 1), is_filtered=is_filtered):
            max_bytes -= size
            if messages and (len(messages) >= count_limit or max_bytes < 0):
                return _Found(messages, self.offset + row)
            message = self._message(row, at, size, tags_code)
            if is_filtered and not self.message_filter.match(message.tags, message.properties):
                max_bytes += size
                continue
            if message.queue_id != queue_id:  # in a light queue, see `LightBlock`
                message = message._replace(queue_id=queue_id)
            if message.sys_flag & SYS_COMPRESSED:
                try:
                    message = inflated(message, self._entry(row), max(0, left))
                except UnreadableBody:
                    if not messages:
                        raise
                    return _Found(messages, self.offset + row)  # the next call raises, or has space for the body
            messages.append(message)
            left -= len(message.body)
        return _Found(messages, self.offset + len(self.entries))

    def _candidates(self, at_once: int, *, is_filtered: bool) -> Iterator[tuple[int, int, int, int]]:
        """Yield row, log offset, size and tags code of entries that may match. at_once: entries to filter together."""
        for first in range(0, len(self.entries), at_once):
            some = self.entries[first : first + at_once]
            rows: Iterable[int] = range(first, first + len(some))
            if is_filtered:
                kept = np.flatnonzero(may_match(some, self.message_filter))
                some, rows = some[kept], (kept + first).tolist()
            for row, fields in zip(rows, some.tolist(), strict=True):
                yield row, *fields

    def _message(self, row: int, at: int, size: int, tags_code: int) -> StoredMessage:
        if not self.log.can_be_record(at, size):
            raise CorruptRecord(f"{self._entry(row)}: the queue entry is damaged (record size {size}). {MAKE_ANEW}")
        try:
            message = decode_record(bytes(self._bytes(at, size)), "")
        except CorruptRecord as error:
            entry = self._entry(row)
            raise CorruptRecord(f"{entry}{error}") from error
        named = self.queue.topic, self.queue.queue_id, self.offset + row, at
        if message[:4] != named or tags_code != java_hash_code(message.tags or ""):
            must_match_entry(message, self._entry(row))
        return message

    def _entry(self, row: int) -> QueueEntry:
        return QueueEntry(self.queue.topic, self.queue.queue_id, self.offset + row, *self.entries[row].item())

    def _bytes(self, offset: int, length: int) -> memoryview:
        position = offset - self._begin
        if not 0 <= position < len(self._segment):
            segments = self.log.segments
            position = offset % segments.size
            self._begin = offset - position
            self._segment = segments.view(self._begin, segments.size).data
        return self._segment[position : position + length]

    def records(self, count_limit: int) -> RecordPieces:
        """Return the first matching records, as views of the mapped log: at least one, at most `count_limit`.

        A filter by tags compares only their hashes. A filter on properties stops after `_FILTER_SECONDS`, because the
        thread also serves other clients.
        """
        rows, stop = np.arange(len(self.entries)), len(self.entries)
        if self.message_filter.columns:
            rows = np.flatnonzero(may_match(self.entries, self.message_filter))
        if not _BY_TAG.issuperset(self.message_filter.columns):
            rows, stop = self._matching(rows, count_limit)
        begins, sizes = (
            self.entries[name][rows[:count_limit]].astype(np.int64) for name in ("physical_offset", "size")
        )
        fitting = sizes.cumsum().searchsorted(self.config.maxTransferBytesOnMessageInMemory, side="right")
        count = min(len(sizes), max(1, int(fitting)))
        next_begin = self.offset + (int(rows[count]) if count < len(rows) else stop)
        return RecordPieces(self._mapped(rows[:count], begins[:count], sizes[:count]), next_begin)

    def _matching(self, rows: Int64s, count_limit: int) -> tuple[Int64s, int]:
        """Return the rows whose properties match, and the number of entries examined within the time limit.

        Also returns the first match after `count_limit`, with which the next call continues.
        """
        matching: list[int] = []
        until = time.thread_time() + _FILTER_SECONDS
        for number, row in enumerate(rows.tolist()):
            if number and time.thread_time() > until:
                return np.array(matching, np.int64), row
            if len(matching) == count_limit:
                matching.append(row)
                break
            message = self._message(row, *self.entries[row].item())
            if self.message_filter.match(message.tags, message.properties):
                matching.append(row)
        return np.array(matching, np.int64), len(self.entries)

    def _mapped(self, rows: Int64s, begins: Int64s, sizes: Int64s) -> list[memoryview]:
        """Return records as views of the log, one view for adjacent records.

        Scattered short records are copied into one piece, because a view of each would take more memory.
        """
        if not len(rows):
            return []
        ends = begins + sizes
        last = (begins[1:] != ends[:-1]).nonzero()[0]  # of each piece, without the last piece
        first = [0, *(last + 1).tolist()]
        columns = rows[first], sizes[first], begins[first], ends[[*last.tolist(), -1]]
        pieces, segment = [], self.log.segments.size
        for row, size, begin, stop in zip(*(each.tolist() for each in columns), strict=True):
            if not self.log.can_be_record(begin, size) or begin % segment + stop - begin > segment:
                raise CorruptRecord(f"{self._entry(row)}: the queue entry is damaged (record size {size}). {MAKE_ANEW}")
            pieces.append(self._bytes(begin, stop - begin))
        total = sum(map(len, pieces))
        return [memoryview(b"".join(pieces))] if total < len(pieces) * _SHORT_BYTES else pieces
