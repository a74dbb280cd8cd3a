"""A message to put, and its record (MessageExtEncoder)."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from store.format.arrays import cached_if_short
from store.format.columns import FIRST_MS, LAST_MS
from store.format.entering import keys_of, tag_of
from store.format.hashes import body_crc, java_hash_code, key_hash
from store.format.layout import (
    INDEX_TAG_PREFIX,
    KEY_SEPARATOR,
    MAGIC_V1,
    MAGIC_V2,
    MAX_TOPIC_BYTES,
    NO_TAG,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_CRC_BYTES,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    RECORD_HEADER,
    TOPIC_LENGTH_BYTES,
)
from store.format.properties import encode_properties
from store.format.records import EncodedRecord, Encoding
from store.model.errors import MessageRefused, PutStatus

_ROOM_FOR_CRC = bytes(PROPERTY_CRC_BYTES)


@dataclass(frozen=True, slots=True)
class Message:
    """A message to put.

    body: a text is stored as UTF-8.
    tags: one tag, without "|", control characters, or blanks around it.
    keys: texts to find the message by, without blanks; a single text is one key.
    properties: a put drops those that brokers use (`entering.RESERVED`), so that a message that was read can be put
    again.
    queue_id: None lets the store choose: by the hash of `sharding_key` if there is one, otherwise round robin.
    born_timestamp: ms since the epoch, in the years 1 to 9999; None is now.
    delay_level: 1 to 18 delay the delivery by 1, 5, 10, 30 s, 1 to 10, 20, 30 min, 1 h, 2 h. Higher levels count as 18.
    deliver_at: ms since the epoch, at most three days away; a level overrides it.
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
    delay_level: int = 0
    deliver_at: int | None = None

    def all_properties(self) -> dict[str, str]:
        """Return the properties, with tags, keys and sharding key under RocketMQ's names."""
        check_mapping(self.properties)
        if self.tags is not None and not isinstance(self.tags, str):
            raise illegal(f"tags={self.tags!r:.80}: a message has one tag, a text; put more into keys or properties")
        properties = dict(self.properties)
        if self.tags:
            properties[PROPERTY_TAGS] = self.tags
        if keys := KEY_SEPARATOR.join(self._all_keys()):
            properties[PROPERTY_KEYS] = keys
        if self.sharding_key not in (None, ""):
            properties[PROPERTY_SHARDING_KEY] = self.sharding_key
        return properties

    def _all_keys(self) -> Sequence[str]:
        keys = (self.keys,) if isinstance(self.keys, str) else self.keys
        if not isinstance(keys, tuple | list | Sequence):
            raise illegal(f"keys={self.keys!r}: must be a text, or a sequence of texts")
        for key in keys:
            check_key(key)
        return keys


def encode_messages(
    messages: Sequence[Message], queue_ids: Sequence[int], encoding: Encoding, now: int
) -> list[EncodedRecord]:
    """Encode messages. now: ms. Raises `MessageRefused`."""
    return [_encode(message, queue_id, encoding, now) for message, queue_id in zip(messages, queue_ids, strict=True)]


def _encode(message: Message, queue_id: int, encoding: Encoding, now: int) -> EncodedRecord:
    properties, body, topic = message.all_properties(), _bytes(message.body), message.topic.encode()
    check_body_size(len(body), encoding.max_message_size)
    encoded = encode_properties(properties, _ROOM_FOR_CRC if encoding.with_crc else b"")
    magic = topic_magic(message.topic)
    born_ms = now if message.born_timestamp is None else message.born_timestamp
    check_fits("flag", message.flag, 32)
    check_fits("born_timestamp", born_ms, 64)
    if not FIRST_MS <= born_ms <= LAST_MS:
        raise illegal(f"born_timestamp: {born_ms} ms since 1970 is not in the years 1 to 9999")
    check_tag(tag := tag_of(properties))
    topic_length = len(topic).to_bytes(TOPIC_LENGTH_BYTES[magic], "big")
    rest = b"".join((body, topic_length, topic, len(encoded).to_bytes(PROPERTIES_LENGTH_BYTES, "big"), encoded))
    size = RECORD_HEADER.itemsize + len(rest)
    host = encoding.store_host
    # fmt: off
    header = [
        size, magic, body_crc(body), queue_id, message.flag, 0, 0, 0,
        born_ms, host[0], 0, 0, *host, 0, 0, len(body),
    ]
    # fmt: on
    hashes = []
    if encoding.with_keys:
        hashes = [key_hash(message.topic, key) for key in keys_of(properties)]
        if tag and encoding.with_tags:
            hashes.append(key_hash(message.topic, INDEX_TAG_PREFIX + tag))
    return EncodedRecord(header, rest, size, (message.topic, queue_id), java_hash_code(tag), hashes, encoding.with_crc)


def illegal(reason: str) -> MessageRefused:
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
        raise illegal(f"the body cannot be encoded as UTF-8: {error}") from error


def check_mapping(properties: object) -> None:
    if not (type(properties) is dict or isinstance(properties, Mapping)):  # the first check is faster
        raise illegal(f"properties={properties!r:.40}: must be a mapping of texts to texts")


def check_key(key: object) -> None:
    """Raise `MessageRefused` if a key is no text, or has a blank."""
    if not isinstance(key, str):
        raise illegal(f"key {key!r:.40}: must be a text")
    if KEY_SEPARATOR in key:
        raise illegal(
            f"key {key!r}: a key must not contain blanks, because they separate keys. Give several keys as a list"
        )


_NO_TAG = re.compile(NO_TAG)


@cached_if_short
def check_tag(tag: str) -> None:
    """Raise `MessageRefused` for a tag that no subscription can select."""
    if _NO_TAG.search(tag):
        raise illegal(
            f"tag {tag!r}: a message has one tag, and no subscription can name one with '|', control characters, or "
            "blanks around it"
        )


def whole_number(name: str, value: object) -> int:
    """Return an integer. Raises `MessageRefused` for another type, such as "1" or 1.0."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise illegal(f"{name}={value!r}: must be a whole number") from None


def check_fits(name: str, value: object, bits: int) -> None:
    """Raise `MessageRefused` if a number has more than `bits` bits."""
    number = value if type(value) is int else whole_number(name, value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise illegal(f"{name} {value}: must fit a signed {bits}-bit integer")


def topic_magic(topic: str) -> int:
    """Return a record's magic, as RocketMQ's `autoMessageVersionOnTopicLen`."""
    return MAGIC_V2 if len(topic) > MAX_TOPIC_BYTES else MAGIC_V1


def check_body_size(length: int, max_message_size: int) -> None:
    if length > max_message_size:
        raise MessageRefused(
            PutStatus.MESSAGE_ILLEGAL,
            f"the body has {length} bytes, and at most {max_message_size} are allowed. Raise maxMessageSize in "
            "store.conf, or split the body",
        )
