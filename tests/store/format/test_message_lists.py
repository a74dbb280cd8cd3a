"""Many messages through columns: the same records, and the same refusals, as one by one."""

from __future__ import annotations

from collections import UserDict
from dataclasses import replace
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import Message, MessageRefused
from store.format.columns import FIRST_MS, LAST_MS
from store.format.message import encode_messages
from store.format.message_lists import encode_list
from store.format.record import as_columns
from store.format.records import Encoding, Records
from tests.store.format.test_message import KEY, TAG, TEXT, messages

MANY = 64
NOW = 1_700_000_000_000
ENCODING = Encoding((bytes([127, 0, 0, 1]), 10911), max_message_size=1000)


class Tag(StrEnum):
    PAID = "paid"


def many(rows: list[Message]) -> list[Message]:
    """As many as go through columns: the same ones over and over."""
    return rows * -(-MANY // len(rows))


def outcome(encode: Any, rows: list[Message], encoding: Encoding) -> Any:
    """All that an append sees of the records, or the refusal."""
    try:
        records = as_columns(encode(rows, [row.queue_id or 0 for row in rows], encoding, NOW))
    except MessageRefused as refusal:
        return str(refusal), refusal.status
    return (
        bytes(records.encoded(0, len(rows))),
        bytes(records.encoded(len(rows) // 2, len(rows))),
        records.sizes.tolist(),
        [records.destinations[queue] for queue in records.queues],
        sorted(records.destinations),
        records.tags_codes.tolist(),
        records.key_hashes.tolist(),
        records.key_rows.tolist(),
    )


ODD = {
    "body": st.sampled_from(["text \u00e4", "\ud800", b"x" * 1001, bytearray(b"b"), memoryview(b"m"), None, 5]),
    "tags": st.sampled_from(["", "a|b", " a", "\x9f", "a\x01", Tag.PAID, 5, b"t", "x" * 32_768]) | TAG,
    "keys": st.sampled_from(
        ["one", "", "a b", ("a b",), ("", "a"), ["b", ""], (5,), {"set"}, None, "\x02", ("\ud800",)]
    ),
    "properties": st.sampled_from(
        [{"TAGS": "t"}, {"KEYS": "a b"}, {"UNIQ_KEY": "u"}, {"": "v"}, {"n": ""}, {"n": 5}, {5: "v"}, {"n": "\x01"}]
    )
    | st.sampled_from([UserDict({"a": "b"}), None, 0, {"\ud800": "v"}])
    | st.dictionaries(TEXT, TEXT, max_size=2),
    "sharding_key": st.sampled_from(["", "s", 0, False, b"s", "\x01"]),
    "flag": st.sampled_from([True, 1 << 31, -1, 0.0, None, "1", 1 << 70]),
    "born_timestamp": st.sampled_from([0, -1, LAST_MS + 1, FIRST_MS - 1, 1 << 63, 1 << 70, 0.0, True]),
}


@st.composite
def odd_messages(draw: st.DrawFn) -> Message:
    """Messages with an odd field or two."""
    fields = {"topic": draw(st.sampled_from(["a", "b"])), "body": b"body"}
    for name in draw(st.sets(st.sampled_from(sorted(ODD)), min_size=1, max_size=2)):
        fields[name] = draw(ODD[name])
    return Message(**fields)


@given(st.lists(messages(), min_size=1, max_size=5), st.booleans(), st.booleans(), st.booleans())
def test_the_same_records(rows: list[Message], with_keys: bool, with_tags: bool, with_crc: bool) -> None:
    encoding = replace(ENCODING, with_keys=with_keys, with_tags=with_tags, with_crc=with_crc)
    assert outcome(encode_list, many(rows), encoding) == outcome(encode_messages, many(rows), encoding)


@given(st.lists(odd_messages(), min_size=1, max_size=3))
def test_the_same_refusals(rows: list[Message]) -> None:
    encoding = replace(ENCODING, with_tags=True)
    assert outcome(encode_list, many(rows), encoding) == outcome(encode_messages, many(rows), encoding)


@given(st.lists(st.tuples(TAG, KEY), min_size=1, max_size=3))
def test_usual_messages_go_through_columns(fields: list[tuple[str, str]]) -> None:
    rows = many([Message("t", b"body", tags=tag, keys=(key,), properties={"n": key}) for tag, key in fields])
    assert isinstance(encode_list(rows, [0] * len(rows), ENCODING, NOW), Records)


@pytest.mark.parametrize("row", [0, MANY - 1])
def test_the_bad_one_of_many_is_named(row: int) -> None:
    rows = [Message("t", b"", tags="good")] * MANY
    rows[row] = Message("t", b"", tags="a|b")
    with pytest.raises(MessageRefused, match=r"tag 'a\|b': a message has one tag"):
        encode_list(rows, [0] * MANY, ENCODING, NOW)
