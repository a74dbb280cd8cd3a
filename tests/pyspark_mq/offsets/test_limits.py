from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.limits import (
    EARLIEST,
    LATEST,
    EarliestOrLatest,
    LastMessages,
    OffsetsByQueue,
    Time,
    end_of,
    require_order,
    start_of,
)
from pyspark_mq.offsets.stream_offsets import StreamOffset
from store import Message, MessageStore
from store.directory.directory_log import DirectoryAddress, DirectoryLog
from store.model.integers import iso_time
from store.model.log_protocol import Bounds, Log, Positions, Queue
from tests.waiting import another_millisecond

RESOURCES = Path(__file__).parents[2] / "resources" / "offsets"
Q0, Q1 = Queue("orders", 0), Queue("orders", 1)


class TimedLog:
    """A log whose queue 0 got 10 messages, then 5 more; queue 1 got 4 with the first ones. `between` is a time between,
    ms."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with MessageStore.open(path) as store:
            store.create_topic("orders", 2)
            store.put_many([Message("orders", b"", queue_id=0)] * 10 + [Message("orders", b"", queue_id=1)] * 4)
            self.between = another_millisecond()
            store.put_many([Message("orders", b"", queue_id=0)] * 5)
            self.after = another_millisecond()
            store.commit_offsets("readers", "orders", {0: 7})


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> TimedLog:
    return TimedLog(tmp_path_factory.mktemp("timed") / "mq")


@pytest.fixture
def log(timed: TimedLog) -> Iterator[Log]:
    with DirectoryAddress(str(timed.path)).open() as log:
        yield log


def resolved(log: Log, given: dict[str, str]) -> Positions:
    limit = start_of(given) or end_of(given)
    assert limit is not None
    return limit.resolve(log, log.bounds([Q0, Q1]))


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("earliest", {Q0: 0, Q1: 0}),
        (" Latest ", {Q0: 15, Q1: 4}),
        ("-6", {Q0: 9, Q1: 0}),
        ("-1", {Q0: 14, Q1: 3}),
        ("group", {Q0: 7, Q1: 0}),
        ('{"orders": {"0": -2, "1": -1}}', {Q0: 0, Q1: 4}),
        ('{"orders": {"0": 13, "1": 99}}', {Q0: 13, Q1: 99}),
    ],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_are_resolved(log: Log, option: str, text: str, positions: Positions) -> None:
    assert resolved(log, {option: text, "consumerGroup": "readers"}) == positions


def test_time_resolves_to_the_first_message_not_older(timed: TimedLog, log: Log) -> None:
    moment = {"startingTimestamp": str(timed.between), "startingOffsetsByTimestampStrategy": "latest"}
    assert resolved(log, moment) == {Q0: 10, Q1: 4}
    assert resolved(log, {"endingTimestamp": str(timed.between)}) == {Q0: 10, Q1: 4}
    assert resolved(log, {"startingTimestamp": "0"}) == {Q0: 0, Q1: 0}
    by_queue = json.dumps({"orders": {"0": timed.between, "1": 0}})
    assert resolved(log, {"startingOffsetsByTimestamp": by_queue}) == {Q0: 10, Q1: 0}
    assert resolved(log, {"endingOffsetsByTimestamp": by_queue}) == {Q0: 10, Q1: 0}


def test_start_after_all_messages_is_an_error_unless_allowed(timed: TimedLog, log: Log) -> None:
    between = rf"{iso_time(timed.between)} or after\. Give an earlier time, or set"
    with pytest.raises(OptionError, match=f"startingTimestamp: no message of orders/1 was stored at {between}"):
        resolved(log, {"startingTimestamp": str(timed.between)})
    after = str(timed.after + 3_600_000)
    with pytest.raises(OptionError, match="no message of orders/0, orders/1"):
        resolved(log, {"startingTimestamp": after})
    assert resolved(log, {"endingTimestamp": after}) == {Q0: 15, Q1: 4}
    assert resolved(log, {"startingTimestamp": "-1 ms"})[Q1] == 4


def test_no_earlier_time_is_advised_for_an_empty_queue(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("empty", 1)
        log, queue = DirectoryLog(store), Queue("empty", 0)
        limit = start_of({"startingTimestamp": "2026-01-31T12:00:00Z"})
        assert limit is not None
        with pytest.raises(OptionError, match=r"stored at 2026-01-31T12:00:00\.000Z or after\. Set startingOffsetsBy"):
            limit.resolve(log, log.bounds([queue]))


def test_times_are_shown_as_iso() -> None:
    assert iso_time(1767225600250) == "2026-01-01T00:00:00.250Z"
    assert iso_time(1 << 60) == f"{1 << 60} ms since 1970"


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("2026-02-01T00:00:00Z", "2026-01-31T00:00:00Z", r"2026-01-31T00:00:00.000Z\) is before startingTimestamp"),
        ("2026-02-01T00:00:00Z", "1767225600000", r"2026-01-01T00:00:00.000Z\) is before startingTimestamp"),
        ("-1 hour", "-2 hours", "is before startingTimestamp"),
        ("-1 hour", "2020-01-01T00:00:00Z", "is before startingTimestamp"),
    ],
)
def test_end_before_the_start_is_refused(start: str, end: str, said: str) -> None:
    first, last = start_of({"startingTimestamp": start}), end_of({"endingTimestamp": end})
    assert first is not None
    assert last is not None
    with pytest.raises(OptionError, match=rf"endingTimestamp \(.*{said}"):
        require_order(first, last)
    require_order(first, first)
    require_order(last, first)


@pytest.mark.parametrize("text", ["-10 minutes", "-10m", "- 0.5 h", "-1day", "-2 Days", "-90000 ms"])
def test_relative_time_counts_from_now(log: Log, text: str) -> None:
    assert resolved(log, {"startingTimestamp": text}) == {Q0: 0, Q1: 0}


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1767225600000", 1767225600000),
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01 01:00:00.250+01:00", 1767225600250),
        ("-10 minutes", -600_000),
        ("-1.5s", -1500),
        ("9999-12-31T23:59:59.999999Z", 253402300799999),
        ("0001-01-01T00:00:00+14:00", 0),
    ],
)
def test_times_are_parsed(text: str, milliseconds: int) -> None:
    assert start_of({"startingTimestamp": text}) == Time("startingTimestamp", milliseconds, "error")


def test_most_precise_option_wins_as_in_the_kafka_source() -> None:
    given = {"startingOffsets": "-5", "startingOffsetsByTimestamp": '{"orders": {"0": 5}}', "startingTimestamp": "7"}
    assert start_of(given) == Time("startingTimestamp", 7, "error")
    del given["startingTimestamp"]
    assert start_of(given) != LastMessages(5)
    del given["startingOffsetsByTimestamp"]
    assert start_of(given) == LastMessages(5)
    assert start_of({"endingOffsets": "latest"}) is None
    assert end_of({"endingOffsets": "latest", "endingTimestamp": "7"}) == Time("endingTimestamp", 7, "latest")
    with pytest.raises(OptionError, match="startingOffsets takes"):
        start_of({"startingTimestamp": "7", "startingOffsets": "newest"})


def test_limits_stay_within_the_planned_bounds(log: Log) -> None:
    earlier = {Q0: Bounds(0, 8), Q1: Bounds(2, 3)}
    for text, positions in (("group", {Q0: 7, Q1: 2}), ("-5", {Q0: 3, Q1: 2})):
        limit = start_of({"startingOffsets": text, "consumerGroup": "readers"})
        assert limit is not None
        assert limit.resolve(log, earlier) == positions
    end = end_of({"endingTimestamp": "-1 ms"})
    assert end is not None
    assert end.resolve(log, earlier) == {Q0: 8, Q1: 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("newest", "line 1 column 1"),
        ('{"a": {"0" 1}}', "line 1 column 12"),
        ("3", "the JSON is 3"),
        ('{"a": 3}', "'a' is 3 instead of an object"),
        ('{"a": {"0": -3}}', "a/0 has -3 instead of an offset"),
        ('{"a": {"0": 1.5}}', "a/0 has 1.5 instead of an offset"),
        ('{"a": {"-1": 1}}', "'a' has '-1' instead of a queue number"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": {"0": 1, "1": 2, "0": 3}}', "'0' occurs twice in one object"),
    ],
)
def test_wrong_offset_is_located_in_the_error(text: str, message: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets takes earliest, latest, group, -1000") as caught:
        start_of({"startingOffsets": text})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingTimestamp": "yesterday"}, "takes milliseconds since 1970, a time such as"),
        ({"startingTimestamp": "-10 moons"}, "takes milliseconds since 1970, a time such as"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "has no time zone"),
        ({"startingTimestamp": "2026-01-01"}, r"Write 2026-01-01T00:00:00Z for UTC, or 2026-01-01T00:00:00\+02:00"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "a/0 has -1 instead of an offset"),
        ({"startingOffsetsByTimestamp": "5"}, "the JSON is 5"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "earliest"}, "takes error or latest"),
        ({"startingOffsets": "group"}, "needs the option consumerGroup"),
    ],
)
def test_wrong_times_and_groups(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        start_of(given)


@pytest.mark.parametrize(
    ("queues", "message"),
    [
        ({"0": 1}, "must name every subscribed queue, but does not name: orders/1"),
        ({"0": 1, "1": 1, "2": 1}, "do not exist or are not subscribed: orders/2"),
    ],
)
@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("startingOffsets", "Use -2 for the earliest and -1 for the latest"),
        ("startingOffsetsByTimestamp", "Use 0 to include all messages of a queue"),
    ],
)
def test_exactly_the_subscribed_queues_are_named(
    log: Log, option: str, advice: str, queues: dict[str, int], message: str
) -> None:
    with pytest.raises(OptionError, match=f"{option} .*{message}.*{advice}"):
        resolved(log, {option: json.dumps({"orders": queues})})


def test_offsets_of_a_checkpoint_are_accepted() -> None:
    text = (RESOURCES / "v1-pinned.json").read_text()
    content: Any = json.loads(text)
    expected = OffsetsByQueue("startingOffsets", StreamOffset.from_json(content).next)
    assert start_of({"startingOffsets": text}) == expected


def test_earliest_and_latest_are_told_apart() -> None:
    assert start_of({"startingOffsets": "earliest"}) == EarliestOrLatest(EARLIEST)
    assert end_of({"endingOffsets": "latest"}) == EarliestOrLatest(LATEST)
