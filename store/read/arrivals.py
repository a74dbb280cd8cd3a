"""New messages between two published ends of the log, for long polling."""

from __future__ import annotations

from typing import NamedTuple

from store.disk.commit_log import CommitLog
from store.format.hashes import java_hash_code
from store.format.layout import (
    MAGIC_BLANK,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_TAGS,
    RECORD_HEADER,
    RECORD_HEADERS,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    field_offset,
)
from store.format.properties import decode_properties
from store.model.errors import CorruptRecord

_MAGIC = field_offset(RECORD_HEADER, "magic")
_QUEUE_ID = field_offset(RECORD_HEADER, "queue_id")
_QUEUE_OFFSET = field_offset(RECORD_HEADER, "queue_offset")
_SYS_FLAG = field_offset(RECORD_HEADER, "sys_flag")
_BODY_LENGTHS = [[field_offset(header, "body_length") for header in row] for row in RECORD_HEADERS]
_BODIES = [[header.itemsize for header in row] for row in RECORD_HEADERS]


class Arrival(NamedTuple):
    """A message in a queue. tags_code: Java hash, 0 without a tag."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int


def arrivals(log: CommitLog, begin: int, end: int) -> list[Arrival]:
    """Decode all records of a short range of published log bytes, in order.

    Not for a broker's log, in which a record may be in no queue or in several. Raises `CorruptRecord`, and `OffsetLost`
    if retention deleted records.
    """
    found = []
    at = begin
    while at < end:
        stop = min(end, log.next_segment(at))
        data = log.segments.read(at, stop - at)
        position = 0
        while position < len(data):
            size, magic = _int(data, position), _int(data, position + _MAGIC)
            if magic == MAGIC_BLANK:
                break
            if size < MIN_RECORD_BYTES or magic not in TOPIC_LENGTH_BYTES:
                raise CorruptRecord(
                    f"commit log offset {at + position}: no record begins here (size {size}, magic "
                    f"{magic & 0xFFFFFFFF:#x}); restore the segment from a copy ('pyspark-mq verify' names the file)"
                )
            found.append(_arrival(data, position, magic))
            position += size
        at = stop
    return found


def _arrival(data: bytes, position: int, magic: int) -> Arrival:
    flags = _int(data, position + _SYS_FLAG)
    hosts = bool(flags & SYS_BORN_HOST_V6), bool(flags & SYS_STORE_HOST_V6)
    at = position + _BODIES[hosts[0]][hosts[1]] + _int(data, position + _BODY_LENGTHS[hosts[0]][hosts[1]])
    topic, at = _part(data, at, TOPIC_LENGTH_BYTES[magic])
    properties, _ = _part(data, at, PROPERTIES_LENGTH_BYTES)
    tag = decode_properties(properties).get(PROPERTY_TAGS, "")
    return Arrival(
        topic.decode("utf-8", "replace"),
        _int(data, position + _QUEUE_ID),
        _int(data, position + _QUEUE_OFFSET, 8),
        java_hash_code(tag),
    )


def _part(data: bytes, at: int, width: int) -> tuple[bytes, int]:
    end = at + width + int.from_bytes(data[at : at + width], "big")
    return data[at + width : end], end


def _int(data: bytes, position: int, width: int = 4) -> int:
    return int.from_bytes(data[position : position + width], "big", signed=True)
