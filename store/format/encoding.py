"""Encode messages, given as columns or as lists."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, blobs, constant, flat, lengths, numbers, pc, texts
from store.format.columns import FIRST_MS, LAST_MS
from store.format.entering import pairs, tags_codes
from store.format.hashes import body_crcs, key_hashes
from store.format.layout import (
    KEY_SEPARATOR,
    MAX_PROPERTIES_BYTES,
    MAX_QUEUES,
    NAME_VALUE_SEPARATOR,
    NO_TAG,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_CRC_BYTES,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_HEADER,
    TOPIC_LENGTH_BYTES,
)
from store.format.message import Message, check_body_size, check_fits, check_tag, encode_messages, illegal, topic_magic
from store.format.message_columns import MessageColumns
from store.format.properties import LIKE_A_LOST_SECTOR, PropertyColumns, properties_too_large, too_many_zeros
from store.format.records import EncodedRecord, EncodedRecords, Encoding, rows_as_binary
from store.model.errors import MessageRefused

_EMPTY, _NOTHING = constant(""), constant(b"")
_CRC_BYTES = 2 << 20  # their checksums take half a millisecond
_CRC_ROWS = 4 << 10

_SUSPICIOUS_IN_TAGS = np.isin(np.arange(256), [*range(ord(" ") + 1), ord("|"), 0x7F, 0xC2])  # C2: U+0080 to U+00BF

Ints = npt.NDArray[np.int64]

MANY = 40  # from here on, columns are faster
_OWN_NAMES = frozenset((PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_SHARDING_KEY))  # they are fields of `Message`


def encode_columns(
    topics: str | pa.StringArray,
    messages: MessageColumns,
    queue_ids: Ints,
    encoding: Encoding,
    now: int,
) -> EncodedRecords:
    """Encode n messages in order. topics: one for all, or n. now: ms.

    Raises `MessageRefused` for too large messages, and for content that could not be read again.
    """
    count = len(messages)
    body_lengths = lengths(messages.body)
    check_body_size(int(body_lengths.max(initial=0)), encoding.max_message_size)
    texts, values = _encode_properties(messages)
    texts[-1] += bytes(PROPERTY_CRC_BYTES) if encoding.with_crc else b""
    properties_lengths = sum(map(lengths, values), np.full(count, sum(map(len, texts))))
    if properties_lengths.max(initial=0) > MAX_PROPERTIES_BYTES:
        raise properties_too_large(int(properties_lengths.max()))
    named = RecordTopics.of(topics)
    middle = _between_body_and_properties(named.same, properties_lengths, texts[0])
    sizes = RECORD_HEADER.itemsize + body_lengths + middle.shape[1] - len(texts[0]) + properties_lengths
    sizes += sum(map(lengths, named.each))
    headers = _headers(named.magic, messages, sizes, queue_ids, encoding, now)
    properties = [piece for pair in zip(values, texts[1:], strict=True) for piece in pair if len(piece)]
    tags, keys, unique_keys = messages.tags, messages.keys, None
    if messages.properties is not None:  # which may also have tags and keys
        names = (PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_UNIQ_KEY)
        tags, keys, unique_keys = map(PropertyColumns(values[0]).value, names)
    _check_tags(tags)
    filed = (unique_keys, keys, tags if encoding.with_tags else None) if encoding.with_keys else (None, None, None)
    hashes, rows = key_hashes(topics, *filed)
    destinations, queues = named.destinations(queue_ids)
    return EncodedRecords(
        headers=headers,
        rests=(messages.body, *named.each, rows_as_binary(middle), *properties),
        sizes=sizes,
        queues=queues,
        destinations=destinations,
        tags_codes=np.zeros(count, np.int64) if tags is None else tags_codes(tags),
        key_hashes=hashes,
        key_rows=rows,
        with_crc=encoding.with_crc,
    )


class RecordTopics(NamedTuple):
    """The topics of n records.

    names: the distinct topics. which: each record's index in them, or 0 for all. magic: one for all, or n. each, same:
    the bytes between body and properties: first `each` (length n), then `same` in all records.
    """

    names: list[str]
    which: Ints | int
    magic: Ints | int
    each: list[pa.BinaryArray]
    same: bytes

    @staticmethod
    def of(topics: str | pa.StringArray) -> RecordTopics:
        if isinstance(topics, str):
            return RecordTopics([topics], 0, topic_magic(topics), [], _topic_field(topics))
        encoded = topics.dictionary_encode()
        names, which = encoded.dictionary.to_pylist(), numbers(encoded.indices).astype(np.int64)
        fields = blobs(list(map(_topic_field, names))).take(encoded.indices)
        return RecordTopics(names, which, np.array(list(map(topic_magic, names)))[which], [fields], b"")

    def destinations(self, queue_ids: Ints) -> tuple[list[tuple[str, int]], npt.NDArray[np.int32]]:
        """Return the distinct (topic, queue id) pairs, and each record's index in them."""
        pairs = queue_ids + MAX_QUEUES * self.which
        distinct = np.flatnonzero(np.bincount(pairs)) if len(self.names) == 1 else np.unique(pairs)
        found = [divmod(pair, MAX_QUEUES) for pair in distinct.tolist()]
        queues = np.searchsorted(distinct, pairs).astype(np.int32)
        return [(self.names[name], queue_id) for name, queue_id in found], queues


def _topic_field(topic: str) -> bytes:
    name = topic.encode()
    return len(name).to_bytes(TOPIC_LENGTH_BYTES[topic_magic(topic)], "big") + name


def _headers(
    magic: Ints | int,
    messages: MessageColumns,
    sizes: Ints,
    queue_ids: Ints,
    encoding: Encoding,
    now: int,
) -> npt.NDArray[np.void]:
    same = np.zeros(1, RECORD_HEADER)
    same["born_timestamp"] = now
    ip, same["store_port"] = encoding.store_host
    same["born_ip"] = same["store_ip"] = np.frombuffer(ip, np.uint8)
    headers = np.repeat(same, len(messages))
    headers["total_size"], headers["magic"] = sizes, magic
    headers["body_crc"] = _crcs(messages.body)
    headers["queue_id"] = queue_ids
    headers["body_length"] = lengths(messages.body)
    if messages.born_timestamps is not None:
        headers["born_timestamp"] = messages.born_timestamps
    if messages.flags is not None:
        for flag in (messages.flags.min(initial=0), messages.flags.max(initial=0)):
            check_fits("flag", flag, 32)
        headers["flag"] = messages.flags
    return headers


def _crcs(bodies: pa.BinaryArray) -> Ints:
    crcs = np.empty(len(bodies), np.int64)
    rows = max(1, min(_CRC_ROWS, len(bodies) * _CRC_BYTES // max(1, int(lengths(bodies).sum()))))
    for first in range(0, len(bodies), rows):
        if first:
            time.sleep(0)  # releases the GIL for the thread that appends the previous piece
        crcs[first : first + rows] = body_crcs(bodies[first : first + rows])
    return crcs


def _between_body_and_properties(before: bytes, properties_lengths: Ints, text: bytes) -> npt.NDArray[np.uint8]:
    row = np.frombuffer(before + bytes(PROPERTIES_LENGTH_BYTES) + text, np.uint8)
    middle = np.tile(row, (len(properties_lengths), 1))
    lengths = properties_lengths.astype(">i2").view(np.uint8).reshape(-1, PROPERTIES_LENGTH_BYTES)
    middle[:, len(before) : len(before) + PROPERTIES_LENGTH_BYTES] = lengths
    return middle


def _encode_properties(messages: MessageColumns) -> tuple[list[bytes], list[pa.BinaryArray]]:
    """Return k + 1 texts common to all messages, and k columns of values between them."""
    own = {
        PROPERTY_TAGS: messages.tags,
        PROPERTY_KEYS: messages.keys,
        PROPERTY_SHARDING_KEY: messages.sharding_keys,
    }
    texts, values = [b""], []
    for name, column in own.items():
        if column is not None:
            before, value, after = encode_property(name, column)
            texts[-1] += before
            texts.append(after)
            values.append(value)
    if messages.properties is None:
        return texts, values
    pieces = [piece for pair in zip(map(constant, texts), [*values, _NOTHING], strict=True) for piece in pair]
    encoded = _encode_map(messages.properties).cast(pa.binary())
    return [b"", b""], [pc.binary_join_element_wise(encoded, *pieces, _NOTHING)]


def encoded_properties(messages: MessageColumns) -> pa.BinaryArray:
    """Return the encoded properties of n messages. Raises `MessageRefused`."""
    texts, values = _encode_properties(messages)
    every = pa.repeat(constant(texts[0]), len(messages))
    pieces = [piece for value, text in zip(values, texts[1:], strict=True) for piece in (value, constant(text))]
    encoded = pc.binary_join_element_wise(every, *pieces, _NOTHING)
    if (longest := int(lengths(encoded).max(initial=0))) > MAX_PROPERTIES_BYTES:
        raise properties_too_large(longest)
    _check_tags(messages.tags if messages.properties is None else PropertyColumns(encoded).value(PROPERTY_TAGS))
    return encoded


def encode_property(name: str, values: pa.StringArray) -> tuple[bytes, pa.BinaryArray, bytes]:
    """Encode a property as prefix, n values and suffix. Null and empty values become "", as in RocketMQ."""
    _check_separators(name, values)
    before, after = name.encode() + bytes([NAME_VALUE_SEPARATOR]), bytes([PROPERTY_SEPARATOR])
    encoded = values.cast(pa.binary())
    if not values.null_count and lengths(values).all():
        return before, encoded, after
    entry = pc.binary_join_element_wise(constant(before), encoded, constant(after), _NOTHING)
    return b"", pc.if_else(_are_missing(values), _NOTHING, entry), b""


def _are_missing(values: pa.StringArray) -> pa.BooleanArray:
    return arrow((lengths(values) == 0) | numbers(values.is_null()))


def _encode_map(properties: pa.MapArray) -> pa.StringArray:
    offsets = properties.offsets
    names, values = pairs(properties)
    _check_separators("properties", names)
    _check_separators("properties", values)
    if not lengths(names).all():
        raise illegal("properties: a name must not be empty")
    between, after = constant(chr(NAME_VALUE_SEPARATOR)), constant(chr(PROPERTY_SEPARATOR))
    entry = pc.binary_join_element_wise(names, between, values, after, _EMPTY)
    kept = pc.if_else(_are_missing(values), _EMPTY, entry)
    lists = pa.ListArray.from_arrays(
        pc.subtract(offsets, offsets[0]), kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept
    )
    return pc.if_else(properties.is_null(), _EMPTY, pc.binary_join(lists, _EMPTY))


def _check_separators(name: str, values: pa.StringArray) -> None:
    data, _ = flat(values)
    if not (data <= max(NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)).any():
        return
    if pc.any(pc.match_substring_regex(values, "[\x01\x02]")).as_py():
        raise illegal(f"{name}: no name or value may contain the separators \\x01 or \\x02")
    if pc.any(pc.match_substring(values, LIKE_A_LOST_SECTOR)).as_py():
        raise too_many_zeros(name)


def _check_tags(tags: pa.StringArray | None) -> None:
    if tags is None or not _SUSPICIOUS_IN_TAGS[flat(tags)[0]].any():
        return
    for tag in tags.filter(pc.match_substring_regex(tags, NO_TAG))[:1].to_pylist():
        check_tag(tag)


class NotColumns(Exception):
    """A message is invalid, or cannot be expressed in columns."""


def encode_list(
    messages: Sequence[Message], queue_ids: Sequence[int], encoding: Encoding, now: int
) -> EncodedRecords | list[EncodedRecord]:
    """Encode messages as `encode_messages`; many are encoded as columns, which is faster."""
    if len(messages) >= MANY:
        try:
            topics, columns = _columns(messages, now)
            return encode_columns(topics, columns, np.array(queue_ids, np.int64), encoding, now)
        except (NotColumns, MessageRefused, UnicodeEncodeError, OverflowError):
            pass
    return encode_messages(messages, queue_ids, encoding, now)


def _columns(messages: Sequence[Message], now: int) -> tuple[str | pa.StringArray, MessageColumns]:
    topics = [message.topic for message in messages]
    flags = [message.flag for message in messages]
    born_ms = [message.born_timestamp for message in messages]
    _need(_are({str}, topics) and _are({int}, flags) and _are({int, type(None)}, born_ms))
    _need(_are({type(None)}, born_ms) or all(ms is None or FIRST_MS <= ms <= LAST_MS for ms in born_ms))
    return topics[0] if len(set(topics)) == 1 else texts(topics), MessageColumns(
        body=_bodies([message.body for message in messages]),
        tags=_texts([message.tags for message in messages]),
        keys=_keys([message.keys for message in messages]),
        properties=_maps([message.properties for message in messages]),
        queue_ids=None,
        sharding_keys=_texts([message.sharding_key for message in messages]),
        flags=np.array(flags, np.int64) if any(flags) else None,
        born_timestamps=np.array([now if ms is None else ms for ms in born_ms], np.int64)
        if not _are({type(None)}, born_ms)
        else None,
    )


def table_of(fields: Sequence[Sequence[Any]]) -> pa.Table:
    """Return a table for `append_table`. Raises `NotColumns`.

    fields: those of `Message` in order, without the topic, n values each.
    """
    bodies, tags, keys, properties, queue_ids, sharding_keys, flags, born_timestamps, delay_levels, deliver_at = fields
    try:
        columns = {
            "body": _bodies(bodies),
            "tags": _texts(tags),
            "keys": _keys(keys),
            "properties": _maps(properties),
            "queueId": _integers(queue_ids, None),
            "shardingKey": _texts(sharding_keys),
            "flag": _integers(flags, 0),
            "bornTimestamp": _integers(born_timestamps, None),
            "delayLevel": _integers(delay_levels, 0),
            "deliverAt": _integers(deliver_at, None),
        }
    except (UnicodeEncodeError, OverflowError) as error:
        raise NotColumns from error
    used = {name: column for name, column in columns.items() if column is not None}
    return pa.Table.from_arrays(list(used.values()), names=list(used))


def _integers(values: Sequence[Any], unused: int | None) -> pa.Array | None:
    if _are({type(unused)}, values) and (unused is None or not any(values)):
        return None
    _need(_are({int}, values))
    return arrow(np.array(values, np.int64))


def _bodies(bodies: Sequence[Any]) -> pa.BinaryArray:
    if _are({bytes}, bodies):
        return blobs(bodies)
    _need(_are({bytes, str}, bodies))
    return blobs([body.encode() if isinstance(body, str) else body for body in bodies])


def _texts(values: Sequence[Any]) -> pa.StringArray | None:
    kinds = set(map(type, values))
    _need(kinds <= {str, type(None)})
    return texts(values if type(None) not in kinds else [value or "" for value in values]) if str in kinds else None


def _keys(keys: Sequence[Any]) -> pa.StringArray | None:
    if _are({str}, keys):
        _need(KEY_SEPARATOR not in "".join(keys))
        return texts(keys)
    if not _are({tuple}, keys):
        _need(_are({str, tuple, list}, keys))
        keys = [(key,) if isinstance(key, str) else key for key in keys]
    single = list(chain.from_iterable(keys))
    if not single:
        return None
    _need(_are({str}, single) and KEY_SEPARATOR not in "".join(single))
    return texts(single if len(single) == len(keys) and all(keys) else list(map(KEY_SEPARATOR.join, keys)))


def _maps(properties: Sequence[Any]) -> pa.MapArray | None:
    _need(_are({dict}, properties))
    if not any(properties):
        return None
    names = list(chain.from_iterable(properties))
    values = list(chain.from_iterable(map(dict.values, properties)))
    _need(_are({str}, names) and _are({str}, values) and _OWN_NAMES.isdisjoint(names))
    bounds = np.fromiter(accumulate(map(len, properties), initial=0), np.int32, len(properties) + 1)
    return pa.MapArray.from_arrays(arrow(bounds), texts(names), texts(values))


def _need(holds: bool) -> None:
    if not holds:
        raise NotColumns


def _are(kinds: set[type], values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= kinds
