"""RocketMQ's hashes and checksums.

`java_hash` is Java's `String.hashCode`; `key_hashes` hashes `topic#key` (IndexService); `body_crc` is `UtilAll.crc32`,
zlib's CRC without the top bit.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, cached_if_short, constant, cut, flat, lengths, numbers, pc
from store.format.layout import (
    BODY_CRC_MASK,
    INDEX_KEY_SEPARATOR,
    INDEX_TAG_PREFIX,
    KEY_SEPARATOR,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_END,
    PROPERTY_CRC_NAME,
)

_HASH_FACTOR = 31
_HASH_FACTOR_INVERSE = pow(_HASH_FACTOR, -1, 1 << 32)
_KEPT_POWERS = 1 << 18

Ints = npt.NDArray[np.int64]
KeyHashes = npt.NDArray[np.int32]
_KEYS_AT_ONCE = 1 << 17
_MAX_INT = (1 << 31) - 1
_LONG_BODY = 900  # bytes; a copy of a shorter body is faster than a view
_TENS = 10.0 ** np.arange(PROPERTY_CRC_DIGITS)
_COPIED_AT_ONCE = 512  # bodies that fit the CPU cache
try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32


@cached_if_short
def java_hash_code(text: str) -> int:
    """Return Java's hash: a signed 32-bit integer over UTF-16 units."""
    data = text.encode("utf-16-le", "surrogatepass")
    hashed = 0
    for unit in struct.unpack(f"<{len(data) // 2}H", data):  # faster than numpy for short strings
        hashed = (_HASH_FACTOR * hashed + unit) & 0xFFFFFFFF
    return hashed - (hashed >> 31 << 32)


def java_hash(strings: pa.StringArray, prefix: str = "") -> npt.NDArray[np.int32]:
    """Return `java_hash_code(prefix + string)` of each string; 0 for nulls."""
    if len(strings) == 0:
        return np.empty(0, np.int32)
    data, bounds = flat(strings)
    units: npt.NDArray[Any] = data
    if len(data) and data.max() >= 0x80:
        if strings.null_count:  # which may have any bytes
            data, bounds = flat(strings.fill_null(constant("")))
        units, bounds = _utf16_units(data, bounds)
    hashes = _hash_units(units.astype(np.uint32), bounds, java_hash_code(prefix))
    if strings.null_count:
        hashes[numbers(strings.is_null())] = 0
    return hashes


def _utf16_units(
    data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    begins = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    units_before = np.concatenate([[0], np.cumsum(begins)])
    return np.frombuffer(data.tobytes().decode().encode("utf-16-le"), "<u2"), units_before[bounds]


def _hash_units(units: npt.NDArray[np.uint32], bounds: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int32]:
    """Hash each units[bounds[i]:bounds[i+1]]. seed: the hash of a common prefix.

    sum(u[k] * 31^(end-1-k)) is 31^(end-1) * sum(u[k] * 31^-k), and 31 has an inverse modulo 2^32. So one cumulative
    sum, its differences at the bounds, and one multiplication give all hashes.
    """
    count = len(units)
    sums = np.zeros(count + 1, np.uint32)
    np.cumsum(units * _powers(_HASH_FACTOR_INVERSE, count), dtype=np.uint32, out=sums[1:])
    at_bounds, powers = sums[bounds], _powers(_HASH_FACTOR, count + 1)
    hashes = (at_bounds[1:] - at_bounds[:-1]) * powers[bounds[1:]]
    hashes *= np.uint32(_HASH_FACTOR_INVERSE)
    if seed:
        hashes += np.uint32(seed & 0xFFFFFFFF) * powers[bounds[1:] - bounds[:-1]]
    return hashes.view(np.int32)


def _powers(base: int, count: int) -> npt.NDArray[np.uint32]:
    return _first_powers(base)[:count] if count <= _KEPT_POWERS else _all_powers(base, count)


@lru_cache(maxsize=2)
def _first_powers(base: int) -> npt.NDArray[np.uint32]:
    return _all_powers(base, _KEPT_POWERS)


def _all_powers(base: int, count: int) -> npt.NDArray[np.uint32]:
    factors = np.full(count, base, np.uint32)
    factors[:1] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


def key_hash(topic: str, key: str) -> int:
    """Return the index hash of a key, from 0 to 2^31 - 1."""
    hashed = abs(java_hash_code(f"{topic}{INDEX_KEY_SEPARATOR}{key}"))
    return hashed if hashed <= _MAX_INT else 0


def key_hashes(
    topics: str | pa.StringArray,
    unique_keys: pa.StringArray | None,
    keys: pa.StringArray | None,
    tags: pa.StringArray | None = None,
) -> tuple[KeyHashes, Ints]:
    """Return m index hashes of n messages, and the message of each, ascending.

    topics: one for all, or n. keys: separated by blanks. All are nullable. A message's unique key comes first, its tag
    last, as in RocketMQ.
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
    if not keys.null_count:
        return keys, np.arange(len(keys))
    present = pc.is_valid(keys)
    return keys.filter(present), np.flatnonzero(numbers(present))


def _words(keys: pa.StringArray) -> tuple[pa.StringArray, Ints]:
    data, bounds = flat(keys)
    if not (data == ord(KEY_SEPARATOR)).any() and (bounds[1:] > bounds[:-1]).all():
        return _whole(keys)
    lists = pc.split_pattern(keys, KEY_SEPARATOR)
    tokens, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
    used = lengths(tokens) > 0
    return tokens.filter(arrow(used)), numbers(parents)[used]


def _tags(tags: pa.StringArray) -> tuple[pa.StringArray, Ints]:
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
    """Return the absolute values of hashes, 0 for -2^31."""
    return np.maximum(np.abs(hashes), 0)


def body_crc(body: bytes) -> int:
    return int(crc32(body)) & BODY_CRC_MASK


def property_crc(before: bytes) -> bytes:
    """Return a record's CRC property. before: the record's other bytes."""
    return PROPERTY_CRC_NAME + crc_digits(np.array([body_crc(before)])).tobytes() + PROPERTY_CRC_END


def crc_digits(crcs: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return decimal digits, the last first, shape (n, PROPERTY_CRC_DIGITS)."""
    digits, rest = np.empty((len(crcs), PROPERTY_CRC_DIGITS), np.uint8), crcs.astype(np.uint32)
    for column in digits.T:  # numpy divides faster by a scalar
        column[:] = rest % 10 + ord("0")
        rest //= 10
    return digits


def crcs_of_digits(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Invert `crc_digits`; -1 for bytes that are no digits."""
    values = digits - np.uint8(ord("0"))
    crcs = (values.astype(np.float64) @ _TENS).astype(np.int64)  # a float64 has 15 digits
    crcs[(values > 9).any(axis=1)] = -1
    return crcs


def crcs_between(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the CRCs of ranges [start, end), which must ascend."""
    return body_crcs(cut(data, starts, ends - starts))


def body_crcs(bodies: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the CRC of each body. bodies: no nulls."""
    crcs = np.empty(len(bodies), np.int64)
    data, bounds = flat(bodies)
    if len(data) > _LONG_BODY * len(bodies):
        view, ends = data.data, bounds.tolist()
        crcs[:] = [crc32(view[start:end]) for start, end in pairwise(ends)]
    else:
        for first in range(0, len(bodies), _COPIED_AT_ONCE):
            some = bodies[first : first + _COPIED_AT_ONCE]
            crcs[first : first + len(some)] = list(map(crc32, some.to_pylist()))
    return crcs & BODY_CRC_MASK
