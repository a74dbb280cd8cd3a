from __future__ import annotations

import threading
import time
from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_mq.errors import LedgerError, OptionError
from pyspark_mq.source import held_reading
from pyspark_mq.source.held_reading import HeldTask
from pyspark_mq.source.ledger import Ledger, TaskRecord
from store import StoreReplaced
from store.append import log_end
from store.model.log_protocol import Queue
from tests.filled import Filled
from tests.pyspark_mq.source.driving import Row, latest, reader, run, task
from tests.takeover import broker


@pytest.fixture(autouse=True)
def _pipelined_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")


def test_batch_reads_existing_and_arriving_messages(filled: Filled) -> None:
    it = reader(filled, batch_seconds=2)
    start = it.initialOffset()
    end = latest(it, start)
    begin = [{"orders": {"0": 0}}, {"orders": {"1": 0}}]
    assert end == {"$epoch": 0, "$reader": end["$reader"], "$from": begin, "$last": {}}
    rows = run(it, it.partitions(start, end), lambda row: filled.put("orders", 1, 2) if row[1:3] == (1, 4) else None)
    assert rows == sorted(filled.rows)
    following = latest(it, end)
    assert following["$epoch"] == 1
    assert following["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 7}}]
    assert run(reader(filled), it.partitions(end, following)) == []


def test_short_batch_without_a_match_advances(filled: Filled) -> None:
    it = reader(filled, subExpression="C")
    end = latest(it, it.initialOffset())
    assert run(it, it.partitions(end, end)) == []
    assert latest(it, end)["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 5}}]


def test_rows_are_returned_as_they_arrive(filled: Filled) -> None:
    it = reader(filled, batchDuration="60s", startingOffsets="latest")
    start = it.initialOffset()
    (partition, _) = it.partitions(start, latest(it, start))
    arrival = threading.Timer(0.1, filled.put, ("orders", 0, 1))
    begin = time.monotonic()
    arrival.start()
    batches = it.read(partition)
    assert next(batches).num_rows == 1
    assert time.monotonic() - begin < 30
    batches.close()  # type: ignore[attr-defined]


def test_open_batch_raises_for_a_new_owner(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.05)
    it = reader(filled, batchDuration="60s", realTimePartitions="1")
    start = it.initialOffset()
    rows = it.read(it.partitions(start, latest(it, start))[0])
    seen = 0
    while seen < len(filled.rows):
        seen += next(rows).num_rows
    filled.store.close()
    with broker(Path(filled.path)) as filled.store:
        filled.put("orders", 1, 2)
        with pytest.raises(StoreReplaced):
            list(rows)
    rows.close()  # type: ignore[attr-defined]
    again = reader(filled, startingOffsets="earliest")
    start = again.initialOffset()
    assert len(run(again, again.partitions(start, latest(again, start)))) == len(filled.rows)


def test_completed_batch_is_replayed_exactly(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    rows = run(it, it.partitions(start, end))
    filled.put("orders", 0, 5)
    again = reader(filled)
    begin = time.monotonic()
    assert run(again, again.partitions(again.initialOffset(), end)) == rows
    assert time.monotonic() - begin < 30
    assert latest(again, end)["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 5}}]


def test_recorded_tasks_are_replayed_and_others_read_again(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    first, _ = it.partitions(start, end)
    done = task(it, first)
    filled.put("orders", 0, 2)
    filled.put("orders", 1, 2)
    again = reader(filled)
    assert task(again, again.partitions(start, end)[0]) == done
    assert len(task(again, again.partitions(start, end)[1])) == 7
    assert latest(again, end)["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 7}}]


def test_concurrent_attempts_agree_or_one_fails(filled: Filled) -> None:
    it = reader(filled, realTimePartitions="1")
    start = it.initialOffset()
    end = latest(it, start)
    outcomes: list[list[Row] | LedgerError] = []

    def attempt() -> None:
        try:
            outcomes.append(task(it, it.partitions(start, end)[0]))
        except LedgerError as error:
            outcomes.append(error)

    stop = threading.Event()

    def keep_putting() -> None:
        while not stop.is_set():
            filled.put("orders", 0, 1)

    writer = threading.Thread(target=keep_putting)
    attempts = [threading.Thread(target=attempt) for _ in range(3)]
    for thread in (writer, *attempts):
        thread.start()
    for thread in attempts:
        thread.join()
    stop.set()
    writer.join()
    recorded = task(it, it.partitions(start, end)[0])
    finished = [rows for rows in outcomes if not isinstance(rows, LedgerError)]
    assert finished
    assert all(sorted(rows) == sorted(recorded) for rows in finished)


def record(filled: Filled, *ends: int) -> TaskRecord:
    queues = [Queue("orders", queue_id) for queue_id in range(len(ends))]
    last = filled.store.fingerprints({queue: end - 1 for queue, end in zip(queues, ends, strict=True)})
    return TaskRecord(dict(zip(queues, ends, strict=True)), last=last)


def test_attempt_that_read_more_than_recorded_fails(filled: Filled) -> None:
    it = reader(filled, realTimePartitions="1")
    start = it.initialOffset()
    (partition,) = it.partitions(start, latest(it, start))
    held: HeldTask = partition.value
    ledger = Ledger(f"{filled.path}/ledger")
    recorded = record(filled, 1, 5)

    with pytest.raises(LedgerError, match=r"read up to 3, but another attempt .* recorded 1"):
        task(it, partition, see=lambda row: ledger.record(held.name, recorded))
    assert [row[:3] for row in task(it, partition)] == [("orders", 0, 0), *(("orders", 1, n) for n in range(5))]


def test_attempt_that_read_less_than_recorded_reads_on(filled: Filled) -> None:
    it = reader(filled, realTimePartitions="1", startingOffsets="latest")
    start = it.initialOffset()
    (partition,) = it.partitions(start, latest(it, start))
    held: HeldTask = partition.value
    # Another attempt saw two more messages than this one, and recorded them.
    ended = HeldTask(held.name, held.begin, 0.0, held.planned, held.boot_id)
    rows: list[Row] = []
    filled.put("orders", 0, 2)
    Ledger(f"{filled.path}/ledger").record(held.name, record(filled, 5, 5))
    for batch in it.read(InputPartition(ended)):
        rows += batch.to_pylist()
    assert len(rows) == 2


@pytest.mark.parametrize(("expression", "kind"), [("B", "TAG"), ("TAGS = 'B'", "SQL92")])
def test_messages_without_a_match_are_skipped(filled: Filled, expression: str, kind: str) -> None:
    it = reader(filled, subExpression=expression, expressionType=kind)
    start = it.initialOffset()
    end = latest(it, start)
    assert [row[2] for row in run(it, it.partitions(start, end)) if row[1] == 1] == [1, 3]
    assert latest(it, end)["$from"][1] == {"orders": {"1": 5}}


def test_workers_that_buffer_batches_are_refused(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_PIPELINED_UDF")
    it = reader(filled)
    start = it.initialOffset()
    with pytest.raises(OptionError, match=r"spark\.python\.udf\.pipelined\.enabled=true"):
        task(it, it.partitions(start, latest(it, start))[0])


def test_backlog_is_read_in_full_batches_queue_by_queue(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_reading, "_ROWS_AT_ONCE", 100)
    filled.put("orders", 0, 250, size=1)
    it = reader(filled, realTimePartitions="1", batchDuration="60s")
    start = it.initialOffset()
    (partition,) = it.partitions(start, latest(it, start))
    batches = it.read(partition)
    turns = [(batch.column("queueId")[0].as_py(), batch.num_rows) for batch in islice(batches, 4)]
    batches.close()  # type: ignore[attr-defined]
    assert turns == [(0, 100), (1, 5), (0, 100), (0, 53)]
