"""Java's `String.hashCode`, of one text and of whole columns: tags codes, slots of the index, the choice of a queue."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import constant, numbers
from store.format.strings import flat

_HASH_FACTOR = 31
_HASH_FACTOR_INVERSE = pow(_HASH_FACTOR, -1, 1 << 32)
_KEPT_POWERS = 1 << 18


@lru_cache(maxsize=1024)
def java_hash_code(text: str) -> int:
    """Java's `String.hashCode`, a signed 32-bit integer over UTF-16 units."""
    data = text.encode("utf-16-le", "surrogatepass")
    hashed = 0
    for unit in struct.unpack(f"<{len(data) // 2}H", data):  # of one short string faster than numpy
        hashed = (_HASH_FACTOR * hashed + unit) & 0xFFFFFFFF
    return hashed - (hashed >> 31 << 32)


def java_hash(strings: pa.StringArray, prefix: str = "") -> npt.NDArray[np.int32]:
    """`java_hash_code(prefix + string)` of every string, int32, shape (len(strings),); 0 for nulls."""
    if len(strings) == 0:
        return np.empty(0, np.int32)
    data, bounds = flat(strings)
    units: npt.NDArray[Any] = data
    if len(data) and data.max() >= 0x80:
        if strings.null_count:  # under which any bytes may stand
            data, bounds = flat(strings.fill_null(constant("")))
        units, bounds = _utf16_units(data, bounds)
    hashes = _hash_units(units.astype(np.uint32), bounds, java_hash_code(prefix))
    if strings.null_count:
        hashes[numbers(strings.is_null())] = 0
    return hashes


def _utf16_units(
    data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """UTF-8 bytes and their bounds as UTF-16 units and theirs: a character of four bytes makes two units."""
    begins = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    units_before = np.concatenate([[0], np.cumsum(begins)])
    return np.frombuffer(data.tobytes().decode().encode("utf-16-le"), "<u2"), units_before[bounds]


def _hash_units(units: npt.NDArray[np.uint32], bounds: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int32]:
    """Hashes of units[bounds[i]:bounds[i+1]], without a loop over strings; `seed` is the hash of what stands before.

    sum(u[k] * 31^(end-1-k)) is 31^(end-1) * sum(u[k] * 31^-k), and 31 has an inverse modulo 2^32: so one running
    sum over all units, differences of it at the bounds, and one multiplication give every hash.
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
    """base^0 to base^(count - 1) modulo 2^32."""
    return _first_powers(base)[:count] if count <= _KEPT_POWERS else _all_powers(base, count)


@lru_cache(maxsize=2)
def _first_powers(base: int) -> npt.NDArray[np.uint32]:
    return _all_powers(base, _KEPT_POWERS)


def _all_powers(base: int, count: int) -> npt.NDArray[np.uint32]:
    factors = np.full(count, base, np.uint32)
    factors[:1] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)
