"""Lists of messages to records: a few one by one, many through columns, as tables are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa

from store.errors import MessageRefused
from store.format.arrays import arrow, blobs, texts
from store.format.layout import KEY_SEPARATOR, PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS
from store.format.message import Message, encode_messages
from store.format.message_columns import MessageColumns
from store.format.records import Encoding, Records
from store.format.tables import encode_columns

_MANY = 40  # so many take less time through columns
_OWN_NAMES = frozenset((PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_SHARDING_KEY))  # those that messages have fields for


class _OneByOne(Exception):
    """A message is wrong, or has what columns do not say."""


def encode_list(messages: Sequence[Message], queue_ids: Sequence[int], encoding: Encoding, now: int) -> Records:
    """What `encode_messages` makes of the same arguments, sooner."""
    if len(messages) >= _MANY:
        try:
            topics, columns = _columns(messages, now)
            return encode_columns(topics, columns, np.array(queue_ids, np.int64), encoding, now)
        except (_OneByOne, MessageRefused, UnicodeEncodeError, OverflowError):
            pass  # so that the error names the message
    return encode_messages(messages, queue_ids, encoding, now)


def _columns(messages: Sequence[Message], now: int) -> tuple[str | pa.StringArray, MessageColumns]:
    """The topic, or that of each, and the other fields; None for those that no message uses."""
    topics = [message.topic for message in messages]
    flags = [message.flag for message in messages]
    born = [message.born_timestamp for message in messages]
    _need(_are({str}, topics) and _are({int}, flags) and _are({int, type(None)}, born))
    return topics[0] if len(set(topics)) == 1 else texts(topics), MessageColumns(
        body=_bodies([message.body for message in messages]),
        tags=_texts([message.tags for message in messages]),
        keys=_keys([message.keys for message in messages]),
        properties=_maps([message.properties for message in messages]),
        queue_ids=None,
        sharding_keys=_texts([message.sharding_key for message in messages]),
        flags=np.array(flags, np.int64) if any(flags) else None,
        born_timestamps=np.array([now if ms is None else ms for ms in born], np.int64)
        if not _are({type(None)}, born)
        else None,
    )


def _bodies(bodies: list[Any]) -> pa.BinaryArray:
    if _are({bytes}, bodies):
        return blobs(bodies)
    _need(_are({bytes, str}, bodies))
    return blobs([body.encode() if isinstance(body, str) else body for body in bodies])


def _texts(values: list[Any]) -> pa.StringArray | None:
    """Texts, each of which may be None, which counts as an empty one."""
    kinds = set(map(type, values))
    _need(kinds <= {str, type(None)})
    return texts(values if type(None) not in kinds else [value or "" for value in values]) if str in kinds else None


def _keys(keys: list[Any]) -> pa.StringArray | None:
    """One text for each message: its keys with blanks between them."""
    if not _are({tuple}, keys):
        _need(_are({str, tuple, list}, keys))
        keys = [(key,) if isinstance(key, str) else key for key in keys]
    single = list(chain.from_iterable(keys))
    if not single:
        return None
    _need(_are({str}, single) and KEY_SEPARATOR not in "".join(single))
    return texts(single if len(single) == len(keys) and all(keys) else list(map(KEY_SEPARATOR.join, keys)))


def _maps(properties: list[Any]) -> pa.MapArray | None:
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
        raise _OneByOne


def _are(kinds: set[type], values: list[Any]) -> bool:
    """Whether all values are of these types themselves: one that inherits may do anything."""
    return set(map(type, values)) <= kinds
