from __future__ import annotations

import pickle
import time

import numpy as np
import pyarrow as pa
import pytest

from store import COLUMNS, InvalidColumns, OffsetLost, OffsetNotYet, TagFilter, UnknownTopic, message_filter
from store.model.log_protocol import (
    Boundary,
    Bounds,
    Log,
    MessageFilter,
    QueueRange,
)
from tests.logs.made import A0, A1, ALL_A0, B0, InRegion, LogKind, Making, messages, numbers, scan
from tests.waiting import another_millisecond


class ReadingTests(LogKind):
    def test_address_can_be_pickled(self, making: Making, log: Log) -> None:
        other = pickle.loads(pickle.dumps(making.address))
        assert other == making.address
        assert hash(other) == hash(making.address)
        assert str(other)
        with other.open() as again:
            assert numbers(again, QueueRange(A0, 0, 10)) == numbers(log, QueueRange(A0, 0, 10)) == [*range(10)]

    def test_topics_are_current(self, making: Making, log: Log) -> None:
        assert dict(log.topics()) == {"a": (A0, A1), "b": (B0,)}
        making.create_topic("b", 2)
        making.create_topic("c", 1)
        assert dict(log.topics()) == {"a": (A0, A1), "b": (B0, self.queue("b", 1)), "c": (self.queue("c", 0),)}

    def test_bounds_are_current(self, making: Making, log: Log) -> None:
        missing = [self.queue("a", 2), self.queue("nowhere", 0)]
        assert list(log.bounds([B0, *missing, A1, A0]).items()) == [(B0, (0, 3)), (A1, (0, 0)), (A0, (0, 10))]
        assert isinstance(log.bounds([A0])[A0], Bounds)
        assert log.bounds([]) == {}
        making.append(messages(A1, range(2)))
        assert log.bounds([A1]) == {A1: (0, 2)}

    def test_columns_have_their_declared_types(self, log: Log) -> None:
        for names in (tuple(COLUMNS), tuple(reversed(COLUMNS)), ("tags",), ("body", "properties")):
            batches = scan(log, QueueRange(A0, 0, 10), names)
            assert {batch.schema for batch in batches} == {pa.schema([(name, COLUMNS[name]) for name in names])}
            assert sum(map(len, batches)) == 10

    def test_message_is_read_as_put(self, log: Log) -> None:
        (batch,) = scan(log, QueueRange(A0, 4, 5), tuple(COLUMNS))
        (row,) = batch.to_pylist()
        assert (row["topic"], row["queueId"], row["queueOffset"], row["body"]) == ("a", 0, 4, b"4")
        assert (row["tags"], row["keys"], dict(row["properties"])["region"]) == ("A", "k4", "us")
        assert abs(row["storeTimestamp"].timestamp() - time.time()) < 600

    @pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 7), (9, 10), (0, 0), (5, 5), (10, 10)])
    def test_scan_returns_exactly_the_range(self, log: Log, start: int, end: int) -> None:
        assert numbers(log, QueueRange(A0, start, end)) == list(range(start, end))

    def test_batches_have_at_most_max_rows(self, log: Log) -> None:
        batches = scan(log, QueueRange(A0, 0, 10), max_rows=3)
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
    def test_filters_select_messages(self, log: Log, message_filter: MessageFilter, matching: list[int]) -> None:
        wanted = QueueRange(A0, 1, 9)
        assert numbers(log, wanted, message_filter=message_filter) == matching
        assert numbers(log, wanted, columns=("tags", "body"), message_filter=message_filter, max_rows=2) == matching

    def test_reads_outside_the_log_are_refused(self, making: Making, log: Log) -> None:
        for wanted, error in (
            (QueueRange(A0, 0, 11), OffsetNotYet),
            (QueueRange(A1, 0, 1), OffsetNotYet),
            (QueueRange(self.queue("nowhere", 0), 0, 1), UnknownTopic),
            (QueueRange(self.queue("a", 2), 0, 1), UnknownTopic),
        ):
            with pytest.raises(error):
                scan(log, wanted)
        making.append(messages(A1, range(250), size=1000))
        making.delete_oldest(A1)
        first, end = log.bounds([A1])[A1]
        assert 0 < first < end == 250
        with pytest.raises(OffsetLost):
            scan(log, QueueRange(A1, first - 1, end))
        assert sum(map(len, scan(log, QueueRange(A1, first, end)))) == end - first

    @pytest.mark.parametrize("columns", [("body", "body"), ("queueOffset", "tags", "queueOffset"), ("value",), ()])
    def test_unknown_and_repeated_columns_are_refused(self, log: Log, columns: tuple[str, ...]) -> None:
        with pytest.raises(InvalidColumns):
            scan(log, ALL_A0, columns=columns)

    def test_sizes_are_given_or_unknown(self, making: Making, log: Log) -> None:
        making.append(messages(A1, range(250), size=1000))
        before = log.sizes(QueueRange(A1, 10, 250))
        making.delete_oldest(A1)
        after = log.sizes(QueueRange(A1, 0, 250))
        if before is None or after is None:
            assert before is after
            return
        assert (before.dtype, before.shape) == (np.int64, (240,))
        assert (before > 1000).all()
        first = log.bounds([A1])[A1].min_offset
        assert after.tolist() == [0] * first + before[first - 10 :].tolist()

    def test_fingerprints_detect_replaced_messages_if_supported(self, making: Making, log: Log) -> None:
        making.append(messages(A1, range(250), size=1000))
        positions = {A0: 10, A1: 1, B0: 3}
        found = log.fingerprints({**positions, B0: 0})
        assert found.keys() in (set(), {A0, A1})
        assert log.replaced(positions, found) == []
        if found:
            assert log.replaced({A0: 9, A1: 1}, found) == [A0]
            making.delete_oldest(A1)
            assert A1 not in log.fingerprints(positions)
        assert log.replaced(positions, found) == []

    def test_committed_offsets_are_read(self, making: Making, log: Log) -> None:
        assert log.committed("readers", [A0, A1, B0]) == {}
        told = making.commit("readers", {A0: 4, B0: 0})
        assert log.committed("readers", [A1, A0]) == {queue: at for queue, at in told.items() if queue != B0}
        assert log.committed("others", [A0]) == {}
        assert log.groups() == ({"readers": told} if told else {})

    def test_offsets_are_found_by_time(self, making: Making, log: Log) -> None:
        another_millisecond()
        making.append(messages(A0, range(10, 20)))
        table = pa.Table.from_batches(scan(log, QueueRange(A0, 0, 20), ("storeTimestamp",)))
        times = [int(stored) // 1000 for stored in table["storeTimestamp"].cast(pa.int64()).to_pylist()]
        for at in {each + by for each in times for by in (-1, 0, 1)}:
            older, not_newer = sum(t < at for t in times), sum(t <= at for t in times)
            lower = log.offsets_by_time([A0, A1, self.queue("nowhere", 0)], at, Boundary.LOWER)
            assert lower == {A0: older, A1: 0}
            assert log.offsets_by_time([A0], at, Boundary.UPPER) == {A0: max(0, not_newer - 1)}

    def test_ranges_narrowed_by_key_keep_all_matches(self, log: Log) -> None:
        found = log.with_keys([QueueRange(A0, 2, 9), QueueRange(B0, 0, 3)], ["k3", "k1"])
        there = {(r.queue, offset) for r in found for offset in range(r.start, r.end)}
        assert {(A0, 3), (B0, 1)} <= there <= {(A0, offset) for offset in range(2, 9)} | {(B0, n) for n in range(3)}
