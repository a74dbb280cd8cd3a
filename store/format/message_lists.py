"""Lists of messages to records: a few one by one, many through columns, as tables are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa

from store.format.arrays import arrow, blobs, texts
from store.format.columns import FIRST_MS, LAST_MS
from store.format.layout import KEY_SEPARATOR, PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS
from store.format.message import Message, encode_messages
from store.format.message_columns import MessageColumns
from store.format.record import Record
from store.format.records import Encoding, Records
from store.format.tables import encode_columns
from store.model.errors import MessageRefused

MANY = 40  # so many take less time through columns
_OWN_NAMES = frozenset((PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_SHARDING_KEY))  # those that messages have fields for


class NotColumns(Exception):
    """A message is wrong, or has what columns do not say."""


def encode_list(
    messages: Sequence[Message], queue_ids: Sequence[int], encoding: Encoding, now: int
) -> Records | list[Record]:
    """What `encode_messages` makes of the same arguments, but many as columns."""
    if len(messages) >= MANY:
        try:
            topics, columns = _columns(messages, now)
            return encode_columns(topics, columns, np.array(queue_ids, np.int64), encoding, now)
        except (NotColumns, MessageRefused, UnicodeEncodeError, OverflowError):
            pass  # so that the error names the message
    return encode_messages(messages, queue_ids, encoding, now)


def _columns(messages: Sequence[Message], now: int) -> tuple[str | pa.StringArray, MessageColumns]:
    """The topic, or that of each, and the other fields; None for those that no message uses."""
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


def table_of(
    bodies: Sequence[Any],
    tags: Sequence[Any],
    keys: Sequence[Any],
    properties: Sequence[Any],
    queue_ids: Sequence[Any],
    sharding_keys: Sequence[Any],
    flags: Sequence[Any],
    born_timestamps: Sequence[Any],
    delay_levels: Sequence[Any],
    deliver_at: Sequence[Any],
) -> pa.Table:
    """A table of messages, as `append_table` takes it, of the fields of `Message` of each, length n.

    Raises `NotColumns` where a message is wrong, or has what columns do not say.
    """
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
    """int64, length n; None where all are `unused`."""
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
    """Texts, each of which may be None, which counts as an empty one."""
    kinds = set(map(type, values))
    _need(kinds <= {str, type(None)})
    return texts(values if type(None) not in kinds else [value or "" for value in values]) if str in kinds else None


def _keys(keys: Sequence[Any]) -> pa.StringArray | None:
    """One text for each message: its keys with blanks between them."""
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
    """Whether all values are of these types themselves: one that inherits may do anything."""
    return set(map(type, values)) <= kinds
