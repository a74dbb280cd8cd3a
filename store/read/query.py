"""Find messages by log offset, id, key and time."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from store.disk.commit_log import CommitLog
from store.disk.index import END_OF_TIME, Index
from store.format.entering import keys_of
from store.format.layout import (
    IPV4_BYTES,
    IPV6_BYTES,
    MIN_RECORD_BYTES,
    RECORD_HEADER,
)
from store.format.record_copies import RecordCopies
from store.format.record_view import RecordView, crc_matches
from store.format.stored_message import StoredMessage, decode_record
from store.model.errors import CorruptRecord, InvalidMessageId, OffsetLost, OffsetNotYet
from store.model.integers import LONG_MAX
from store.model.log_protocol import Boundary, Int64s
from store.read.fingerprint import fingerprint
from store.read.scan import EntryQueue, RecordLog

_ID_TAIL = struct.Struct(">iq")  # port and commit log offset, after the ip
_RESTORE = "run 'pyspark-mq verify', and restore the segment from a copy"
_ID_BYTES = (IPV4_BYTES + _ID_TAIL.size, IPV6_BYTES + _ID_TAIL.size)


def message_at(log: CommitLog, physical_offset: int, confirm_offset: int) -> StoredMessage:
    return record_at(log, physical_offset, confirm_offset)[0]


def record_at(log: CommitLog, physical_offset: int, confirm_offset: int) -> tuple[StoredMessage, bytes]:
    """Return the message whose record begins at a log offset, and the record.

    Raises `OffsetNotYet`, `OffsetLost`, and `CorruptRecord` if no record begins there.
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
        raise CorruptRecord(
            f"{where}: the record here says that it is at {message.physical_offset}; restore the segment from a copy, "
            "or read the other messages"
        )
    return message, record


def copies_at(log: CommitLog, physical_offsets: Int64s, sizes: Int64s) -> RecordCopies:
    """Return the records at these log offsets, in this order. Raises `CorruptRecord`, `OffsetLost`.

    physical_offsets, sizes: shape (n,), n >= 1, distinct.
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
    """Return record sizes in bytes, by reading each record's beginning. Raises `OffsetNotYet`, `OffsetLost`."""
    width = RECORD_HEADER["total_size"].itemsize
    if len(physical_offsets) and physical_offsets.max() > confirm_offset - MIN_RECORD_BYTES:
        raise OffsetNotYet(
            f"commit log offset {physical_offsets.max()}: messages are published up to {confirm_offset} only"
        )
    heads = b"".join(log.segments.read(offset, width) for offset in physical_offsets.tolist())
    return np.frombuffer(heads, RECORD_HEADER["total_size"]).astype(np.int64)


def _in_segment(log: CommitLog, offsets: Int64s, sizes: Int64s) -> RecordCopies:
    begin, end = int(offsets[0]), int(offsets[-1] + sizes[-1])
    if begin < 0 or end > log.next_segment(begin) or sizes.min() < MIN_RECORD_BYTES:
        raise CorruptRecord(f"commit log offsets {begin} to {end}: a record here is damaged; {_RESTORE}")
    records = RecordView(log.segments.view(begin, end - begin), offsets - begin, sizes)
    records.measure_topics()
    sound = records.sound & (records.field("physical_offset") == offsets)
    if sound.all():
        sound &= crc_matches(records)
    if not sound.all():
        first = offsets[np.argmin(sound)]
        raise CorruptRecord(f"commit log offset {first}: the record is damaged; {_RESTORE}")
    return RecordCopies.of(records)


def offset_of_id(offset_msg_id: str) -> int:
    """Return the log offset in a message id of 32 or 56 hex digits. Raises `InvalidMessageId`."""
    try:
        data = bytes.fromhex(offset_msg_id)
    except (ValueError, TypeError):
        data = b""
    if len(data) not in _ID_BYTES or len(offset_msg_id) != 2 * len(data):
        raise InvalidMessageId(
            f"{offset_msg_id!r} is not an offset message id, which names a place in the log by 32 hex digits (56 with "
            "IPv6). An id that a producer assigned (property UNIQ_KEY) is a key: find it with a query by key"
        )
    offset: int = _ID_TAIL.unpack(data[-_ID_TAIL.size :])[1]
    return offset


@dataclass(frozen=True)
class KeyQuery:
    """A query for the newest messages of a topic, stored in [begin, end], ms since 1970.

    key: one of a message's keys, or its UNIQ_KEY.
    """

    topic: str
    key: str
    max_messages: int = 64
    begin: int = 0
    end: int = END_OF_TIME

    def matches(self, message: StoredMessage) -> bool:
        return self.begin <= message.store_timestamp <= self.end and self.key in keys_of(message.properties)


def messages_with_key(
    log: CommitLog,
    index: Index,
    confirm_offset: int,
    wanted: KeyQuery,
    has: Callable[[StoredMessage], bool] = lambda message: True,
    times_from: int | None = 0,
) -> list[StoredMessage]:
    """Return the matching messages, oldest first. Raises `CorruptRecord`.

    Keys are compared, and times in milliseconds; RocketMQ compares hashes, and seconds.

    has: whether a message is still in its queue.
    times_from: log offset from which store times ascend, None if unknown.
    """
    found: dict[int, StoredMessage] = {}
    known_from = LONG_MAX if times_from is None else times_from
    offsets = index.candidates(wanted.topic, wanted.key, wanted.begin, wanted.end, known_from)
    for message in _messages(log, offsets, confirm_offset):
        if message.topic == wanted.topic and wanted.matches(message) and has(message):
            found[message.physical_offset] = message
            if len(found) == wanted.max_messages:
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
    """Return the queue offset for a store time (ms), as in RocketMQ 5.

    LOWER: the first message stored at or after it, or the range's end. UPPER: the last stored at or before it, or the
    range's begin. bounds: returns the current published range. Raises `OffsetLost`.
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
