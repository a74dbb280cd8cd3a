from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from store import InvalidColumns, StoreClosed, TagFilter, UnknownTopic
from store.model.log_protocol import (
    Log,
    LogWriter,
    QueueRange,
)
from tests.logs.made import A0, A1, B0, LONG, LogKind, Making, numbers, scan


class WritingTests(LogKind):
    @pytest.fixture
    def writer(self, making: Making, log: Log) -> Iterator[LogWriter]:
        with making.address.open_writer() as it:
            yield it

    def test_writer_reads_its_own_messages(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("a", pa.table({"body": ["10", "11"], "queueId": [0, 0]}))
        placed = append.publish()
        assert placed is not None
        assert (placed.queue_ids.tolist(), placed.queue_offsets.tolist()) == ([0, 0], [10, 11])
        for it in (log, writer):
            assert numbers(it, QueueRange(A0, 0, 12)) == [*range(12)]
            assert dict(it.topics()) == {"a": (A0, A1), "b": (B0,)}

    def test_message_is_read_as_written(self, log: Log, writer: LogWriter) -> None:
        columns = {"body": [b"x"], "tags": ["paid"], "queueId": [1], "keys": ["k l"]}
        properties = pa.array([[("region", "eu")]], pa.map_(pa.string(), pa.string()))
        append = writer.begin()
        append.add("a", pa.table({**columns, "properties": properties}))
        append.publish()
        (batch,) = scan(log, QueueRange(A1, 0, 1), ("body", "tags", "keys", "properties", "queueId", "queueOffset"))
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
            numbers(log, QueueRange(A1, 0, 1), columns=("tags", "body"), message_filter=TagFilter.parse("open")) == []
        )

    def test_rows_without_a_queue_are_spread(self, log: Log, writer: LogWriter) -> None:
        before = log.bounds([A0, A1])
        append = writer.begin()
        append.add("a", pa.table({"body": [str(n) for n in range(100)]}))
        append.publish()
        added = {queue: bounds.max_offset - before[queue].max_offset for queue, bounds in log.bounds([A0, A1]).items()}
        assert sum(added.values()) == 100
        assert min(added.values()) > 20

    def test_all_added_rows_become_visible_at_once(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.add("a", pa.table({"body": ["0"], "queueId": [1]}))
        append.add("b", pa.RecordBatch.from_pydict({"body": ["4"]}))
        assert log.bounds([B0, A1]) == {B0: (0, 3), A1: (0, 0)}
        append.publish(flush=True)
        assert log.bounds([B0, A1]) == {B0: (0, 5), A1: (0, 1)}
        assert numbers(log, QueueRange(B0, 0, 5)) == [*range(5)]

    def test_abandoned_append_stays_invisible(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.abandon()
        append.abandon()
        with pytest.raises(StoreClosed):
            append.publish()
        assert log.bounds([B0]) == {B0: (0, 3)}

    def test_published_append_cannot_be_used_again(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.publish()
        for verb in (append.publish, lambda: append.add("b", pa.table({"body": ["4"]}))):
            with pytest.raises(StoreClosed):
                verb()
        assert log.bounds([B0]) == {B0: (0, 4)}

    def test_condition_is_checked_while_others_cannot_append(self, log: Log, writer: LogWriter) -> None:
        """If several writers append only to an empty queue, exactly one succeeds."""

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

    def test_wrong_tables_are_refused(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        with pytest.raises(UnknownTopic):
            append.add("nowhere", pa.table({"body": ["x"]}))
        with pytest.raises(InvalidColumns):
            append.add("b", pa.table({"bod": ["x"]}))
        append.add("b", pa.table({"body": ["3"]}))
        append.publish()
        assert numbers(log, QueueRange(B0, 3, 4)) == [3]

    def test_topics_are_created_and_get_more_queues(self, log: Log, writer: LogWriter) -> None:
        assert writer.create_topic("c", 2) == 2
        assert writer.create_topic("b", 3) == 3
        assert [len(log.topics()[topic]) for topic in "abc"] == [2, 3, 2]
        append = writer.begin()
        append.add("b", pa.table({"body": ["0"], "queueId": [2]}))
        append.publish()
        assert numbers(log, QueueRange(self.queue("b", 2), 0, 1)) == [0]

    def test_writer_can_flush(self, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("b", pa.table({"body": ["3"]}))
        append.publish()
        writer.flush()
        assert writer.bounds([B0]) == {B0: (0, 4)}

    def test_append_wakes_a_waiting_reader(self, log: Log, writer: LogWriter) -> None:
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
