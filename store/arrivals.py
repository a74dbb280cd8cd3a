"""Which queues got messages between two published ends of the log: what RocketMQ's reput tells its
`MessageArrivingListener`, asked for by whoever waits."""

from __future__ import annotations

from store.commit_log import CommitLog
from store.layout import (
    MAGIC_BLANK,
    RECORD_HEADER,
    RECORD_HEADERS,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    field_offset,
)

_MAGIC = field_offset(RECORD_HEADER, "magic")
_QUEUE_ID = field_offset(RECORD_HEADER, "queue_id")
_SYS_FLAG = field_offset(RECORD_HEADER, "sys_flag")


def arrivals(log: CommitLog, begin: int, end: int) -> set[tuple[str, int]]:
    """(topic, queue id) of every record in the published log bytes [begin, end). For short stretches: it loops.

    Raises `OffsetLost` when retention took them.
    """
    queues = set()
    at = begin
    while at < end:
        stop = min(end, log.next_segment(at))
        data = log.segments.read(at, stop - at)
        position = 0
        while position < len(data):
            size, magic = _int(data, position), _int(data, position + _MAGIC)
            if magic == MAGIC_BLANK or size <= 0:
                break
            queues.add((_topic(data, position, magic), _int(data, position + _QUEUE_ID)))
            position += size
        at = stop
    return queues


def _topic(data: bytes, position: int, magic: int) -> str:
    flags = _int(data, position + _SYS_FLAG)
    header = RECORD_HEADERS[bool(flags & SYS_BORN_HOST_V6)][bool(flags & SYS_STORE_HOST_V6)]
    body_length = _int(data, position + field_offset(header, "body_length"))
    begin = position + header.itemsize + body_length
    width = TOPIC_LENGTH_BYTES[magic]
    length = int.from_bytes(data[begin : begin + width], "big")
    return data[begin + width : begin + width + length].decode("utf-8", "replace")


def _int(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big", signed=True)
