"""What filters narrow: tables of ranges and tags, and that no filter is taken for more than it says."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_mq.pushdown import narrow, narrow_tags, pushdown_is_on
from store import TagFilter
from store.any_log import QueueRange

A0, A1, B0 = QueueRange("a", 0, 0, 10), QueueRange("a", 1, 5, 20), QueueRange("b", 0, 0, 3)
OFFSET, QUEUE, TOPIC, TAGS = ("queueOffset",), ("queueId",), ("topic",), ("tags",)


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([], [A0, A1, B0]),
        ([EqualTo(TOPIC, "a")], [A0, A1]),
        ([EqualTo(TOPIC, "a"), In(QUEUE, (1, 2))], [A1]),
        ([GreaterThan(OFFSET, 7)], [("a", 0, 8, 10), ("a", 1, 8, 20)]),
        ([GreaterThanOrEqual(OFFSET, 7), LessThan(OFFSET, 9)], [("a", 0, 7, 9), ("a", 1, 7, 9)]),
        ([LessThanOrEqual(OFFSET, 5)], [("a", 0, 0, 6), ("a", 1, 5, 6), B0]),
        ([EqualTo(OFFSET, 9)], [("a", 0, 9, 10), ("a", 1, 9, 10)]),
        ([In(OFFSET, (2, 6))], [("a", 0, 2, 7), ("a", 1, 5, 7), ("b", 0, 2, 3)]),
        ([EqualTo(OFFSET, None)], [A0, A1, B0]),
        ([Not(EqualTo(TOPIC, "a")), IsNotNull(QUEUE), StringStartsWith(TOPIC, "b")], [A0, A1, B0]),
        ([EqualTo(("properties", "topic"), "b"), EqualTo(("body",), b"x")], [A0, A1, B0]),
    ],
)
def test_ranges(filters: list[Filter], ranges: list[QueueRange]) -> None:
    assert narrow([A0, A1, B0], filters) == ranges


@pytest.mark.parametrize(
    ("expression", "filters", "tags"),
    [
        (None, [], None),
        ("*", [IsNotNull(TAGS), Not(EqualTo(TAGS, "x"))], None),
        (None, [EqualTo(TAGS, "x")], ("x",)),
        ("x || y", [], ("x", "y")),
        ("x || y", [In(TAGS, ("y", "z"))], ("y",)),
        ("x", [EqualTo(TAGS, "y")], ()),
        (None, [EqualTo(TAGS, " x")], (" x",)),  # unlike in an expression of tags, which drops blanks
        (None, [EqualTo(TAGS, "x||y")], ("x||y",)),
        (None, [EqualTo(TAGS, "")], ("",)),
        (None, [In(TAGS, ("x", None))], None),
    ],
)
def test_tags(expression: str | None, filters: list[Filter], tags: tuple[str, ...] | None) -> None:
    assert narrow_tags(TagFilter.parse(expression), filters) == TagFilter(tags)


def test_it_is_off_outside_of_sparks_planner() -> None:
    assert not pushdown_is_on()
