"""CRC32 of bodies and of records, as RocketMQ's `UtilAll.crc32` returns it: zlib's polynomial without the top bit.

A record may end with one of everything before it, as a property (`enabledAppendPropCRC`); it covers what the append
decided, too.

zlib-ng computes the same numbers three to four times faster than zlib; where it has no build, zlib serves.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.layout import BODY_CRC_MASK, PROPERTY_CRC_DIGITS, PROPERTY_CRC_END, PROPERTY_CRC_NAME
from store.format.strings import cut, flat

_LONG_BODY = 900  # bytes; a shorter one is copied in less time than a view of it takes
_TENS = 10.0 ** np.arange(PROPERTY_CRC_DIGITS)
_COPIED_AT_ONCE = 512  # so few stay in the processor's cache

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32


def body_crc(body: bytes) -> int:
    """The checksum of one body."""
    return int(crc32(body)) & BODY_CRC_MASK


def property_crc(before: bytes) -> bytes:
    """The property that ends a record, whose bytes are `before` up to there."""
    return PROPERTY_CRC_NAME + crc_digits(np.array([body_crc(before)])).tobytes() + PROPERTY_CRC_END


def crc_digits(crcs: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Checksums as a property holds them: decimal digits, the last one first, uint8, shape (n, PROPERTY_CRC_DIGITS)."""
    digits, rest = np.empty((len(crcs), PROPERTY_CRC_DIGITS), np.uint8), crcs.astype(np.uint32)
    for column in digits.T:  # divisions by one number are fast
        column[:] = rest % 10 + ord("0")
        rest //= 10
    return digits


def crcs_of_digits(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The reverse; -1 for what are no digits."""
    values = digits - np.uint8(ord("0"))
    crcs = (values.astype(np.float64) @ _TENS).astype(np.int64)  # exact: ten digits fit
    crcs[(values > 9).any(axis=1)] = -1
    return crcs


def crcs_between(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The checksums of n stretches [start, end) of `data`, in ascending order, shape (n,)."""
    return body_crcs(cut(data, starts, ends - starts))


def body_crcs(bodies: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The checksum of each body, shape (len(bodies),); no nulls."""
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
