"""Finding messages without their queue offset: by key, by id, by time (RocketMQ's queries of its admin tools)."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from store.format.entering import QueueEntry, keys_of
from store.format.layout import (
    CQ_ENTRY,
    IPV4_BYTES,
    IPV6_BYTES,
    MIN_RECORD_BYTES,
    RECORD_HEADER,
    SYS_INNER_BATCH,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from store.format.record_copies import RecordCopies
from store.format.record_view import RecordView
from store.format.stored_message import StoredMessage, decode_record, must_be_entered
from store.index.index import END_OF_TIME, Index
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue
from store.log.sources import EntryQueue, RecordLog
from store.model.errors import CorruptRecord, InvalidMessageId, OffsetLost, OffsetNotYet, UnknownQueue
from store.model.integers import LONG_MAX
from store.model.log_protocol import Boundary, Int64s
from store.publish.log_end import life_begin
from store.read.fingerprint import fingerprint

_ID_TAIL = struct.Struct(">iq")  # port and commit log offset, after the ip
_ID_BYTES = (IPV4_BYTES + _ID_TAIL.size, IPV6_BYTES + _ID_TAIL.size)


def message_at(log: CommitLog, physical_offset: int, confirm_offset: int) -> StoredMessage:
    """The message whose record begins at this offset of the log. Raises as `record_at`."""
    return record_at(log, physical_offset, confirm_offset)[0]


def record_at(log: CommitLog, physical_offset: int, confirm_offset: int) -> tuple[StoredMessage, bytes]:
    """The message whose record begins at this offset of the log, and that record.

    Raises `OffsetNotYet` beyond the confirm offset, `OffsetLost` where the segment is gone, `CorruptRecord` where
    no record begins.
    """
    where = f"commit log offset {physical_offset}"
    if not 0 <= physical_offset <= confirm_offset - MIN_RECORD_BYTES:
        raise OffsetNotYet(f"{where}: messages are published up to {confirm_offset} only")
    width = RECORD_HEADER["total_size"].itemsize
    limit = min(log.next_segment(physical_offset), confirm_offset) - physical_offset
    size = int.from_bytes(log.segments.read(physical_offset, min(width, limit)), "big", signed=True)
    if size > limit or not log.can_be_record(physical_offset, size):
        raise CorruptRecord(f"{where}: no record begins here; take the offset from a message or its id")
    record = log.segments.read(physical_offset, size)
    message = decode_record(record, where)
    if message.physical_offset != physical_offset:
        raise CorruptRecord(f"{where}: this record names offset {message.physical_offset}; restore the segment")
    return message, record


def is_queued(
    log: CommitLog, known: Callable[[str], int], queue: Callable[[str, int], ConsumeQueue], message: StoredMessage
) -> bool:
    """Whether its queue has a message, which was found otherwise than by it, where the message's record says.

    Not so one of a topic that was deleted, and created again. No CRC need cover what a record says of queue and
    offset: raises `CorruptRecord` where the queue says otherwise, and what `queue` raises.

    known: how many queues a topic has. queue: the one of a topic and a number, or `UnknownQueue`.
    """
    is_half = message.sys_flag & SYS_TRANSACTION_MASK in (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)
    if is_half or message.sys_flag & SYS_INNER_BATCH:  # those stand in none
        return True
    try:
        own = queue(message.topic, message.queue_id)
    except UnknownQueue:
        if _is_of_older_life(log, known, queue, message):
            return False
        raise
    if message.queue_offset < own.begin:
        return False
    try:
        entries = own.entries(message.queue_offset, message.queue_offset + 1)
    except OffsetLost:
        entries = np.empty(0, CQ_ENTRY)
    if message.physical_offset not in entries["physical_offset"]:
        if not log.segments.exists(message.physical_offset):  # retention took it, and what says whose it was
            return False
        if message.physical_offset < life_begin(log, own) or _is_of_older_life(log, known, queue, message):
            return False
        raise CorruptRecord(
            f"commit log offset {message.physical_offset}: its record names topic {message.topic}, queue "
            f"{message.queue_id}, offset {message.queue_offset}, which is another's; run 'pyspark-mq verify'"
        )
    try:
        head = log.segments.read(message.physical_offset, RECORD_HEADER["total_size"].itemsize)
    except OffsetLost:  # retention took it just now
        return True
    entry, size = QueueEntry(*message[:3], *entries[0].item()), int.from_bytes(head, "big")
    if size != entry.size:
        raise CorruptRecord(
            f"{entry}: an entry of {entry.size} bytes, a record of {size}; run 'pyspark-mq verify --repair'"
        )
    must_be_entered(message, entry)
    return True


def _is_of_older_life(
    log: CommitLog, known: Callable[[str], int], queue: Callable[[str, int], ConsumeQueue], message: StoredMessage
) -> bool:
    """Whether a message is older than the first of each queue of its topic; one without any was just created again."""
    queues = [queue(message.topic, queue_id) for queue_id in range(known(message.topic))]
    begins = [life_begin(log, own) for own in queues if own.has_files]
    return not begins or message.physical_offset < min(begins)


def offset_of_id(offset_msg_id: str) -> int:
    """The commit log offset in an offsetMsgId, 32 or 56 hex digits. Raises `InvalidMessageId`."""
    try:
        data = bytes.fromhex(offset_msg_id)
    except (ValueError, TypeError):
        data = b""
    if len(data) not in _ID_BYTES or len(offset_msg_id) != 2 * len(data):
        raise InvalidMessageId(
            f"{offset_msg_id!r} is no offset message id (32 hex digits, 56 with IPv6); "
            "an id that a client made (UNIQ_KEY) is a key: query by key"
        )
    offset: int = _ID_TAIL.unpack(data[-_ID_TAIL.size :])[1]
    return offset


def messages_with_key(
    log: CommitLog,
    index: Index,
    confirm_offset: int,
    topic: str,
    key: str,
    max_messages: int,
    begin: int = 0,
    end: int = END_OF_TIME,
    has: Callable[[StoredMessage], bool] = lambda message: True,
    times_from: int | None = 0,
) -> list[StoredMessage]:
    """The newest `max_messages` messages of `topic` that have `key`, stored in [begin, end] (ms), oldest first.

    has: whether the message is still in its queue. times_from: log offset from which on store times ascend, None where
    nobody knows. A key is one of the message's keys or its UNIQ_KEY. Unlike
    RocketMQ's, this answer is exact: records of which only the hash is equal are left out, and times count to the
    millisecond. Raises `CorruptRecord`.
    """
    found: dict[int, StoredMessage] = {}
    offsets = index.candidates(topic, key, begin, end, LONG_MAX if times_from is None else times_from)
    for message in _messages(log, offsets, confirm_offset):
        is_in_time = begin <= message.store_timestamp <= end
        if message.topic == topic and key in keys_of(message.properties) and is_in_time and has(message):
            found[message.physical_offset] = message
            if len(found) == max_messages:
                break
    return [found[offset] for offset in sorted(found)]


def _messages(log: CommitLog, offsets: Iterator[int], confirm_offset: int) -> Iterator[StoredMessage]:
    for offset in offsets:
        try:
            yield message_at(log, offset, confirm_offset)
        except OffsetNotYet:
            continue
        except OffsetLost:
            if offset >= log.min_offset():  # not by retention
                raise


def offset_by_time(
    log: RecordLog, queue: EntryQueue, bounds: Callable[[], tuple[int, int]], timestamp: int, boundary: Boundary
) -> int:
    """Queue offset of the message that a time (ms) means, in the queue's published range, its `bounds` as they are now.

    LOWER answers the range's end when all are older; UPPER answers its begin when all are newer, and the last
    message's offset when all are older. Both as RocketMQ 5. Raises `OffsetLost` where a file is missing.
    """
    while True:
        minimum, maximum = bounds()
        try:
            return _search(log, queue, minimum, maximum, timestamp, boundary)
        except OffsetLost:
            if bounds()[0] <= minimum:  # not by retention
                raise


def _search(log: RecordLog, queue: EntryQueue, minimum: int, maximum: int, timestamp: int, boundary: Boundary) -> int:
    def stored(offset: int) -> int:
        return fingerprint(log, queue, offset).store_timestamp

    if boundary is Boundary.LOWER:
        return bisect_left(range(maximum), timestamp, minimum, maximum, key=stored)
    return max(minimum, bisect_right(range(maximum), timestamp, minimum, maximum, key=stored) - 1)


_RESTORE = "run 'pyspark-mq verify', and restore the segment from a copy"


def taken(log: CommitLog, physical_offsets: Int64s, sizes: Int64s) -> RecordCopies:
    """The messages whose records begin at these log offsets, all different, and are so long, in this order; n >= 1.

    Raises `CorruptRecord` naming the first that is no sound record, `OffsetLost` where a segment is gone.
    """
    order = np.argsort(physical_offsets, kind="stable")
    offsets, lengths = physical_offsets[order], sizes[order]
    segments = offsets // log.segments.size
    cuts = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(offsets)]
    copies = RecordCopies.concatenate([_in_segment(log, offsets[a:b], lengths[a:b]) for a, b in pairwise(cuts)])
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return copies if (back == np.arange(len(order))).all() else copies.take(back)


def sizes_at(log: CommitLog, physical_offsets: Int64s, confirm_offset: int) -> Int64s:
    """How long the records say they are that begin at these log offsets, shape (n,). For a few: it loops.

    Raises `OffsetNotYet` beyond the confirm offset, `OffsetLost` where a segment is gone.
    """
    width = RECORD_HEADER["total_size"].itemsize
    if len(physical_offsets) and physical_offsets.max() > confirm_offset - MIN_RECORD_BYTES:
        raise OffsetNotYet(f"commit log offset {physical_offsets.max()}: published up to {confirm_offset} only")
    heads = b"".join(log.segments.read(offset, width) for offset in physical_offsets.tolist())
    return np.frombuffer(heads, RECORD_HEADER["total_size"]).astype(np.int64)


def _in_segment(log: CommitLog, offsets: Int64s, sizes: Int64s) -> RecordCopies:
    begin, end = int(offsets[0]), int(offsets[-1] + sizes[-1])
    if begin < 0 or end > log.next_segment(begin) or sizes.min() < MIN_RECORD_BYTES:
        raise CorruptRecord(f"commit log offsets {begin} to {end}: no records of one segment; {_RESTORE}")
    records = RecordView(log.segments.view(begin, end - begin), offsets - begin, sizes)
    records.measure_topics()
    sound = records.sound & (records.field("physical_offset") == offsets)
    if sound.all():
        sound &= records.crc_matches()
    if not sound.all():
        raise CorruptRecord(f"commit log offset {offsets[np.argmin(sound)]}: no sound record; {_RESTORE}")
    return RecordCopies.of(records)
