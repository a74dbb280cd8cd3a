"""Keys of messages as the index files them: by the hash of `topic#key` (IndexService, IndexFile)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format import compute as pc
from store.format.arrays import arrow, constant, numbers
from store.format.java_hash import java_hash, java_hash_code
from store.format.layout import INDEX_KEY_SEPARATOR, INDEX_TAG_PREFIX, KEY_SEPARATOR
from store.format.strings import flat, lengths

Ints = npt.NDArray[np.int64]
KeyHashes = npt.NDArray[np.int32]

_KEYS_AT_ONCE = 1 << 17
_MAX_INT = (1 << 31) - 1


def key_hash(topic: str, key: str) -> int:
    """The hash under which `key` of `topic` is filed, 0 to 2^31 - 1."""
    hashed = abs(java_hash_code(f"{topic}{INDEX_KEY_SEPARATOR}{key}"))
    return hashed if hashed <= _MAX_INT else 0


def key_hashes(
    topics: str | pa.StringArray,
    unique_keys: pa.StringArray | None,
    keys: pa.StringArray | None,
    tags: pa.StringArray | None = None,
) -> tuple[KeyHashes, Ints]:
    """Hashes of all keys of n messages, in the order in which RocketMQ files them.

    topics: one for all, or one each. unique_keys: property UNIQ_KEY, nullable. keys: property KEYS, separated by
    blanks, nullable. tags: property TAGS, which RocketMQ files since 5.4, nullable. All of length n; None where no
    message has any, or they are not to be filed.
    Returns the hashes, int32, shape (m,), and the message that each belongs to, int64, shape (m,), ascending;
    within a message its UNIQ_KEY comes first, its tag last.
    """
    parts = [_whole(unique_keys)] if unique_keys is not None else []
    parts += [_words(keys)] if keys is not None else []
    parts += [_tags(tags)] if tags is not None else []
    if not parts:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    filed, owners = parts[0]
    if len(parts) > 1:
        owners = np.concatenate([rows for _, rows in parts])
        order = np.argsort(owners, kind="stable")
        filed, owners = pa.concat_arrays([found for found, _ in parts]).take(arrow(order)), owners[order]
    hashes = [
        _hash_names(topics, filed[start : start + _KEYS_AT_ONCE], owners[start : start + _KEYS_AT_ONCE])
        for start in range(0, len(owners), _KEYS_AT_ONCE)
    ]
    return np.concatenate([np.empty(0, np.int32), *hashes]), owners


def _whole(keys: pa.StringArray) -> tuple[pa.StringArray, Ints]:
    """The keys that are there, and the message of each."""
    if not keys.null_count:
        return keys, np.arange(len(keys))
    present = pc.is_valid(keys)
    return keys.filter(present), np.flatnonzero(numbers(present))


def _words(keys: pa.StringArray) -> tuple[pa.StringArray, Ints]:
    """The keys between the blanks, and the message of each."""
    data, bounds = flat(keys)
    if not (data == ord(KEY_SEPARATOR)).any() and (bounds[1:] > bounds[:-1]).all():
        return _whole(keys)
    lists = pc.split_pattern(keys, KEY_SEPARATOR)
    tokens, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
    used = lengths(tokens) > 0
    return tokens.filter(arrow(used)), numbers(parents)[used]


def _tags(tags: pa.StringArray) -> tuple[pa.StringArray, Ints]:
    """What stands where the key would for each tag, and the message of each."""
    found, owners = _whole(tags)
    named = lengths(found) > 0
    prefixed = pc.binary_join_element_wise(constant(INDEX_TAG_PREFIX), found.filter(arrow(named)), constant(""))
    return prefixed, owners[named]


def _hash_names(topics: str | pa.StringArray, keys: pa.StringArray, owners: Ints) -> KeyHashes:
    if isinstance(topics, str):
        return _positive(java_hash(keys, topics + INDEX_KEY_SEPARATOR))
    names = pc.binary_join_element_wise(topics.take(arrow(owners)), keys, constant(INDEX_KEY_SEPARATOR))
    return _positive(java_hash(names))


def _positive(hashes: KeyHashes) -> KeyHashes:
    """abs(), and 0 for the one value that has none."""
    return np.maximum(np.abs(hashes), 0)
