from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import FilterError, TagFilter, message_filter
from store.format.hashes import java_hash, java_hash_code
from store.read.sql92 import parse

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def tagged(*tags: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(tags, pa.string())], ["tags"])


def naive_hash(text: str) -> int:
    """Java's String.hashCode, one UTF-16 unit at a time."""
    value = 0
    encoded = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = (31 * value + int.from_bytes(encoded[at : at + 2], "little")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("TagA", 2598919), ("TopicA#UID0", 641174225), ("polygenelubricants", -(1 << 31)), ("a" * 100, None)],
)
def test_hashes_equal_known_ones(text: str, code: int | None) -> None:
    assert java_hash_code(text) == (naive_hash(text) if code is None else code)


@given(st.text(max_size=40))
def test_hash_of_any_text_equals_javas(text: str) -> None:
    assert java_hash_code(text) == naive_hash(text)


@given(st.lists(st.none() | TEXT, max_size=8), st.integers(0, 3))
def test_hashes_of_many_texts_are_right(texts: list[str | None], cut: int) -> None:
    sliced = pa.array(texts, pa.string())[cut:]
    expected = [0 if text is None else naive_hash(text) for text in texts[cut:]]
    hashes = java_hash(sliced)
    assert hashes.dtype == np.int32
    assert hashes.tolist() == expected


@given(st.lists(st.none() | TEXT, max_size=8), TEXT)
def test_hashes_with_a_prefix_are_right(texts: list[str | None], prefix: str) -> None:
    expected = [0 if text is None else naive_hash(prefix + text) for text in texts]
    assert java_hash(pa.array(texts, pa.string()), prefix).tolist() == expected


def test_hashes_of_long_texts_are_right() -> None:
    texts = ["a" * 300_000, "b", ""]
    assert java_hash(pa.array(texts), "x").tolist() == [java_hash_code("x" + text) for text in texts]


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_empty_filter_accepts_everything(expression: str | None) -> None:
    accept = TagFilter.parse(expression)
    assert accept.tags is None
    assert accept.match(None, {})
    assert (accept.columns, accept.tags_codes) == ((), None)
    assert accept.match_codes(np.array([0, 5])).all()
    assert accept.match_batch(tagged("a", None)).to_pylist() == [True, True]


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("paid", ("paid",)), ("paid||shipped", ("paid", "shipped")), (" paid ||  || shipped ", ("paid", "shipped"))],
)
def test_tags_are_separated_by_bars(expression: str, tags: tuple[str, ...]) -> None:
    assert TagFilter.parse(expression).tags == tags


@pytest.mark.parametrize("expression", ["||", "   ", " || ", "\n"])
def test_expression_without_a_tag_is_refused(expression: str) -> None:
    """RocketMQ refuses the first expression, and returns no message for the others."""
    with pytest.raises(FilterError, match=r" names no tag; write tags as"):
        TagFilter.parse(expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("a,b", "',' stands in 'a,b'; tags are separated by '||'"),
        ("a;b", "';' stands in 'a;b'"),
        ("a|b", r"'\|' stands in 'a\|b'; tags are separated by '\|\|'"),
        ("a ||| b", r"'\|' stands in '\| b'"),
        ("a > 5", "'a > 5' looks like a condition. For a condition on properties, such as TAGS"),
        ("a=5", "looks like a condition"),
        ("paid OR shipped", "looks like a condition"),
        ("a and b", "looks like a condition"),
        ("a && b", "looks like a condition"),
        ("not paid", "looks like a condition"),
        ("region is null", "looks like a condition"),
        ("region in ('a')", "looks like a condition"),
        ("'paid'", "looks like a condition"),
        ("paid || *", r"'\*' means all messages, so give it alone"),
        (" * ", r"'\*' means all messages, so give it alone"),
        (5, "5 is no text"),
        ("paid || \ud800", r"'paid \|\| .ud800' is not valid UTF-8"),
    ],
)
def test_obvious_mistakes_are_refused(expression: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        TagFilter.parse(expression)


@pytest.mark.parametrize(
    "tag", ["order", "android", "notpaid", "v1.0", "a/b", "größe", "1 2", "C++", "men's", "\u3000a"]
)
def test_unusual_tags_are_accepted(tag: str) -> None:
    assert TagFilter.parse(f"x || {tag} || ").tags == ("x", tag)


def test_filter_of_any_tag_can_be_constructed() -> None:
    assert TagFilter(("a,b",)).match("a,b", {})


def test_equal_hashes_are_told_apart_by_tags() -> None:
    assert java_hash_code("Aa") == java_hash_code("BB")
    accept = TagFilter.parse("Aa")
    assert (accept.columns, accept.tags_codes) == (("tags",), {java_hash_code("BB")})
    assert accept.match_codes(np.array([java_hash_code("BB"), 0])).tolist() == [True, False]
    assert accept.match_batch(tagged("Aa", "BB", None)).to_pylist() == [True, False, False]
    assert accept.match("Aa", {})
    assert not accept.match("BB", {})
    assert not accept.match(None, {})


def test_expression_type_selects_the_filter() -> None:
    assert message_filter(None) == message_filter("*", "TAG") == TagFilter(None)
    assert message_filter("paid || shipped", "tag") == TagFilter(("paid", "shipped"))
    condition = message_filter("TAGS = 'paid' AND amount > 10", "sql92")
    assert condition == parse("TAGS = 'paid' AND amount > 10")
    assert condition != parse("TAGS = 'paid'")


@pytest.mark.parametrize(
    ("expression", "kind", "message"),
    [
        ("paid", "SQL", "expressionType 'SQL': give TAG or SQL92"),
        ("paid", None, "expressionType None"),
        (None, "SQL92", "None is no text; write a condition"),
        ("a != 5", "SQL92", "write <> for 'not equal'"),
        ("a <> 5", "TAG", "set expressionType=SQL92"),
    ],
)
def test_wrong_expression_types_are_refused(expression: Any, kind: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        message_filter(expression, kind)
