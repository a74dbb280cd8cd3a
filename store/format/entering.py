"""Which queues and index keys a record enters.

A message that this store appends enters only its own queue and the index. Topics and properties that would change this
are rejected or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, constant, numbers, pc, texts
from store.format.hashes import java_hash
from store.format.layout import (
    CQ_EXTENSION_BELOW,
    KEY_SEPARATOR,
    LIGHT_PREFIX,
    LIGHT_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_DELAY,
    PROPERTY_DELIVER_AT,
    PROPERTY_KEYS,
    PROPERTY_LIGHT_OFFSETS,
    PROPERTY_LIGHT_QUEUES,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_DELAYS_MS,
    SCHEDULE_TOPIC,
    SYS_INNER_BATCH,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
)
from store.format.properties import PropertyColumns
from store.format.topic_names import check_topic_name, is_folder_name
from store.model.errors import MessageRefused, PutStatus

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


RESERVED = frozenset(
    {
        PROPERTY_LIGHT_QUEUES,
        PROPERTY_LIGHT_OFFSETS,
        PROPERTY_DELAY,
        PROPERTY_DELIVER_AT,
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TRAN_MSG",
        "INNER_NUM",
        "INNER_BASE",
        "POP_CK",
        PROPERTY_CRC,
    }
)
"""Set by a broker or this store. A put drops them, because a message that was read may have some."""
_RESERVED = texts(sorted(RESERVED))

# TopicValidator rejects these from clients, the last two since 5.4. A broker delivers from TIMER_TOPIC to any topic.
NOT_FOR_PUTTING = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
)


@lru_cache(maxsize=1024)
def check_topic(topic: str) -> None:
    """Raise `MessageRefused` for a broker's own topic, `InvalidTopic` for a bad name."""
    check_topic_name(topic)
    if topic in NOT_FOR_PUTTING:
        raise _illegal(
            f"topic {topic} belongs to RocketMQ, whose brokers act on its messages. Put into a topic of yours"
        )


def without_reserved(maps: pa.MapArray) -> pa.MapArray:
    names, values = pairs(maps)
    kept = numbers(pc.invert(pc.is_in(names, _RESERVED)))
    if kept.all():
        return maps
    ends = np.concatenate(([0], np.cumsum(kept))).astype(np.int32)
    offsets = ends[numbers(maps.offsets) - maps.offsets[0].as_py()]
    mask = arrow(kept)
    return pa.MapArray.from_arrays(arrow(offsets), names.filter(mask), values.filter(mask), mask=maps.is_null())


def pairs(maps: pa.MapArray) -> tuple[pa.StringArray, pa.StringArray]:
    """Return the keys and the values of all maps, concatenated. maps: may be a slice."""
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return maps.keys.slice(first, last - first), maps.items.slice(first, last - first)


def _illegal(reason: str) -> MessageRefused:
    return MessageRefused(PutStatus.MESSAGE_ILLEGAL, reason)


def in_own_queue(sys_flags: Ints) -> Mask:
    outside = np.isin(sys_flags & SYS_TRANSACTION_MASK, (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK))
    inside: Mask = ~outside & (sys_flags & SYS_INNER_BATCH == 0)
    return inside


def tags_codes(tags: pa.StringArray) -> Ints:
    """Return Java hashes, 0 without a tag."""
    return java_hash(tags).astype(np.int64)


def are_wrong_codes(codes: Ints, tags: pa.StringArray, topic: str) -> Mask:
    """Return a mask of tags codes that do not match the tags.

    Codes that cannot be checked are not wrong: delivery times, addresses in a queue extension, hashes of tags that are
    not UTF-8 (RocketMQ may decode them differently).
    """
    wrong: Mask = codes != tags_codes(tags)
    if wrong.any():
        wrong &= (codes > CQ_EXTENSION_BELOW) & (topic != SCHEDULE_TOPIC)
        wrong &= ~numbers(pc.match_substring(tags.fill_null(constant("")), "\ufffd"))
    return wrong


def delivery_times(levels: pa.StringArray, store_timestamps: Ints) -> Ints:
    """Return delivery times in ms, 0 for an invalid level. levels: property DELAY."""
    times = np.zeros(len(levels), np.int64)
    for row, level in enumerate(levels.to_pylist()):
        number = _number(level or "")
        if number:
            times[row] = store_timestamps[row] + SCHEDULE_DELAYS_MS[min(number, len(SCHEDULE_DELAYS_MS)) - 1]
    return times


class MessagePlace(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int


class QueueEntry(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int

    @property
    def place(self) -> MessagePlace:
        return MessagePlace(self.topic, self.queue_id, self.queue_offset)

    def __str__(self) -> str:
        return (
            f"topic {self.topic}, queue {self.queue_id}, offset {self.queue_offset} "
            f"(commit log offset {self.physical_offset})"
        )


def light_places(properties: PropertyColumns, topics: list[str], topic_ids: Ints) -> Iterator[tuple[int, MessagePlace]]:
    """Yield a row and a place for each light queue that a record is in. topic_ids: indices into `topics`."""
    queues = properties.value(PROPERTY_LIGHT_QUEUES)
    if queues.null_count == len(queues):
        return
    offsets = properties.value(PROPERTY_LIGHT_OFFSETS)
    for row in np.flatnonzero(numbers(queues.is_valid())).tolist():
        for place in _light_places(topics[topic_ids[row]], queues[row].as_py(), offsets[row].as_py() or ""):
            yield row, place


def is_place_of(place: MessagePlace, own: MessagePlace, properties: Mapping[str, str]) -> bool:
    """Return whether a record is at `place`: its own place, or one in a light queue."""
    names, offsets = properties.get(PROPERTY_LIGHT_QUEUES, ""), properties.get(PROPERTY_LIGHT_OFFSETS, "")
    return place == own or place in _light_places(own.topic, names, offsets)


def are_in_light_queue(properties: PropertyColumns, topic: str, queue_offsets: Ints) -> Mask:
    texts = (properties.value(name) for name in (PROPERTY_LIGHT_QUEUES, PROPERTY_LIGHT_OFFSETS))
    trimmed = (pc.utf8_rtrim(each.fill_null(constant("")), LIGHT_SEPARATOR) for each in texts)
    queues, offsets = (pc.split_pattern(each, LIGHT_SEPARATOR) for each in trimmed)
    owners, names = numbers(pc.list_parent_indices(queues)), pc.list_flatten(queues)
    first_name, first_offset = (numbers(lists.offsets)[:-1] for lists in (queues, offsets))
    among = np.flatnonzero(numbers(pc.equal(names, constant(topic))))
    rows = owners[among]
    number = among - first_name[rows]
    has_offset = numbers(pc.equal(*map(pc.list_value_length, (queues, offsets))))[rows]
    among, rows, number = among[has_offset], rows[has_offset], number[has_offset]
    found = pc.list_flatten(offsets).take(arrow(first_offset[rows] + number))
    same = numbers(pc.equal(found, arrow(queue_offsets[rows]).cast(pa.string()))).copy()
    for each in np.flatnonzero(~same).tolist():  # such as "07": clients can write it, brokers do not
        same[each] = _number(found[each].as_py()) == queue_offsets[rows[each]]
    stands = np.zeros(len(queue_offsets), np.bool_)
    stands[rows[same]] = True
    return stands


def _light_places(topic: str, names: str, offsets: str) -> Iterator[MessagePlace]:
    """Yield a record's places in light queues.

    A client may set both properties, so names that are no light queues are ignored. With different lengths both are
    ignored, as in RocketMQ.
    """
    if not names or not _has_light_queues(topic):
        return
    listed, texts = (text.rstrip(LIGHT_SEPARATOR).split(LIGHT_SEPARATOR) for text in (names, offsets))
    if len(listed) != len(texts):
        return
    for name, text in zip(listed, texts, strict=True):
        offset = _number(text)
        if offset is not None and name.startswith(LIGHT_PREFIX) and is_folder_name(name):
            yield MessagePlace(name, 0, offset)


def _has_light_queues(topic: str) -> bool:
    return not topic.startswith((RETRY_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX)) and topic != SCHEDULE_TOPIC


def _number(text: str) -> int | None:
    if not text.isdecimal():
        return None
    # `int` fails for thousands of digits.
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= _LONG_DIGITS and int(digits) < 1 << 63 else None


_LONG_DIGITS = 19


def in_index(sys_flags: Ints) -> Mask:
    filed: Mask = sys_flags & SYS_TRANSACTION_MASK != SYS_TRANSACTION_ROLLBACK
    return filed


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """Return the keys in RocketMQ's order."""
    keys = (properties.get(PROPERTY_UNIQ_KEY), *properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR))
    return [key for key in keys if key]


def tag_of(properties: Mapping[str, str]) -> str:
    return properties.get(PROPERTY_TAGS, "")
