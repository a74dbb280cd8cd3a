"""One `getMessage`: a few messages of one queue, with RocketMQ's status and corrected offset (DefaultMessageStore)."""

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
from store.log.consume_queue import MAKE_ANEW, ConsumeQueue, Entries
from store.model.errors import CorruptRecord, MessageTooLarge, OffsetLost
from store.model.log_protocol import Int64s, MessageFilter
from store.read.scan import block_of, may_match

_BY_TAG = {"tags"}
_LOOK_SECONDS = 0.02  # for conditions on properties: each message is decoded


class Slices(NamedTuple):
    """records: bytes of the log, each one record or several that stand one behind another. next_begin: the queue offset
    behind what was looked at."""

    records: list[memoryview]
    next_begin: int


def slices(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    entries: Entries,
    message_filter: MessageFilter,
    count_limit: int,
    config: StoreConfig,
) -> Slices:
    """The records of the first of `entries` that match, `count_limit` at most, the first always. Who serves others in
    the same thread waits for no more than a condition's look at one message, and then `_LOOK_SECONDS`.

    By tags as RocketMQ's broker: the hash decides here, and the client compares the tags themselves. Raises
    `CorruptRecord`, `OffsetLost`.
    """
    count_limit = max(1, count_limit)
    rows = np.flatnonzero(may_match(entries, message_filter))
    if not _BY_TAG.issuperset(message_filter.columns):
        rows, looked_at = _matching(log, queue, offset, entries, rows, message_filter, count_limit)
        entries = entries[:looked_at]
    chosen = rows[:count_limit]
    sizes = entries["size"][chosen].astype(np.int64)
    fitting = int(np.searchsorted(np.cumsum(sizes), config.maxTransferBytesOnMessageInMemory, side="right"))
    chosen = chosen[: max(1, fitting)]
    next_begin = offset + (int(rows[len(chosen)]) if len(chosen) < len(rows) else len(entries))
    return Slices(_mapped(log, queue, offset, entries, chosen), next_begin)


def _matching(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    entries: Entries,
    rows: Int64s,
    message_filter: MessageFilter,
    count_limit: int,
) -> tuple[Int64s, int]:
    """Those of `rows` whose properties match; behind as many as are wanted the next one, which says where to go on. And
    how many of `entries` were looked at before the time for it was over, one at least."""
    matching: list[int] = []
    until = time.thread_time() + _LOOK_SECONDS
    for number, row in enumerate(rows.tolist()):
        if number and time.thread_time() > until:
            return np.array(matching, np.int64), row
        if len(matching) == count_limit:
            matching.append(row)
            break
        record = _view(log, queue, offset, entries, row, row + 1).tobytes()
        message = decode_record(record, QueueEntry(queue.topic, queue.queue_id, offset + row, *entries[row].item()))
        if message_filter.match(message.tags, message.properties):
            matching.append(row)
    return np.array(matching, np.int64), len(entries)


def _mapped(log: CommitLog, queue: ConsumeQueue, offset: int, entries: Entries, rows: Int64s) -> list[memoryview]:
    """The records of these rows, neighbours together."""
    if not len(rows):
        return []
    physical, sizes = entries["physical_offset"][rows].astype(np.int64), entries["size"][rows].astype(np.int64)
    apart = np.flatnonzero((physical[1:] != physical[:-1] + sizes[:-1]) | (physical[1:] % log.segments.size == 0)) + 1
    bounds = [0, *apart.tolist(), len(rows)]
    return [
        _view(log, queue, offset, entries, int(rows[first]), int(rows[end - 1]) + 1) for first, end in pairwise(bounds)
    ]


def _view(log: CommitLog, queue: ConsumeQueue, offset: int, entries: Entries, first: int, end: int) -> memoryview:
    """The log from the record of row `first` to that of row `end - 1`. Raises `OffsetLost`, `CorruptRecord`."""
    begin = int(entries["physical_offset"][first])
    stop = int(entries["physical_offset"][end - 1]) + int(entries["size"][end - 1])
    is_one = begin >= 0 and (end - first > 1 or log.can_be_record(begin, stop - begin))
    if not is_one or not begin + MIN_RECORD_BYTES <= stop <= log.next_segment(begin):
        raise CorruptRecord(
            f"{queue.topic}, queue {queue.queue_id}, offset {offset + first}: an entry of {stop - begin} bytes at "
            f"{begin} of the log; {MAKE_ANEW}"
        )
    return log.segments.view(begin, stop - begin).data


MOST_RECORDS = 4096
_MANY = 160  # fewer are decoded in less time one by one


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

    records: instead of messages, where those are asked for: pieces of the log, each of whole records.
    """

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)


def get_message(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    minimum: int,
    maximum: int,
    max_messages: int,
    message_filter: MessageFilter,
    config: StoreConfig,
    *,
    as_records: bool = False,
) -> GetResult:
    """Messages of the queue's published range [minimum, maximum) from `offset`, at most `max_messages` of them.

    As in RocketMQ one call stays within one ConsumeQueue file, examines at most
    `max(maxFilterMessageSize / 20, max_messages)` entries, and returns no more than
    `maxTransferCountOnMessageInMemory` messages or `maxTransferBytesOnMessageInMemory` bytes (the first message
    always). RocketMQ's lower limits for messages that left memory are not applied: there is no network behind.
    Bodies that producers compressed become no larger than `maxDecompressedMessageSize`, all of them together.
    as_records: the records as they stand in the log instead, see `slices`; as many as are asked for, up to a limit
    that is far above RocketMQ's, for they are not decoded here.
    Raises as `MessageStore.get_message`, and `OffsetLost` where retention takes some of the range meanwhile.
    """

    def answer(status: GetStatus, next_begin: int) -> GetResult:
        return GetResult(status, next_begin, minimum, maximum)

    if maximum == 0:
        return answer(GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    if offset < minimum:
        return answer(GetStatus.OFFSET_TOO_SMALL, minimum)
    if offset >= maximum:
        return (
            answer(GetStatus.OFFSET_OVERFLOW_ONE, offset)
            if offset == maximum
            else answer(GetStatus.OFFSET_OVERFLOW_BADLY, maximum)
        )
    examined = max(config.maxFilterMessageSize // CQ_ENTRY.itemsize, max_messages)
    end = min(maximum, offset + examined, queue.file_end(offset))
    entries = queue.entries(offset, end)
    count_limit = min(max_messages, config.maxTransferCountOnMessageInMemory)
    if as_records:
        cut = slices(log, queue, offset, entries, message_filter, min(max_messages, MOST_RECORDS), config)
        return GetResult(_status(cut.records), cut.next_begin, minimum, maximum, records=cut.records)
    found = _together(log, queue, offset, entries, message_filter, count_limit, config)
    if found is None:
        found = _one_by_one(log, queue, offset, entries, message_filter, count_limit, config)
    return GetResult(_status(found.messages), found.next_begin, minimum, maximum, found.messages)


def _status(found: Sequence[object]) -> GetStatus:
    return GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE


class _Found(NamedTuple):
    """next_begin: the queue offset behind what was looked at."""

    messages: list[StoredMessage]
    next_begin: int


def _together(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    entries: Entries,
    message_filter: MessageFilter,
    count_limit: int,
    config: StoreConfig,
) -> _Found | None:
    """What `_one_by_one` would find, by columns; None where these are few, or anything is out of the ordinary."""
    if min(count_limit, len(entries)) < _MANY:
        return None
    rows = np.flatnonzero(may_match(entries, message_filter))
    some = entries[rows[:count_limit]]
    sizes = some["size"].astype(np.int64)
    count = int(np.searchsorted(np.cumsum(sizes), config.maxTransferBytesOnMessageInMemory, side="right"))
    if count < _MANY or sizes.min() < MIN_RECORD_BYTES:
        return None
    physical_offsets, codes = some["physical_offset"].astype(np.int64), some["tags_code"].astype(np.int64)
    try:
        block = block_of(log, queue, offset + rows[:count], physical_offsets[:count], sizes[:count])
        block.check_crc()
        block.check_tags_codes(codes[:count])
    except (CorruptRecord, OffsetLost):
        return None
    if (block.sys_flags & SYS_COMPRESSED).any():
        return None
    messages = stored_messages(block)
    if message_filter.columns and not all(message_filter.match(each.tags, each.properties) for each in messages):
        return None
    return _Found(messages, offset + (int(rows[count]) if count < len(rows) else len(entries)))


def _one_by_one(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    entries: Entries,
    message_filter: MessageFilter,
    count_limit: int,
    config: StoreConfig,
) -> _Found:
    """The messages of `entries`, the first of which is that of `offset`. Raises as `get_message`."""
    messages: list[StoredMessage] = []
    taken_bytes, left = 0, config.maxDecompressedMessageSize
    views: dict[int, Bytes] = {}  # of whole segments, each looked at once a call
    for entry in _candidates(queue, offset, entries, message_filter, max(1, count_limit + 1)):
        too_large = taken_bytes + entry.size > config.maxTransferBytesOnMessageInMemory
        if messages and (len(messages) >= count_limit or too_large):
            return _Found(messages, entry.queue_offset)
        message = decode_record(_record(log, views, entry), entry)
        must_be_entered(message, entry)
        if not message_filter.match(message.tags, message.properties):
            continue
        if message.queue_id != queue.queue_id:  # of a light queue, see `LightBlock`
            message = message._replace(queue_id=queue.queue_id)
        try:
            message = inflated(message, entry, left)
        except MessageTooLarge:
            if not messages:
                raise
            return _Found(messages, entry.queue_offset)  # for the next call to say, or to have room for
        messages.append(message)
        taken_bytes += entry.size
        left = max(0, left - len(message.body))
    return _Found(messages, offset + len(entries))


def _candidates(
    queue: ConsumeQueue, offset: int, entries: Entries, message_filter: MessageFilter, at_once: int
) -> Iterator[QueueEntry]:
    """The entries whose message may match; `at_once` of them are looked at before any is asked for."""
    for first in range(0, len(entries), at_once):
        some = entries[first : first + at_once]
        kept = may_match(some, message_filter).tolist() if message_filter.columns else [True] * len(some)
        for row, fields in compress(enumerate(some.tolist()), kept):
            yield QueueEntry(queue.topic, queue.queue_id, offset + first + row, *fields)


def _record(log: CommitLog, views: dict[int, Bytes], entry: QueueEntry) -> bytes:
    """The record of an entry. views: of segments, by the offset at which each begins. Raises `OffsetLost`."""
    size = log.segments.size
    if not log.can_be_record(entry.physical_offset, entry.size):
        raise CorruptRecord(f"{entry}: an entry of {entry.size} bytes; {MAKE_ANEW}")
    position = entry.physical_offset % size
    begin = entry.physical_offset - position
    view = views.get(begin)
    if view is None:
        view = views[begin] = log.segments.view(begin, size)
    return view[position : position + entry.size].tobytes()
