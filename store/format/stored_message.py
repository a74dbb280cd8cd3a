"""Messages that were read, and their decoding (MessageDecoder)."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from store.format.arrays import texts
from store.format.entering import MessagePlace, QueueEntry, are_wrong_codes, is_place_of
from store.format.hashes import body_crc, java_hash_code, property_crc
from store.format.inflating import decompress, named
from store.format.layout import (
    KEY_SEPARATOR,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_BODY_ERROR,
    PROPERTY_CRC_BYTES,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_END,
    PROPERTY_CRC_NAME,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_HEADER,
    RECORD_HEADERS,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    struct_of,
)
from store.format.properties import decode_properties
from store.model.errors import CorruptRecord, UnreadableBody

if TYPE_CHECKING:
    from store.format.columns import Block


class StoredMessage(NamedTuple):
    """A message that was read. Timestamps are ms since the epoch, hosts `ip:port`; the body is decompressed.

    broker_name: the queue's broker; "" in a directory.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    msg_id: str
    body: bytes
    properties: dict[str, str]
    born_timestamp: int
    store_timestamp: int
    born_host: str
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    body_crc: int
    prepared_transaction_offset: int
    broker_name: str = ""

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in self.properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR) if key)


_HEADERS = tuple(tuple(map(struct_of, row)) for row in RECORD_HEADERS)
_HEADER = _HEADERS[False][False]
_SYS_FLAG = (RECORD_HEADER.names or ()).index("sys_flag")
_HOSTS_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_TOPIC_LENGTHS = {magic: struct.Struct({1: ">B", 2: ">h"}[width]) for magic, width in TOPIC_LENGTH_BYTES.items()}
_PROPERTIES_LENGTH = struct.Struct(">h")
_PLACE = struct.Struct(">iq")  # port, physical offset
assert _PROPERTIES_LENGTH.size == PROPERTIES_LENGTH_BYTES


def decode_record(record: bytes, where: object, *, check_crc: bool = True) -> StoredMessage:
    """Decode a record, without decompressing the body. where: names the record in errors.

    Raises `CorruptRecord` for wrong lengths, magic or CRC.
    """
    if len(record) < MIN_RECORD_BYTES:
        raise _wrong(where, f"the record has only {len(record)} bytes")
    header = _HEADER
    values = header.unpack_from(record)
    if (flags := values[_SYS_FLAG]) & _HOSTS_V6:
        header = _HEADERS[bool(flags & SYS_BORN_HOST_V6)][bool(flags & SYS_STORE_HOST_V6)]
        if len(record) < header.size:
            raise _wrong(where, f"the record has only {len(record)} bytes")
        values = header.unpack_from(record)
    # fmt: off
    (
        size, magic, stored_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
        born_timestamp, born_ip, born_port, store_timestamp, store_ip, store_port,
        reconsume_times, prepared_transaction_offset, body_length,
    ) = values
    # fmt: on
    if size != len(record):
        raise _wrong(where, f"the record's length field says {size} bytes instead of {len(record)}")
    topic_length = _TOPIC_LENGTHS.get(magic)
    if topic_length is None:
        raise _wrong(where, f"the record's magic is {magic & 0xFFFFFFFF:#x}")
    body_end = header.size + body_length
    topic_begin = body_end + topic_length.size
    if body_length < 0 or topic_begin > size:
        raise _wrong(where, f"the record's body length is {body_length}")
    topic_end = topic_begin + topic_length.unpack_from(record, body_end)[0]
    begin = topic_end + PROPERTIES_LENGTH_BYTES
    if not topic_begin <= topic_end <= begin <= size:
        raise _wrong(where, f"the record's topic length is {topic_end - topic_begin}")
    if begin + _PROPERTIES_LENGTH.unpack_from(record, topic_end)[0] != size:
        raise _wrong(where, f"the record's properties do not fill the {size - begin} bytes left for them")
    body, encoded = record[header.size : body_end], record[begin:]
    if check_crc:
        if encoded.find(PROPERTY_CRC_NAME) >= 0 and _ends_with_crc(encoded):
            if not record.endswith(property_crc(record[:-PROPERTY_CRC_BYTES])):
                raise _wrong(where, f"the record does not match its CRC {record[-PROPERTY_CRC_DIGITS - 1 : -1]!r}")
        elif body and (crc := body_crc(body)) != stored_crc:
            raise _wrong(where, f"the body's CRC is {crc:#x}, but {stored_crc:#x} is stored")
    properties = decode_properties(encoded)
    return StoredMessage(
        record[topic_begin:topic_end].decode("utf-8", "replace"),
        queue_id,
        queue_offset,
        physical_offset,
        properties.get(PROPERTY_UNIQ_KEY) or offset_msg_id(store_ip, store_port, physical_offset),
        body,
        properties,
        born_timestamp,
        store_timestamp,
        host_text(born_ip, born_port),
        host_text(store_ip, store_port),
        reconsume_times,
        flag,
        sys_flag,
        stored_crc,
        prepared_transaction_offset,
    )


def stored_messages(block: Block) -> list[StoredMessage]:
    """Decode the messages of a block as `decode_record`, with the queue id of the block."""

    def column(name: str) -> list[str]:
        return block.column(name).to_pylist()  # type: ignore[no-any-return]

    def field(name: str) -> list[int]:
        return block.field(name).tolist()  # type: ignore[no-any-return]

    columns = (
        column("topic"),
        column("queueId"),
        column("queueOffset"),
        column("physicalOffset"),
        column("msgId"),
        column("body"),
        map(decode_properties, block.encoded_properties.to_pylist()),
        field("born_timestamp"),
        field("store_timestamp"),
        column("bornHost"),
        column("storeHost"),
        field("reconsume_times"),
        field("flag"),
        field("sys_flag"),
        field("body_crc"),
        field("prepared_transaction_offset"),
        [""] * len(block),
    )
    return list(map(StoredMessage._make, zip(*columns, strict=True)))


def lengths_add_up(size: int, read: Callable[[int, int], bytes]) -> bool:
    """Return whether the lengths of a record's parts add up to `size` bytes.

    read: takes a position in the record and a length, and returns the bytes, fewer at the end.
    """
    begin = read(0, _HEADERS[True][True].size)
    if len(begin) < _HEADER.size:
        return False
    flags = _HEADER.unpack_from(begin)[_SYS_FLAG]
    header = _HEADERS[bool(flags & SYS_BORN_HOST_V6)][bool(flags & SYS_STORE_HOST_V6)]
    if len(begin) < header.size:
        return False
    total, magic, *_, body_length = header.unpack_from(begin)
    at, width = header.size + int(body_length), TOPIC_LENGTH_BYTES.get(magic)
    if total != size or width is None or not header.size <= at < size:
        return False
    at += width + int.from_bytes(read(at, width), "big")
    return at < size and at + PROPERTIES_LENGTH_BYTES + int.from_bytes(read(at, PROPERTIES_LENGTH_BYTES), "big") == size


def _ends_with_crc(properties: bytes) -> bool:
    before, last = properties[:-PROPERTY_CRC_BYTES], properties[-PROPERTY_CRC_BYTES:]
    is_separate = not before or before.endswith(PROPERTY_CRC_END)
    return len(last) == PROPERTY_CRC_BYTES and last.startswith(PROPERTY_CRC_NAME) and is_separate


def _wrong(where: object, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{where}: {what}; restore the segment from a copy ('pyspark-mq verify' names the "
        "file), "
        "or read on from the next message"
    )


def must_match_entry(message: StoredMessage, entry: QueueEntry) -> None:
    """Raise `CorruptRecord` if an entry does not match its message."""
    tag = message.properties.get(PROPERTY_TAGS)
    own = MessagePlace(*message[:3])
    is_code = entry.tags_code == java_hash_code(tag or "") or (  # faster for one
        not are_wrong_codes(np.array([entry.tags_code]), texts([tag or ""]), own.topic).any()
    )
    is_there = message.physical_offset == entry.physical_offset
    if not (is_there and is_code and is_place_of(entry.place, own, message.properties)):
        raise CorruptRecord(
            f"{entry}: the log has another message there: topic {own.topic}, queue {own.queue_id}, offset "
            f"{own.queue_offset} (commit log offset {message.physical_offset}), tag {tag}, tags code in the "
            f"queue {entry.tags_code}; run 'pyspark-mq verify': it says whether the queue or the log is damaged, and "
            "what to do"
        )


def inflated(message: StoredMessage, where: object, max_bytes: int) -> StoredMessage:
    """Decompress the body. where: names the message in errors. Raises `UnreadableBody`."""
    if not message.sys_flag & SYS_COMPRESSED:
        return message
    try:
        body = decompress(message.body, message.sys_flag, max_bytes)
    except UnreadableBody as error:
        raise named(error, where) from error
    return message._replace(body=body, sys_flag=message.sys_flag & ~SYS_COMPRESSED)  # as RocketMQ's decoder does


def inflated_or_raw(message: StoredMessage, max_bytes: int) -> StoredMessage:
    """Decompress the body. An unreadable one stays as it is stored, with the reason in property `BODY_ERROR`."""
    try:
        return inflated(message, "", max_bytes)
    except UnreadableBody as error:
        reason = str(error.__cause__)
        return message._replace(properties={**message.properties, PROPERTY_BODY_ERROR: reason})


def offset_msg_id(ip: bytes, port: int, physical_offset: int) -> str:
    """RocketMQ's offsetMsgId: upper-case hex of ip, port and physical offset; 32 or 56 characters."""
    return (ip + _PLACE.pack(port, physical_offset)).hex().upper()


def offset_msg_ids(ip: bytes, port: int, physical_offsets: Sequence[int]) -> list[str]:
    host = (ip + struct.pack(">i", port)).hex().upper()
    offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets)
    return [host + offset for offset in offsets.hex(" ", struct.calcsize(">q")).upper().split()]


@lru_cache(maxsize=1024)
def host_text(ip: bytes, port: int) -> str:
    """Return `1.2.3.4:10911` or `[2001:db8::1]:10911`."""
    address = ipaddress.ip_address(ip)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def host_of(text: str) -> tuple[bytes, int]:
    host, _, port = text.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")).packed, int(port)
