"""What every kind of log has to do, whatever it is made of: a class of tests for each subclass to inherit.

A subclass gives the fixture `making`: an empty log, and what others do to it.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest

from store import (
    COLUMNS,
    InvalidColumns,
    Message,
    OffsetLost,
    OffsetNotYet,
    StoreClosed,
    TagFilter,
    UnknownTopic,
    message_filter,
)
from store.any_log import (
    Boundary,
    Bounds,
    Log,
    LogAddress,
    LogWriter,
    MessageFilter,
    Positions,
    Queue,
    QueueRange,
    ReadSpec,
)
from store.read.filters import EVERYTHING

LONG = 60.0  # seconds: for what is to end before
A0, A1, B0 = Queue("a", 0), Queue("a", 1), Queue("b", 0)

ALL_A0 = QueueRange(*A0, 0, 10)


class Making(Protocol):
    """A log without topics, and how others change it, while it is open or not."""

    address: LogAddress

    def create_topic(self, topic: str, queues: int) -> None: ...

    def append(self, messages: list[Message]) -> None: ...

    def delete_oldest(self, queue: Queue) -> None:
        """Of a queue that was given 250 messages of 1,000 B: some of them."""

    def commit(self, group: str, positions: Positions) -> Positions:
        """Where a group stands now; what the log will tell of it."""


@dataclass(frozen=True)
class InRegion:
    """A filter by a property: one that tags codes do not help."""

    region: str
    columns = ("properties",)
    tags_codes = None

    def match_codes(self, tags_codes: np.ndarray) -> np.ndarray:
        return np.ones(len(tags_codes), np.bool_)

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        assert batch.schema.names == ["properties"]
        return pa.array([self.match(None, dict(properties)) for properties in batch["properties"].to_pylist()])

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        return properties.get("region") == self.region


def messages(queue: Queue, numbers: range, size: int = 0) -> list[Message]:
    """Bodies are the numbers; tags A and B in turn, regions eu, us and ap."""
    return [
        Message(
            queue.topic,
            str(number).encode().ljust(size, b"."),
            queue_id=int(queue.queue_id),
            tags="AB"[number % 2],
            keys=(f"k{number}",),
            properties={"region": ("eu", "us", "ap")[number % 3]},
        )
        for number in numbers
    ]


def numbers(log: Log, wanted: QueueRange, **spec: Any) -> list[int]:
    return [int(body) for batch in scan(log, wanted, **spec) for body in batch["body"].to_pylist()]


def scan(
    log: Log,
    wanted: QueueRange,
    columns: tuple[str, ...] = ("body",),
    message_filter: MessageFilter = EVERYTHING,
    **more: Any,
) -> list[pa.RecordBatch]:
    return list(log.scan(wanted, ReadSpec(columns, message_filter, **more)))


class LogTests:
    queue: Callable[[str, int], Queue] = staticmethod(Queue)
    """How this kind of log names a queue."""

    @pytest.fixture
    def making(self) -> Making:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a0, a1, b0 = (self.queue(*name) for name in (A0, A1, B0))
        for name, queue in {"A0": a0, "A1": a1, "B0": b0, "ALL_A0": QueueRange(*a0, 0, 10)}.items():
            monkeypatch.setitem(globals(), name, queue)

    @pytest.fixture
    def log(self, making: Making) -> Iterator[Log]:
        """Topic a: 10 messages in queue 0, none in queue 1; topic b: 3."""
        making.create_topic("a", 2)
        making.create_topic("b", 1)
        making.append([*messages(A0, range(10)), *messages(B0, range(3))])
        with making.address.open() as it:
            yield it

    # --- what there is ---------------------------------------------------------------------------------

    def test_an_address_goes_to_other_processes(self, making: Making, log: Log) -> None:
        other = pickle.loads(pickle.dumps(making.address))
        assert other == making.address
        assert hash(other) == hash(making.address)
        assert str(other)
        with other.open() as again:
            assert numbers(again, QueueRange(*A0, 0, 10)) == numbers(log, QueueRange(*A0, 0, 10)) == [*range(10)]

    def test_topics_as_they_stand_now(self, making: Making, log: Log) -> None:
        assert dict(log.topics()) == {"a": (A0, A1), "b": (B0,)}
        making.create_topic("b", 2)
        making.create_topic("c", 1)
        assert dict(log.topics()) == {"a": (A0, A1), "b": (B0, self.queue("b", 1)), "c": (self.queue("c", 0),)}

    def test_bounds_as_they_stand_now(self, making: Making, log: Log) -> None:
        missing = [self.queue("a", 2), self.queue("nowhere", 0)]
        assert list(log.bounds([B0, *missing, A1, A0]).items()) == [(B0, (0, 3)), (A1, (0, 0)), (A0, (0, 10))]
        assert isinstance(log.bounds([A0])[A0], Bounds)
        assert log.bounds([]) == {}
        making.append(messages(A1, range(2)))
        assert log.bounds([A1]) == {A1: (0, 2)}

    # --- reading ---------------------------------------------------------------------------------------

    def test_all_columns_as_they_are_declared(self, log: Log) -> None:
        for names in (tuple(COLUMNS), tuple(reversed(COLUMNS)), ("tags",), ("body", "properties")):
            batches = scan(log, QueueRange(*A0, 0, 10), names)
            assert {batch.schema for batch in batches} == {pa.schema([(name, COLUMNS[name]) for name in names])}
            assert sum(map(len, batches)) == 10

    def test_a_message_as_it_was_put(self, log: Log) -> None:
        (batch,) = scan(log, QueueRange(*A0, 4, 5), tuple(COLUMNS))
        (row,) = batch.to_pylist()
        assert (row["topic"], row["queueId"], row["queueOffset"], row["body"]) == ("a", 0, 4, b"4")
        assert (row["tags"], row["keys"], dict(row["properties"])["region"]) == ("A", "k4", "us")
        assert abs(row["storeTimestamp"].timestamp() - time.time()) < 600

    @pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 7), (9, 10), (0, 0), (5, 5), (10, 10)])
    def test_a_range_is_a_range(self, log: Log, start: int, end: int) -> None:
        assert numbers(log, QueueRange(*A0, start, end)) == list(range(start, end))

    def test_batches_of_at_most_so_many_rows(self, log: Log) -> None:
        batches = scan(log, QueueRange(*A0, 0, 10), max_rows=3)
        assert max(map(len, batches)) <= 3
        assert [int(body) for batch in batches for body in batch["body"].to_pylist()] == list(range(10))

    @pytest.mark.parametrize(
        ("message_filter", "matching"),
        [
            (TagFilter.parse("B"), [1, 3, 5, 7]),
            (TagFilter.parse("A || B"), [*range(1, 9)]),
            (TagFilter.parse("C"), []),
            (InRegion("eu"), [3, 6]),
            (InRegion("nowhere"), []),
            (message_filter("region = 'eu' AND TAGS <> 'A'", "SQL92"), [3]),
            (message_filter("region IS NULL OR KEYS ENDSWITH '8'", "SQL92"), [8]),
            (message_filter("1 > 2", "SQL92"), []),
        ],
    )
    def test_filters(self, log: Log, message_filter: MessageFilter, matching: list[int]) -> None:
        wanted = QueueRange(*A0, 1, 9)
        assert numbers(log, wanted, message_filter=message_filter) == matching
        assert numbers(log, wanted, columns=("tags", "body"), message_filter=message_filter, max_rows=2) == matching

    def test_what_cannot_be_read(self, making: Making, log: Log) -> None:
        for wanted, error in (
            (QueueRange(*A0, 0, 11), OffsetNotYet),
            (QueueRange(*A1, 0, 1), OffsetNotYet),
            (QueueRange(*self.queue("nowhere", 0), 0, 1), UnknownTopic),
            (QueueRange(*self.queue("a", 2), 0, 1), UnknownTopic),
        ):
            with pytest.raises(error):
                scan(log, wanted)
        making.append(messages(A1, range(250), size=1000))
        making.delete_oldest(A1)
        first, end = log.bounds([A1])[A1]
        assert 0 < first < end == 250
        with pytest.raises(OffsetLost):
            scan(log, QueueRange(*A1, first - 1, end))
        assert sum(map(len, scan(log, QueueRange(*A1, first, end)))) == end - first

    # --- what it may be unable to tell -----------------------------------------------------------------

    def test_sizes_or_none(self, making: Making, log: Log) -> None:
        making.append(messages(A1, range(250), size=1000))
        before = log.sizes(QueueRange(*A1, 10, 250))
        making.delete_oldest(A1)
        after = log.sizes(QueueRange(*A1, 0, 250))
        if before is None or after is None:
            assert before is after
            return
        assert (before.dtype, before.shape) == (np.int64, (240,))
        assert (before > 1000).all()
        first = log.bounds([A1])[A1].min_offset
        assert after.tolist() == [0] * first + before[first - 10 :].tolist()

    def test_fingerprints_tell_one_message_from_another_if_anything(self, making: Making, log: Log) -> None:
        making.append(messages(A1, range(250), size=1000))
        positions = {A0: 10, A1: 1, B0: 3}
        found = log.fingerprints({**positions, B0: 0})
        assert found.keys() in (set(), {A0, A1})
        assert log.strangers(positions, found) == []
        if found:
            assert log.strangers({A0: 9, A1: 1}, found) == [A0]
            making.delete_oldest(A1)
            assert A1 not in log.fingerprints(positions)
        assert log.strangers(positions, found) == []

    def test_a_group(self, making: Making, log: Log) -> None:
        assert log.committed("readers", [A0, A1, B0]) == {}
        told = making.commit("readers", {A0: 4, B0: 0})
        assert log.committed("readers", [A1, A0]) == {queue: at for queue, at in told.items() if queue != B0}
        assert log.committed("others", [A0]) == {}
        assert log.groups() == ({"readers": told} if told else {})

    def test_times(self, making: Making, log: Log) -> None:
        time.sleep(0.005)  # so that there are two times
        making.append(messages(A0, range(10, 20)))
        (batch,) = scan(log, QueueRange(*A0, 0, 20), ("storeTimestamp",))
        times = [int(stored) // 1000 for stored in batch["storeTimestamp"].cast(pa.int64()).to_pylist()]
        for at in range(times[0] - 1, times[-1] + 2):
            older, not_newer = sum(t < at for t in times), sum(t <= at for t in times)
            lower = log.offsets_by_time([A0, A1, self.queue("nowhere", 0)], at, Boundary.LOWER)
            assert lower == {A0: older, A1: 0}
            assert log.offsets_by_time([A0], at, Boundary.UPPER) == {A0: max(0, not_newer - 1)}

    # --- waiting ---------------------------------------------------------------------------------------

    def test_waiting_ends_at_once_where_the_log_went_on(self, log: Log) -> None:
        begin = time.monotonic()
        log.wait({A0: 9, B0: 3}, LONG)
        assert time.monotonic() - begin < LONG / 2

    def test_waiting_ends_with_an_arrival(self, making: Making, log: Log) -> None:
        arrival = threading.Timer(0.1, making.append, (messages(A1, range(1)),))
        arrival.start()
        begin = time.monotonic()
        while log.bounds([A1])[A1].max_offset == 0:
            log.wait({A0: 10, A1: 0}, LONG)
        assert time.monotonic() - begin < LONG / 2
        arrival.join()

    def test_waiting_ends_in_time(self, log: Log) -> None:
        log.wait({A0: 10, self.queue("nowhere", 0): 0}, 0.05)
        log.wait({}, 0.05)

    # --- holding ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("seconds", [-1.0, 0.3])
    def test_held_queues_give_what_is_there_however_late(self, log: Log, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with log.hold({A0: 4, A1: 0, B0: 3}, deadline, EVERYTHING, LONG) as held:
            assert list(held) == [QueueRange(*A0, 4, 10)]

    def test_held_queues_give_what_arrives_until_they_are_over(self, making: Making, log: Log) -> None:
        reached = {A0: 8, A1: 0}
        seen = {A0: [], A1: []}

        def arrive() -> None:
            for n in range(3):
                making.append(messages(A1, range(n, n + 1)))
                time.sleep(0.1)

        arrival = threading.Thread(target=arrive)
        arrival.start()
        with log.hold(dict(reached), time.monotonic() + LONG, EVERYTHING, LONG) as held:
            while reached != {A0: 10, A1: 3}:
                there = next(held)
                assert there is not None
                assert there.start == reached[there.queue] < there.end
                seen[there.queue] += numbers(log, there)
                reached[there.queue] = there.end
                held.again(there.queue, there.end)
        arrival.join()
        assert seen == {A0: [8, 9], A1: [0, 1, 2]}

    def test_a_queue_that_was_given_is_held_no_longer(self, making: Making, log: Log) -> None:
        with log.hold({A0: 9}, time.monotonic() + LONG, EVERYTHING, LONG) as held:
            assert next(held) == QueueRange(*A0, 9, 10)
            making.append(messages(A0, range(10, 12)))
            assert list(held) == []

    def test_ranges_are_narrowed_to_no_less_than_is_stored_between_two_times(self, log: Log) -> None:
        times = [row["storeTimestamp"] for batch in scan(log, ALL_A0, ("storeTimestamp",)) for row in batch.to_pylist()]
        wanted = [int(time.timestamp() * 1000) for time in times]
        found = log.stored_between([ALL_A0, QueueRange(*B0, 0, 3)], min(wanted), max(wanted))
        assert found == [ALL_A0, QueueRange(*B0, 0, 3)]
        assert all(0 <= r.start < r.end <= 10 for r in log.stored_between([ALL_A0], 1, 2))

    def test_ranges_are_narrowed_to_no_less_than_has_a_key(self, log: Log) -> None:
        found = log.with_keys([QueueRange(*A0, 2, 9), QueueRange(*B0, 0, 3)], ["k3", "k1"])
        there = {(r.queue, offset) for r in found for offset in range(r.start, r.end)}
        assert {(A0, 3), (B0, 1)} <= there <= {(A0, offset) for offset in range(2, 9)} | {(B0, n) for n in range(3)}

    def test_nothing_is_held_again_after_the_deadline(self, making: Making, log: Log) -> None:
        with log.hold({A0: 9}, time.monotonic() - 1, EVERYTHING, LONG) as held:
            assert next(held) == QueueRange(*A0, 9, 10)
            making.append(messages(A0, range(10, 12)))
            held.again(A0, 10)
            assert list(held) == []

    def test_where_nothing_comes_for_a_while_that_is_told(self, log: Log) -> None:
        with log.hold({A0: 10}, time.monotonic() + LONG, EVERYTHING, 0.05) as held:
            assert [next(held), next(held)] == [None, None]

    def test_another_thread_ends_the_waiting(self, log: Log) -> None:
        with log.hold({A0: 10}, math.inf, EVERYTHING, LONG) as held:
            waker = threading.Timer(0.1, held.wake)
            waker.start()
            begin = time.monotonic()
            assert next(held) is None
            held.wake()
            assert next(held) is None
            assert time.monotonic() - begin < LONG / 2
            waker.join()

    def test_a_queue_may_be_held_that_was_not_before(self, making: Making, log: Log) -> None:
        with log.hold({}, math.inf, EVERYTHING, LONG) as held:
            held.again(A0, 9)
            held.again(A1, 0)
            assert next(held) == QueueRange(*A0, 9, 10)
            making.append(messages(A1, range(1)))
            assert next(held) == QueueRange(*A1, 0, 1)

    @pytest.mark.parametrize("only_b", [TagFilter.parse("B"), message_filter("TAGS = 'B'", "SQL92")])
    def test_a_held_queue_gives_what_matches(self, making: Making, log: Log, only_b: MessageFilter) -> None:
        with log.hold({A0: 10}, time.monotonic() + LONG, only_b, LONG) as held:
            making.append(messages(A0, range(10, 11)))
            making.append(messages(A0, range(11, 12)))
            reached, found = 10, []
            while not found:
                there = next(held)
                assert there is not None
                assert there.start == reached
                found, reached = numbers(log, there, message_filter=only_b), there.end
                held.again(A0, reached)
        assert found == [11]


class WriterTests(LogTests):
    """Of kinds of logs that can be written, too."""

    @pytest.fixture
    def writer(self, making: Making, log: Log) -> Iterator[LogWriter]:
        with making.address.open_writer() as it:
            yield it

    def test_a_writer_reads_what_it_writes(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("a", pa.table({"body": ["10", "11"], "queueId": [0, 0]}))
        placed = append.publish()
        assert placed is not None
        assert (placed.queue_ids.tolist(), placed.queue_offsets.tolist()) == ([0, 0], [10, 11])
        for it in (log, writer):
            assert numbers(it, QueueRange(*A0, 0, 12)) == [*range(12)]
            assert dict(it.topics()) == {"a": (A0, A1), "b": (B0,)}

    def test_a_message_as_it_was_written(self, log: Log, writer: LogWriter) -> None:
        columns = {"body": [b"x"], "tags": ["paid"], "queueId": [1], "keys": ["k l"]}
        properties = pa.array([[("region", "eu")]], pa.map_(pa.string(), pa.string()))
        append = writer.begin()
        append.add("a", pa.table({**columns, "properties": properties}))
        append.publish()
        (batch,) = scan(log, QueueRange(*A1, 0, 1), ("body", "tags", "keys", "properties", "queueId", "queueOffset"))
        (row,) = batch.to_pylist()
        assert (row["body"], row["tags"], row["keys"], row["queueId"], row["queueOffset"]) == (
            b"x",
            "paid",
            "k l",
            1,
            0,
        )
        assert dict(row["properties"])["region"] == "eu"
        assert (
            numbers(log, QueueRange(*A1, 0, 1), columns=("tags", "body"), message_filter=TagFilter.parse("open")) == []
        )

    def test_rows_that_name_no_queue_go_to_all(self, log: Log, writer: LogWriter) -> None:
        before = log.bounds([A0, A1])
        append = writer.begin()
        append.add("a", pa.table({"body": [str(n) for n in range(100)]}))
        append.publish()
        added = {queue: bounds.max_offset - before[queue].max_offset for queue, bounds in log.bounds([A0, A1]).items()}
        assert sum(added.values()) == 100
        assert min(added.values()) > 20

    def test_all_that_was_added_is_seen_at_once(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.add("a", pa.table({"body": ["0"], "queueId": [1]}))
        append.add("b", pa.RecordBatch.from_pydict({"body": ["4"]}))
        assert log.bounds([B0, A1]) == {B0: (0, 3), A1: (0, 0)}
        append.publish(flush=True)
        assert log.bounds([B0, A1]) == {B0: (0, 5), A1: (0, 1)}
        assert numbers(log, QueueRange(*B0, 0, 5)) == [*range(5)]

    def test_of_what_is_abandoned_nothing_is_seen(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.abandon()
        append.abandon()
        with pytest.raises(StoreClosed):
            append.publish()
        assert log.bounds([B0]) == {B0: (0, 3)}

    def test_an_append_is_over_once_it_is_published(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.publish()
        for verb in (append.publish, lambda: append.add("b", pa.table({"body": ["4"]}))):
            with pytest.raises(StoreClosed):
                verb()
        assert log.bounds([B0]) == {B0: (0, 4)}

    def test_a_condition_is_asked_when_nobody_else_can_append(self, log: Log, writer: LogWriter) -> None:
        """So of several that append if nothing is there yet, one does."""

        def append_if_empty() -> None:
            append = writer.begin()
            append.add("a", pa.table({"body": ["0"], "queueId": [1]}))
            answers.append(append.publish(unless=lambda: log.bounds([A1])[A1].max_offset > 0))

        answers: list[Any] = []
        threads = [threading.Thread(target=append_if_empty) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.bounds([A1]) == {A1: (0, 1)}
        assert sum(answer is None for answer in answers) == 3

    def test_what_cannot_be_added(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        with pytest.raises(UnknownTopic):
            append.add("nowhere", pa.table({"body": ["x"]}))
        with pytest.raises(InvalidColumns):
            append.add("b", pa.table({"bod": ["x"]}))
        append.add("b", pa.table({"body": ["3"]}))
        append.publish()
        assert numbers(log, QueueRange(*B0, 3, 4)) == [3]

    def test_topics_are_made_and_get_more_queues(self, log: Log, writer: LogWriter) -> None:
        assert writer.create_topic("c", 2) == 2
        assert writer.create_topic("b", 3) == 3
        assert [len(log.topics()[topic]) for topic in "abc"] == [2, 3, 2]
        append = writer.begin()
        append.add("b", pa.table({"body": ["0"], "queueId": [2]}))
        append.publish()
        assert numbers(log, QueueRange(*self.queue("b", 2), 0, 1)) == [0]

    def test_what_is_flushed(self, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.publish()
        writer.flush()
        assert writer.bounds([B0]) == {B0: (0, 4)}

    def test_who_waits_learns_of_it(self, log: Log, writer: LogWriter) -> None:
        def write() -> None:
            append = writer.begin()
            append.add("b", pa.table({"body": ["3"]}))
            append.publish()

        arrival = threading.Timer(0.1, write)
        arrival.start()
        begin = time.monotonic()
        while log.bounds([B0])[B0].max_offset == 3:
            log.wait({B0: 3}, LONG)
        assert time.monotonic() - begin < LONG / 2
        arrival.join()
