"""One `getMessage`: a few messages of one queue, with RocketMQ's status and corrected offset (DefaultMessageStore)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from store.errors import CorruptRecord, MessageTooLarge, OffsetLost
from store.files.config import StoreConfig
from store.format.entering import Place
from store.format.layout import CQ_ENTRY, MIN_RECORD_BYTES
from store.format.message import StoredMessage, decode_record, inflated, must_be_entered
from store.log.commit_log import CommitLog
from store.log.consume_queue import MAKE_ANEW, ConsumeQueue, Entries
from store.read.filters import TagFilter


class GetStatus(Enum):
    """RocketMQ's GetMessageStatus, those that its file store can answer."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MESSAGE_IN_QUEUE = 8


@dataclass(frozen=True, slots=True)
class GetResult:
    """What one `get_message` answers. All offsets are queue offsets; the maximum is one past the last message."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)


def get_message(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    minimum: int,
    maximum: int,
    max_messages: int,
    message_filter: TagFilter,
    config: StoreConfig,
) -> GetResult:
    """Messages of the queue's published range [minimum, maximum) from `offset`, at most `max_messages` of them.

    As in RocketMQ one call stays within one ConsumeQueue file, examines at most
    `max(maxFilterMessageSize / 20, max_messages)` entries, and returns no more than
    `maxTransferCountOnMessageInMemory` messages or `maxTransferBytesOnMessageInMemory` bytes (the first message
    always). RocketMQ's lower limits for messages that left memory are not applied: there is no network behind.
    Bodies that producers compressed become no larger than `maxDecompressedMessageSize`, all of them together.
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
    file_end = (offset // queue.entries_per_file + 1) * queue.entries_per_file
    end = min(maximum, offset + examined, file_end)
    try:
        entries = queue.entries(offset, end)
    except OffsetLost:
        return answer(GetStatus.OFFSET_FOUND_NULL, file_end)
    count_limit = min(max_messages, config.maxTransferCountOnMessageInMemory)
    messages: list[StoredMessage] = []
    taken_bytes, next_begin, removed = 0, end, False
    left = config.maxDecompressedMessageSize
    for row in _candidates(entries, message_filter):
        physical, size, code = entries[row].item()
        too_large = taken_bytes + size > config.maxTransferBytesOnMessageInMemory
        if messages and (len(messages) >= count_limit or too_large):
            next_begin = offset + row
            break
        where = f"topic {queue.topic}, queue {queue.queue_id}, offset {offset + row} (commit log offset {physical})"
        if physical < 0 or not MIN_RECORD_BYTES <= size <= log.segments.size:
            raise CorruptRecord(f"{where}: an entry of {size} bytes; {MAKE_ANEW}")
        try:
            record = log.segments.read(physical, size)
        except OffsetLost:
            removed = True
            continue
        message = decode_record(record, where)
        must_be_entered(message, Place(queue.topic, queue.queue_id, offset + row), physical, code)
        if not message_filter.match(message.tags):
            continue
        if message.queue_id != queue.queue_id:  # of a light queue, see `LightBlock`
            message = replace(message, queue_id=queue.queue_id)
        try:
            messages.append(inflated(message, where, left))
        except MessageTooLarge:
            if not messages:
                raise
            next_begin = offset + row  # for the next call to say, or to have room for
            break
        taken_bytes += size
        left -= len(messages[-1].body)
    missing = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
    return GetResult(GetStatus.FOUND if messages else missing, next_begin, minimum, maximum, messages)


def _candidates(entries: Entries, message_filter: TagFilter) -> Iterable[int]:
    """Rows of the entries whose message may match."""
    if message_filter.tags is None:
        return range(len(entries))
    rows: list[int] = np.flatnonzero(message_filter.match_codes(entries["tags_code"].astype(np.int64))).tolist()
    return rows
