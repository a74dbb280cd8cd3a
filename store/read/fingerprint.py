"""Fingerprints identify the message at a queue offset, because RocketMQ's files have no unique ids.

A changed fingerprint means that the topic was recreated or the store restored from a backup.
"""

from __future__ import annotations

import numpy as np

from store.format.layout import (
    CQ_PRE_BLANK_SIZE,
    LIGHT_PREFIX,
    MIN_RECORD_BYTES,
    RECORD_HEADER,
    RECORD_HEADERS,
    SYS_BORN_HOST_V6,
    field_offset,
)
from store.model.errors import CorruptRecord, OffsetLost
from store.model.log_protocol import Fingerprint
from store.read.scan import EntryQueue, RecordLog

_PLACE = tuple(
    slice(at := field_offset(RECORD_HEADER, name), at + RECORD_HEADER[name].itemsize)
    for name in ("total_size", "queue_id", "queue_offset")
)


def fingerprint(log: RecordLog, queue: EntryQueue, offset: int) -> Fingerprint:
    """Identify the message at a published queue offset, without a cache.

    Raises `CorruptRecord`, and `OffsetLost` if the message is deleted.
    """
    physical, size, _ = queue.entries(offset, offset + 1, current=True)[0].item()
    if size == CQ_PRE_BLANK_SIZE:
        raise OffsetLost(
            f"topic {queue.topic}, queue {queue.queue_id}: the entry of offset {offset} is missing, because the queue "
            "begins later. Read from a later offset"
        )
    if physical < 0 or size < MIN_RECORD_BYTES:
        raise CorruptRecord(
            f"topic {queue.topic}, queue {queue.queue_id}, offset {offset}: the entry is damaged ({size} bytes at log "
            f"offset {physical}); run 'pyspark-mq verify --repair'"
        )
    length = min(size, RECORD_HEADERS[1][1].itemsize, log.next_segment(physical) - physical)
    header = log.segments.read(physical, length, current=True)
    there = place_of(header)
    is_light = queue.topic.startswith(LIGHT_PREFIX) and there[0] == size
    if there != (size, queue.queue_id, offset) and not is_light:
        raise CorruptRecord(  # records of a light queue have the queue and offset that they were sent to
            f"topic {queue.topic}, queue {queue.queue_id}, offset {offset}: the log has another message, or none, at "
            f"log offset {physical}; run 'pyspark-mq verify': it says whether the queue or the log is damaged"
        )
    flags = _integer(header, RECORD_HEADER, "sys_flag")
    return Fingerprint(physical, _integer(header, RECORD_HEADERS[bool(flags & SYS_BORN_HOST_V6)][0], "store_timestamp"))


def can_have(log: RecordLog, queue: EntryQueue, offset: int, was: Fingerprint) -> bool:
    """Return whether the message at `offset` has fingerprint `was`, or may have had it before it was deleted.

    A deleted message is before the log's first offset, which never decreases.
    """
    try:
        return fingerprint(log, queue, offset) == was
    except OffsetLost:
        return was.physical_offset < log.min_offset()


def place_of(header: bytes) -> tuple[int, ...]:
    """Return size, queue id and queue offset of a record."""
    return tuple(int.from_bytes(header[part], "big", signed=True) for part in _PLACE)


def _integer(header: bytes, dtype: np.dtype[np.void], name: str) -> int:
    at = field_offset(dtype, name)
    return int.from_bytes(header[at : at + dtype[name].itemsize], "big", signed=True)
