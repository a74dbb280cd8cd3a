"""Hashes of keys are RocketMQ's, for one and for many."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.key_hashes import key_hash, key_hashes


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicA", "UID0", 641_174_225),
        ("TopicA", "k0", 1_903_240_650),
        ("TopicA", "common", 1_869_674_884),
        ("t", "mzgheyuok", 0),  # Java's hash is -2^31, which has no absolute value
    ],
)
def test_hash_is_rocketmqs(topic: str, key: str, expected: int) -> None:
    assert key_hash(topic, key) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | st.text(min_size=1), st.none() | st.text()), max_size=8))
def test_hashes_of_many_messages(messages: list[tuple[str | None, str | None]]) -> None:
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
