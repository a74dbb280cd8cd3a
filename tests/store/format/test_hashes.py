from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.hashes import body_crc, body_crcs, crc_digits, crcs_of_digits, key_hash, key_hashes


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicA", "UID0", 641_174_225),
        ("TopicA", "k0", 1_903_240_650),
        ("TopicA", "common", 1_869_674_884),
        ("t", "mzgheyuok", 0),  # Java's hash is -2^31, which has no absolute value
    ],
)
def test_hash_equals_rocketmqs(topic: str, key: str, expected: int) -> None:
    assert key_hash(topic, key) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | st.text(min_size=1), st.none() | st.text()), max_size=8))
def test_hashes_of_many_messages_are_right(messages: list[tuple[str | None, str | None]]) -> None:
    unique, keys = ([message[part] for message in messages] for part in (0, 1))
    expected = [
        (key_hash("t", key), row)
        for row, (own, others) in enumerate(messages)
        for key in [*([] if own is None else [own]), *filter(None, (others or "").split(" "))]
    ]
    hashes, rows = key_hashes("t", pa.array(unique, pa.string()), pa.array(keys, pa.string()))
    assert list(zip(hashes.tolist(), rows.tolist(), strict=True)) == expected


def test_messages_without_keys_have_no_hashes() -> None:
    for columns in [(None, None), (pa.nulls(3, pa.string()), None), (None, pa.array(["", " ", None]))]:
        hashes, rows = key_hashes("t", *columns)
        assert (len(hashes), len(rows)) == (0, 0)


@pytest.mark.parametrize("longest", [1, 100, 5000])
@pytest.mark.parametrize("count", [0, 1, 1200])
def test_checksums_of_many_bodies_equal_single_ones(longest: int, count: int) -> None:
    random = np.random.default_rng(longest)
    bodies = [random.bytes(int(length)) for length in random.integers(0, longest, count)]
    expected = [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]
    assert [body_crc(body) for body in bodies] == expected
    sliced = pa.array([b"before", *bodies, b"after"], pa.binary())[1 : 1 + count]
    assert body_crcs(sliced).tolist() == expected


def test_digits_of_checksums_are_right() -> None:
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
