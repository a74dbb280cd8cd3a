"""One message: what you put, what you get, and the record between them (MessageExtEncoder, MessageDecoder)."""

from __future__ import annotations

import ipaddress
import operator
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from store.errors import CorruptRecord, MessageRefused, PutStatus
from store.format.arrays import texts
from store.format.crc import body_crc, property_crc
from store.format.entering import Place, are_wrong_codes, keys_of, stands_in, tag_of
from store.format.inflating import decompress
from store.format.java_hash import java_hash_code
from store.format.key_hashes import key_hash
from store.format.layout import (
    INDEX_TAG_PREFIX,
    KEY_SEPARATOR,
    MAGIC_V1,
    MAGIC_V2,
    MAX_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    NO_TAG,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_CRC_BYTES,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_END,
    PROPERTY_CRC_NAME,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_HEADER,
    RECORD_HEADERS,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
)
from store.format.properties import decode_properties, encode_properties
from store.format.records import Records


@dataclass(frozen=True, slots=True)
class Message:
    """What you put.

    body: bytes; a text is stored as UTF-8.
    tags: one tag, which subscriptions select by: not "|" or a control character in it, no blanks around it.
    keys: texts to find the message by, none with a blank in it; a single text is one key.
    properties: texts to texts. Names that mean something to RocketMQ's broker are refused (see `entering`).
    queue_id: None lets the store choose: by the hash of `sharding_key` if there is one, else round robin.
    born_timestamp: ms since the epoch; None is now.
    """

    topic: str
    body: bytes | bytearray | memoryview | str
    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    queue_id: int | None = None
    sharding_key: str | None = None
    flag: int = 0
    born_timestamp: int | None = None

    def all_properties(self) -> dict[str, str]:
        """The user's properties with tags, keys and sharding key under RocketMQ's names."""
        check_mapping(self.properties)
        own = {
            PROPERTY_TAGS: self.tags,
            PROPERTY_KEYS: KEY_SEPARATOR.join(self._all_keys()),
            PROPERTY_SHARDING_KEY: self.sharding_key,
        }
        return {**self.properties, **{name: value for name, value in own.items() if value not in (None, "")}}

    def _all_keys(self) -> Sequence[str]:
        """Raises `MessageRefused` for what would not be found again."""
        keys = (self.keys,) if isinstance(self.keys, str) else self.keys
        if not isinstance(keys, tuple | list | Sequence):
            raise illegal(f"keys={self.keys!r}: must be a text, or a sequence of texts")
        for key in keys:
            check_key(key)
        return keys


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """What you get. Timestamps are ms since the epoch, hosts `ip:port`, the body is decompressed."""

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

    @property
    def tags(self) -> str | None:
        """The message's tag."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The message's keys."""
        return tuple(key for key in self.properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR) if key)


def encode_messages(
    messages: Sequence[Message],
    queue_ids: Sequence[int],
    *,
    store_host: tuple[bytes, int],
    max_message_size: int,
    now: int,
    with_keys: bool = True,
    with_tags: bool = False,
    with_crc: bool = False,
) -> Records:
    """Records of a list of messages, in order; `queue_ids` are already chosen, `now` is ms.

    with_keys: hash their keys for the index. with_tags: and their tags. with_crc: let each
    record end with a CRC of all of it.

    Raises `MessageRefused` for a body or properties that are too large, for what would not be found again, and for
    values of other kinds than their fields.
    """
    destinations: dict[tuple[str, int], int] = {}
    headers, rests, queues, codes, hashes, rows = [], [], [], [], [], []
    for row, (message, queue_id) in enumerate(zip(messages, queue_ids, strict=True)):
        properties = message.all_properties()
        header, rest = _encode(message, properties, queue_id, store_host, max_message_size, now, with_crc=with_crc)
        headers.append(header)
        rests.append(rest)
        queues.append(destinations.setdefault((message.topic, queue_id), len(destinations)))
        codes.append(java_hash_code(tag := tag_of(properties)))
        if with_keys:
            own = [key_hash(message.topic, key) for key in keys_of(properties)]
            own += [key_hash(message.topic, INDEX_TAG_PREFIX + tag)] if tag and with_tags else []
            hashes += own
            rows += [row] * len(own)
    return Records(
        headers=np.frombuffer(bytearray().join(headers), RECORD_HEADER),
        rests=rests,
        sizes=np.array([RECORD_HEADER.itemsize + len(rest) for rest in rests], np.int64),
        queues=np.array(queues, np.int32),
        destinations=list(destinations),
        tags_codes=np.array(codes, np.int64),
        key_hashes=np.array(hashes, np.int32),
        key_rows=np.array(rows, np.int64),
        with_crc=with_crc,
    )


# The record header as a struct, from the same dtype that the bulk paths use.
_STRUCT_CODES = {">i4": "i", ">i8": "q"}
_HEADER = struct.Struct(
    ">"
    + "".join(
        _STRUCT_CODES.get(RECORD_HEADER[name].str, f"{RECORD_HEADER[name].itemsize}s")
        for name in RECORD_HEADER.names or ()
    )
)
assert _HEADER.size == RECORD_HEADER.itemsize


def _encode(
    message: Message,
    all_properties: Mapping[str, str],
    queue_id: int,
    store_host: tuple[bytes, int],
    max_body: int,
    now: int,
    *,
    with_crc: bool,
) -> tuple[bytes, bytes]:
    """A record's header, and what follows it."""
    body, topic = _bytes(message.body), message.topic.encode()
    check_body_size(len(body), max_body)
    properties = encode_properties(all_properties, bytes(PROPERTY_CRC_BYTES) if with_crc else b"")
    magic = topic_magic(message.topic)
    born = now if message.born_timestamp is None else message.born_timestamp
    check_fits("flag", message.flag, 32)
    check_fits("born_timestamp", born, 64)
    check_tag(tag_of(all_properties))
    header = _HEADER.pack(
        _HEADER.size + len(body) + TOPIC_LENGTH_BYTES[magic] + len(topic) + PROPERTIES_LENGTH_BYTES + len(properties),
        magic,
        body_crc(body),
        queue_id,
        message.flag,
        0,
        0,
        0,
        born,
        store_host[0],
        0,
        0,
        *store_host,
        0,
        0,
        len(body),
    )
    topic_length = len(topic).to_bytes(TOPIC_LENGTH_BYTES[magic], "big")
    return header, b"".join((body, topic_length, topic, len(properties).to_bytes(2, "big"), properties))


def illegal(reason: str) -> MessageRefused:
    """The refusal of a message that breaks a rule."""
    return MessageRefused(PutStatus.MESSAGE_ILLEGAL, reason)


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, str):
        raise illegal(f"a body of type {type(body).__name__}: must be bytes, or a text, which is stored as UTF-8")
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise illegal(f"a body that has no UTF-8 form: {error}") from error


def check_mapping(properties: object) -> None:
    """Raises `MessageRefused` for properties that are no mapping."""
    if not (type(properties) is dict or isinstance(properties, Mapping)):  # the first is asked sooner
        raise illegal(f"properties={properties!r:.40}: must be a mapping of texts to texts")


def check_key(key: object) -> None:
    """Raises `MessageRefused` for a key that is no text, or would be several."""
    if not isinstance(key, str):
        raise illegal(f"key {key!r:.40}: must be a text")
    if KEY_SEPARATOR in key:
        raise illegal(f"key {key!r}: no blanks in a key, they separate keys; give several keys as a list")


_NO_TAG = re.compile(NO_TAG)


@lru_cache(maxsize=1024)
def check_tag(tag: str) -> None:
    """Raises `MessageRefused` for a tag that no subscription can name."""
    if _NO_TAG.search(tag):
        raise illegal(
            f"tag {tag!r}: a message has one tag, without '|', control characters, or blanks around it: "
            "no subscription could name it"
        )


def whole_number(name: str, value: object) -> int:
    """`value` as an int. Raises `MessageRefused` for what is none, such as "1" or 1.0."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise illegal(f"{name}={value!r}: must be a whole number") from None


def check_fits(name: str, value: object, bits: int) -> None:
    """Raises `MessageRefused` for what is no number, or one that a signed field of `bits` bits cannot hold."""
    number = value if type(value) is int else whole_number(name, value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise illegal(f"{name} {value}: must fit a signed {bits}-bit integer")


def topic_magic(topic: str) -> int:
    """V2 for names that one signed byte cannot measure, else V1 (`autoMessageVersionOnTopicLen`)."""
    return MAGIC_V2 if len(topic) > MAX_TOPIC_BYTES else MAGIC_V1


def check_body_size(length: int, max_message_size: int) -> None:
    """Raises `MessageRefused` when a body of `length` bytes exceeds `maxMessageSize`."""
    if length > max_message_size:
        raise MessageRefused(
            PutStatus.MESSAGE_ILLEGAL,
            f"a body of {length} bytes, at most {max_message_size}; raise maxMessageSize in store.conf, or split it",
        )


def must_be_entered(message: StoredMessage, place: Place, physical_offset: int, tags_code: int) -> None:
    """Raises `CorruptRecord` where an entry of a queue is not the one of the message that was found there."""
    own = Place(message.topic, message.queue_id, message.queue_offset)
    is_code = tags_code == java_hash_code(message.tags or "")  # much faster than the whole rule
    if not is_code:
        is_code = not are_wrong_codes(np.array([tags_code]), texts([message.tags or ""]), own.topic).any()
    if message.physical_offset != physical_offset or not is_code or not stands_in(place, own, message.properties):
        raise CorruptRecord(
            f"topic {place.topic}, queue {place.queue_id}, offset {place.queue_offset} (commit log offset "
            f"{physical_offset}): the log holds another message there: topic {own.topic}, queue {own.queue_id}, offset "
            f"{own.queue_offset} (commit log offset {message.physical_offset}), tag {message.tags}, tags code in the "
            f"queue {tags_code}; run 'pyspark-mq verify', or restore the segment from a copy"
        )


def inflated(message: StoredMessage, where: str, max_bytes: int) -> StoredMessage:
    """The message with its body as it was before its producer compressed it. Raises as `decompress`."""
    if not message.sys_flag & SYS_COMPRESSED:
        return message
    body = decompress(message.body, message.sys_flag, where, max_bytes)
    return replace(message, body=body, sys_flag=message.sys_flag & ~SYS_COMPRESSED)  # as RocketMQ's decoder does


def decode_record(record: bytes, where: str, *, check_crc: bool = True) -> StoredMessage:
    """The message of one whole record, its body as it is stored; `where` names it in errors.

    Raises `CorruptRecord` when lengths, magic or CRC (that of the record, or else of its body) do not hold together.
    """

    def wrong(what: str) -> CorruptRecord:
        return CorruptRecord(f"{where}: {what}; run 'pyspark-mq verify', and restore the segment from a copy")

    if len(record) < MIN_RECORD_BYTES:
        raise wrong(f"only {len(record)} bytes")
    sys_flag = int(np.frombuffer(record, RECORD_HEADER, 1)["sys_flag"][0])
    dtype = RECORD_HEADERS[bool(sys_flag & SYS_BORN_HOST_V6)][bool(sys_flag & SYS_STORE_HOST_V6)]
    if len(record) < dtype.itemsize:
        raise wrong(f"only {len(record)} bytes")
    header = dict(zip(dtype.names or (), np.frombuffer(record, dtype, 1)[0].item(), strict=True))
    magic, stored_crc = header["magic"], header["body_crc"]
    if header["total_size"] != len(record):
        raise wrong(f"length {header['total_size']}, expected {len(record)}")
    if magic not in TOPIC_LENGTH_BYTES:
        raise wrong(f"magic {magic & 0xFFFFFFFF:#x}")

    def take(at: int, width: int, what: str) -> tuple[bytes, int]:
        length = int.from_bytes(record[at : at + width], "big", signed=width > 1)
        if not 0 <= length <= len(record) - at - width:
            raise wrong(f"{what} of {length} bytes")
        return record[at + width : at + width + length], at + width + length

    body, end = take(dtype.itemsize - 4, 4, "a body")
    topic, end = take(end, TOPIC_LENGTH_BYTES[magic], "a topic")
    properties_bytes, end = take(end, PROPERTIES_LENGTH_BYTES, "properties")
    if end != len(record):
        raise wrong(f"its parts take {end} bytes of {len(record)}")
    has_crc = _has_property_crc(properties_bytes)
    if check_crc and has_crc and not record.endswith(property_crc(record[:-PROPERTY_CRC_BYTES])):
        raise wrong(f"its CRC is {record[-PROPERTY_CRC_DIGITS - 1 : -1]!r}, which is another's")
    if check_crc and body and not has_crc and (crc := body_crc(body)) != stored_crc:
        raise wrong(f"body CRC {crc:#x}, stored {stored_crc:#x}")
    properties = decode_properties(properties_bytes)
    store_ip, store_port = header["store_ip"].tobytes(), header["store_port"]
    return StoredMessage(
        topic=topic.decode("utf-8", "replace"),
        queue_id=header["queue_id"],
        queue_offset=header["queue_offset"],
        physical_offset=header["physical_offset"],
        msg_id=properties.get(PROPERTY_UNIQ_KEY) or offset_msg_id(store_ip, store_port, header["physical_offset"]),
        body=body,
        properties=properties,
        born_timestamp=header["born_timestamp"],
        store_timestamp=header["store_timestamp"],
        born_host=host_text(header["born_ip"].tobytes(), header["born_port"]),
        store_host=host_text(store_ip, store_port),
        reconsume_times=header["reconsume_times"],
        flag=header["flag"],
        sys_flag=sys_flag,
        body_crc=stored_crc,
        prepared_transaction_offset=header["prepared_transaction_offset"],
    )


def _has_property_crc(properties: bytes) -> bool:
    before, last = properties[:-PROPERTY_CRC_BYTES], properties[-PROPERTY_CRC_BYTES:]
    is_separate = not before or before.endswith(PROPERTY_CRC_END)
    return len(last) == PROPERTY_CRC_BYTES and last.startswith(PROPERTY_CRC_NAME) and is_separate


def offset_msg_id(ip: bytes, port: int, physical_offset: int) -> str:
    """RocketMQ's offsetMsgId: upper-case hex of ip, port and physical offset; 32 or 56 characters."""
    return (ip + struct.pack(">iq", port, physical_offset)).hex().upper()


def offset_msg_ids(ip: bytes, port: int, physical_offsets: npt.NDArray[np.int64]) -> list[str]:
    """`offset_msg_id` of n physical offsets, shape (n,)."""
    host = np.frombuffer(ip + struct.pack(">i", port), np.uint8)
    offsets = physical_offsets.astype(">i8")[:, None].view(np.uint8)
    ids = np.hstack([np.broadcast_to(host, (len(offsets), len(host))), offsets])
    return ids.tobytes().hex(" ", ids.shape[1]).upper().split()


@lru_cache(maxsize=1024)
def host_text(ip: bytes, port: int) -> str:
    """`1.2.3.4:10911` or `[2001:db8::1]:10911`."""
    address = ipaddress.ip_address(ip)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
