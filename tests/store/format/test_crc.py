"""Checksums of bodies, one and many at once."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest

from store.format.crc import body_crc, body_crcs, crc_digits, crcs_of_digits


@pytest.mark.parametrize("longest", [1, 100, 5000])
@pytest.mark.parametrize("count", [0, 1, 1200])
def test_many_are_as_one(longest: int, count: int) -> None:
    random = np.random.default_rng(longest)
    bodies = [random.bytes(int(length)) for length in random.integers(0, longest, count)]
    expected = [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]
    assert [body_crc(body) for body in bodies] == expected
    sliced = pa.array([b"before", *bodies, b"after"], pa.binary())[1 : 1 + count]
    assert body_crcs(sliced).tolist() == expected


def test_digits_of_checksums() -> None:
    crcs = np.array([0, 1936170889, 2**31 - 1, 10])
    digits = crc_digits(crcs)
    assert [row.tobytes() for row in digits] == [b"0000000000", b"9880716391", b"7463847412", b"0100000000"]
    assert crcs_of_digits(digits).tolist() == crcs.tolist()
    assert crcs_of_digits(
        np.frombuffer(b"988071639:" + b"/" * 10 + b"9999999999", np.uint8).reshape(3, 10)
    ).tolist() == [
        -1,
        -1,
        9_999_999_999,
    ]
