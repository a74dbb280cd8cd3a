"""Checksums of bodies, one and many at once."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest

from store.crc import body_crc, body_crcs


@pytest.mark.parametrize("longest", [1, 100, 5000])
@pytest.mark.parametrize("count", [0, 1, 1200])
def test_many_are_as_one(longest: int, count: int) -> None:
    random = np.random.default_rng(longest)
    bodies = [random.bytes(int(length)) for length in random.integers(0, longest, count)]
    expected = [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]
    assert [body_crc(body) for body in bodies] == expected
    sliced = pa.array([b"before", *bodies, b"after"], pa.binary())[1 : 1 + count]
    assert body_crcs(sliced).tolist() == expected
