"""What filters narrow: tables of ranges and tags, and that no filter is taken for more than it says."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
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
from pyspark.sql.types import StructType

from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.pushdown import narrow, narrow_by_log, narrow_tags, pushdown_is_on
from pyspark_mq.source.batch_reader import FilteringBatchReader, MqBatchReader
from pyspark_mq.source.reading import default_schema
from store import Message, MessageStore, StoreConfig, TagFilter
from store.model.log_protocol import Log, Queue, QueueRange
from store.publish import appender

A0, A1, B0 = QueueRange(Queue("a", 0), 0, 10), QueueRange(Queue("a", 1), 5, 20), QueueRange(Queue("b", 0), 0, 3)
OFFSET, QUEUE, TOPIC, TAGS = ("queueOffset",), ("queueId",), ("topic",), ("tags",)


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([], [A0, A1, B0]),
        ([EqualTo(TOPIC, "a")], [A0, A1]),
        ([EqualTo(TOPIC, "a"), In(QUEUE, (1, 2))], [A1]),
        ([GreaterThan(OFFSET, 7)], [A0._replace(start=8, end=10), A1._replace(start=8, end=20)]),
        (
            [GreaterThanOrEqual(OFFSET, 7), LessThan(OFFSET, 9)],
            [A0._replace(start=7, end=9), A1._replace(start=7, end=9)],
        ),
        ([LessThanOrEqual(OFFSET, 5)], [A0._replace(start=0, end=6), A1._replace(start=5, end=6), B0]),
        ([EqualTo(OFFSET, 9)], [A0._replace(start=9, end=10), A1._replace(start=9, end=10)]),
        ([In(OFFSET, (2, 6))], [A0._replace(start=2, end=7), A1._replace(start=5, end=7), B0._replace(start=2, end=3)]),
        ([EqualTo(OFFSET, None)], [A0, A1, B0]),
        ([Not(EqualTo(TOPIC, "a")), IsNotNull(QUEUE), StringStartsWith(TOPIC, "b")], [A0, A1, B0]),
        ([EqualTo(("properties", "topic"), "b"), EqualTo(("body",), b"x")], [A0, A1, B0]),
    ],
)
def test_ranges(filters: list[Filter], ranges: list[QueueRange]) -> None:
    assert narrow([A0, A1, B0], filters) == ranges


def test_messages_of_a_light_queue_have_topic_and_offset_of_where_they_were_sent_to() -> None:
    light = QueueRange(Queue("%LMQ%x", 0), 0, 3)
    assert narrow([light], [EqualTo(TOPIC, "a"), GreaterThan(OFFSET, 7), EqualTo(QUEUE, 0)]) == [light]
    assert narrow([light], [EqualTo(QUEUE, 1)]) == []


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


TIME, KEYS, ID = ("storeTimestamp",), ("keys",), ("msgId",)
AT = datetime(2027, 1, 15, 8, tzinfo=UTC)


class Asked:
    """A log that notes what it is asked, and narrows nothing."""

    def __init__(self) -> None:
        self.times: list[tuple[int, int]] = []
        self.keys: list[list[str]] = []

    def stored_between(self, ranges: Iterable[QueueRange], begin: int, end: int) -> list[QueueRange]:
        self.times.append((begin, end))
        return list(ranges)

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        self.keys.append(list(keys))
        return list(ranges)


def asked(filters: list[Filter]) -> Asked:
    log = Asked()
    assert narrow_by_log(cast(Log, log), [A0, A1], filters) == [A0, A1]
    return log


@pytest.mark.parametrize(
    ("filters", "times"),
    [
        ([EqualTo(TIME, AT)], [(0, 0)]),
        ([In(TIME, (AT, AT + timedelta(seconds=1)))], [(0, 1000)]),
        ([GreaterThan(TIME, AT), LessThanOrEqual(TIME, AT + timedelta(microseconds=1999))], [(1, 1)]),
        ([GreaterThanOrEqual(TIME, AT - timedelta(microseconds=1)), LessThan(TIME, AT)], [(-1, -1)]),
        ([GreaterThan(TIME, AT), GreaterThan(TIME, AT + timedelta(milliseconds=5)), EqualTo(TIME, AT)], [(6, 0)]),
        ([GreaterThan(TIME, AT), LessThan(TIME, datetime.min.replace(tzinfo=UTC))], [(1, -63935596800001)]),
        ([EqualTo(TIME, None), In(TIME, (AT, None)), Not(EqualTo(TIME, AT))], []),
        ([GreaterThan(TIME, AT.replace(tzinfo=None))], []),
        ([EqualTo(("bornTimestamp",), AT)], []),
    ],
)  # fmt: skip
def test_times_that_a_log_is_asked_for(filters: list[Filter], times: list[tuple[int, int]]) -> None:
    at, found = int(AT.timestamp() * 1000), asked(filters).times
    assert [(begin - at, end - at) for begin, end in found] == times


@pytest.mark.parametrize(
    ("filters", "keys"),
    [
        ([EqualTo(KEYS, "a"), EqualTo(ID, "x y")], [["a"], ["x y"]]),
        ([In(KEYS, ("a", " b  c", "d\te"))], [["a", "b", "d\te"]]),
        ([EqualTo(KEYS, ""), EqualTo(KEYS, " "), In(KEYS, ("a", "")), EqualTo(KEYS, None), In(ID, ("x", None))], []),
        ([StringStartsWith(KEYS, "a"), Not(EqualTo(KEYS, "a")), EqualTo(("properties", "keys"), "a")], []),
    ],
)
def test_keys_that_a_log_is_asked_for(filters: list[Filter], keys: list[list[str]]) -> None:
    assert asked(filters).keys == keys


COLUMN_NAMES = ["topic", "queueId", "queueOffset", "tags", "keys", "msgId", "storeTimestamp"]
RULES = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
TOPICS, SOME_KEYS = {"a": 2, "b": 1}, ("k", "l", "m n")
# How far the clock moves, ms; whether keys are filed; topic, how many messages, which key.
APPEND = st.tuples(
    st.sampled_from([0, 0, 1, 7, -3, -7_200_000]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["a", "b"]),
    st.integers(1, 40),
    st.sampled_from(SOME_KEYS),
)
TRUTH = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def read(reader: MqBatchReader) -> tuple[list[tuple[Any, ...]], int]:
    """The rows, and how many messages were planned."""
    partitions = reader.partitions()
    rows = [tuple(row.values()) for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row[:3]), sum(r.length for part in partitions for r in part.value.ranges)


def kept(rows: list[tuple[Any, ...]], one: Any) -> list[tuple[Any, ...]]:
    """What Spark keeps."""
    column = COLUMN_NAMES.index(one.attribute[0])
    if isinstance(one, In):
        return [row for row in rows if row[column] in one.value]
    return [row for row in rows if row[column] is not None and TRUTH[type(one)](row[column], one.value)]


@settings(max_examples=int(os.environ.get("PUSHDOWN_ROUNDS", "10")), deadline=None)
@given(appends=st.lists(APPEND, min_size=1, max_size=12), cleaned=st.booleans(), data=st.data())
@pytest.mark.filterwarnings("ignore:the newest message was stored")
def test_with_filters_the_same_rows_are_read(
    appends: list[tuple[int, bool, str, int, str]], cleaned: bool, data: st.DataObject
) -> None:
    now = [1_800_000_000_000]
    with TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "time", SimpleNamespace(time=lambda: now[0] / 1000))
        for moved, is_filed, topic, count, key in appends:
            now[0] += moved
            config = StoreConfig(
                mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20, messageIndexEnable=is_filed
            )
            with MessageStore.open(path, config=config) as store:
                for name, queues in TOPICS.items():
                    store.create_topic(name, queues)
                bodies = bytes(1500)
                store.put_many([Message(topic, bodies, tags="AB"[n % 2], keys=key.split()) for n in range(count)])
                if cleaned:
                    store.clean(forced=True)
        schema = StructType([default_schema(False)[name] for name in COLUMN_NAMES])
        source = SourceOptions.parse({"path": path, "subscribe": "a,b"})
        rows, _ = read(MqBatchReader(source, schema))
        anything = rows or [("a", 0, 0, "A", "k", "id", AT)]
        wanted = data.draw(
            st.lists(
                st.integers(0, len(COLUMN_NAMES) - 1).flatmap(
                    lambda column: st.builds(
                        lambda rule, values: (
                            In((COLUMN_NAMES[column],), tuple(values))
                            if rule is In
                            else rule((COLUMN_NAMES[column],), values[0])
                        ),
                        st.sampled_from([EqualTo, EqualTo, In] if column > 2 and column < 6 else [*RULES, In]),
                        st.lists(st.sampled_from([row[column] for row in anything]), min_size=1, max_size=3),
                    )
                ),
                min_size=1,
                max_size=3,
            )
        )
        reader = FilteringBatchReader(source, schema)
        assert list(reader.pushFilters(wanted)) == wanted
        found, planned = read(reader)
        for one in wanted:
            rows, found = kept(rows, one), kept(found, one)
        assert found == rows
        event("read less" if planned < len(anything) else "read all")
