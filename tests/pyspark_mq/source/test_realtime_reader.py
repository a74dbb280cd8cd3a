"""Real-time batches by themselves, driven as Spark drives the reader, over real stores."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_mq.errors import LedgerError, OptionError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source import held_reading
from pyspark_mq.source.held_reading import HeldTask
from pyspark_mq.source.ledger import Ledger, TaskRecord
from pyspark_mq.source.realtime_reader import RealTimeStreamReader, pack
from pyspark_mq.source.schema import default_schema
from store import MessageStore
from store.any_log import Queue
from store.publish import log_end
from tests.driven import DrivenQuery
from tests.filled import Filled
from tests.takeover import broker

ROUNDS = int(os.environ.get("ROUNDS", "10"))

Json = dict[str, Any]
Row = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _pipelined_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")


def reader(filled: Filled, *, real_time: bool = True, **options: Any) -> RealTimeStreamReader:
    base = {"path": filled.path, "subscribe": "orders", "startingOffsets": "earliest", "holdTimeoutMs": "0"}
    if real_time:
        base |= {"realTime": "true", "batchDuration": "1s", "realTimePartitions": "8"}
    return RealTimeStreamReader(SourceOptions.parse({**base, **options}), default_schema(False))


def latest(it: RealTimeStreamReader, start: Json) -> Json:
    return it.latestOffset(start, it.getDefaultReadLimit())


def run(it: RealTimeStreamReader, partitions: list[InputPartition]) -> list[Row]:
    """All tasks at once, as with enough task slots."""
    results: list[list[Row]] = [[] for _ in partitions]
    threads = [
        threading.Thread(target=lambda p=p, out=out: out.extend(task(it, p)))
        for p, out in zip(partitions, results, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(row for rows in results for row in rows)


def task(
    it: RealTimeStreamReader, partition: InputPartition, see: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    rows = []
    for batch in it.read(partition):
        for row in batch.to_pylist():
            rows.append(tuple(row[name] for name in ("topic", "queueId", "queueOffset", "body")))
            see(rows[-1])
    return rows


def test_a_batch_reads_what_is_there_and_what_arrives(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    assert end == {"$epoch": 0, "$reader": end["$reader"], "$from": [{"orders": {"0": 0}}, {"orders": {"1": 0}}]}
    arrival = threading.Timer(0.3, filled.put, ("orders", 1, 2))
    arrival.start()
    rows = run(it, it.partitions(start, end))
    arrival.join()
    assert rows == sorted(filled.rows)
    following = latest(it, end)
    assert following["$epoch"] == 1
    assert following["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 7}}]
    assert run(it, it.partitions(end, following)) == []


def test_rows_come_out_as_they_arrive(filled: Filled) -> None:
    it = reader(filled, batchDuration="60s", startingOffsets="latest")
    start = it.initialOffset()
    (partition, _) = it.partitions(start, latest(it, start))
    arrival = threading.Timer(0.1, filled.put, ("orders", 0, 1))
    begin = time.monotonic()
    arrival.start()
    batches = it.read(partition)
    assert next(batches).num_rows == 1  # long before the batch ends
    assert time.monotonic() - begin < 30
    batches.close()  # type: ignore[attr-defined]


def test_an_open_batch_goes_on_behind_a_broker_that_took_over(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.05)
    it = reader(filled, batchDuration="60s", realTimePartitions="1")
    start = it.initialOffset()
    rows = it.read(it.partitions(start, latest(it, start))[0])
    seen = 0

    def until_all_is_seen() -> None:
        nonlocal seen
        while seen < len(filled.rows):
            batch = next(rows).to_pylist()
            there = [row for row in filled.rows if row[1] == batch[0]["queueId"]] if batch else []
            assert [row["body"] for row in batch] == [row[3] for row in there[len(there) - len(batch) :]]
            seen += len(batch)

    until_all_is_seen()
    filled.store.close()
    with broker(Path(filled.path)) as filled.store:
        for queue_id in (1, 0, 1):
            filled.put("orders", queue_id, 2)
            until_all_is_seen()
    with MessageStore.open(filled.path) as filled.store:
        filled.put("orders", 0, 1)
        until_all_is_seen()
    rows.close()  # type: ignore[attr-defined]


def test_a_batch_that_ran_is_replayed_exactly(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    rows = run(it, it.partitions(start, end))
    filled.put("orders", 0, 5)
    again = reader(filled)
    begin = time.monotonic()
    assert run(again, again.partitions(again.initialOffset(), end)) == rows
    assert time.monotonic() - begin < 30  # no hold: it is known what there is
    assert latest(again, end)["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 5}}]


def test_a_task_without_a_record_reads_anew_beside_one_with(filled: Filled) -> None:
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


def test_two_attempts_at_once_agree_or_one_fails(filled: Filled) -> None:
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


def test_an_attempt_that_read_more_than_is_recorded_fails(filled: Filled) -> None:
    it = reader(filled, realTimePartitions="1")
    start = it.initialOffset()
    (partition,) = it.partitions(start, latest(it, start))
    held: HeldTask = partition.value
    ledger = Ledger(f"{filled.path}/ledger")
    recorded = TaskRecord({Queue("orders", 0): 1, Queue("orders", 1): 5})

    with pytest.raises(LedgerError, match=r"read up to 3, but another attempt .* recorded 1"):
        task(it, partition, see=lambda row: ledger.record(held.name, recorded))
    assert [row[:3] for row in task(it, partition)] == [("orders", 0, 0), *(("orders", 1, n) for n in range(5))]


def test_an_attempt_that_read_less_reads_on(filled: Filled) -> None:
    it = reader(filled, realTimePartitions="1", startingOffsets="latest")
    start = it.initialOffset()
    (partition,) = it.partitions(start, latest(it, start))
    held: HeldTask = partition.value
    more = {Queue("orders", 0): 5, Queue("orders", 1): 5}
    # Another attempt saw two more messages before this one had time to, and recorded them.
    ended = HeldTask(held.name, held.begin, 0.0, held.planned, held.boot_id)
    rows: list[Row] = []
    batches = it.read(InputPartition(ended))
    Ledger(f"{filled.path}/ledger").record(held.name, TaskRecord(more))
    filled.put("orders", 0, 2)
    for batch in batches:
        rows += batch.to_pylist()
    assert len(rows) == 2


def test_queues_are_packed_into_tasks(filled: Filled) -> None:
    it = reader(filled, realTimePartitions="1")
    start = it.initialOffset()
    end = latest(it, start)
    assert end["$from"] == [{"orders": {"0": 0, "1": 0}}]
    assert run(it, it.partitions(start, end)) == sorted(filled.rows)


@pytest.mark.parametrize(("given", "told", "tasks"), [({}, 1, 1), ({}, 2, 2), ({"realTimePartitions": "2"}, 1, 2)])
def test_as_many_tasks_as_the_last_batch_had_slots_unless_told(
    filled: Filled, given: dict[str, str], told: int, tasks: int
) -> None:
    options = {"path": filled.path, "subscribe": "orders", "startingOffsets": "earliest", "realTime": "true", **given}
    it = RealTimeStreamReader(SourceOptions.parse(options), default_schema(False))
    start = it.initialOffset()
    end = latest(it, start)
    for partition in it.partitions(start, end):
        held: HeldTask = partition.value
        Ledger(f"{filled.path}/ledger").record(held.name, TaskRecord(held.begin, slots=told))
    assert len(latest(it, end)["$from"]) == tasks


@pytest.mark.parametrize(
    ("queues", "tasks", "sizes"), [(5, 2, [3, 2]), (2, 5, [1, 1]), (1, 1, [1]), (0, 3, []), (7, 3, [3, 2, 2])]
)
def test_packing(queues: int, tasks: int, sizes: list[int]) -> None:
    begin = {Queue("orders", queue_id): 10 * queue_id for queue_id in range(queues)}
    packed = pack(begin, tasks)
    assert [len(part) for part in packed] == sizes
    assert {queue: offset for part in packed for queue, offset in part.items()} == begin


def test_a_new_queue_joins_at_the_next_batch(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    filled.store.create_topic("orders", 3)
    filled.put("orders", 2, 2)
    assert len(run(it, it.partitions(start, end))) == 8
    following = latest(it, end)
    assert following["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 5}}, {"orders": {"2": 0}}]
    assert len(run(it, it.partitions(end, following))) == 2


def test_a_pattern_may_match_nothing_yet(filled: Filled) -> None:
    options = {"path": filled.path, "subscribePattern": "later", "realTime": "true", "holdTimeoutMs": "0"}
    it = RealTimeStreamReader(SourceOptions.parse(options), default_schema(False))
    start = it.initialOffset()
    assert latest(it, start) is start
    filled.store.create_topic("later", 1)
    assert latest(it, start)["$from"] == [{"later": {"0": 0}}]


@pytest.mark.parametrize(("expression", "kind"), [("B", "TAG"), ("TAGS = 'B'", "SQL92")])
def test_what_does_not_match_is_passed_over(filled: Filled, expression: str, kind: str) -> None:
    it = reader(filled, subExpression=expression, expressionType=kind)
    start = it.initialOffset()
    end = latest(it, start)
    assert [row[2] for row in run(it, it.partitions(start, end)) if row[1] == 1] == [1, 3]
    assert latest(it, end)["$from"][1] == {"orders": {"1": 5}}


def test_from_real_time_to_micro_batches_and_back(filled: Filled) -> None:
    first = reader(filled)
    start = first.initialOffset()
    end = latest(first, start)
    rows = run(first, first.partitions(start, end))

    second = reader(filled, real_time=False)
    assert latest(second, end) is end  # nothing new
    filled.put("orders", 0, 2)
    plain = latest(second, end)
    assert plain["orders"] == {"0": 5, "1": 5}
    assert plain["$start"] == {"orders": {"0": 3, "1": 5}}
    rows += run(second, second.partitions(end, plain))

    third = reader(filled)
    filled.put("orders", 1, 2)
    following = latest(third, plain)
    assert following["$from"] == [{"orders": {"0": 5}}, {"orders": {"1": 5}}]
    rows += run(third, third.partitions(plain, following))
    assert sorted(rows) == sorted(filled.rows)


def test_micro_batches_finish_a_real_time_batch_without_holding(filled: Filled) -> None:
    first = reader(filled, batchDuration="1h")
    start = first.initialOffset()
    end = latest(first, start)  # logged, and then the query was killed
    second = reader(filled, real_time=False)
    assert run(second, second.partitions(start, end)) == sorted(filled.rows)
    assert latest(second, end) is end


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_triggers_with_an_end_take_micro_batches(filled: Filled, trigger: str) -> None:
    it = reader(filled, batchDuration="1h")
    start = it.initialOffset()
    if trigger == "availableNow":
        it.prepareForTriggerAvailableNow()
        end = latest(it, start)
    else:
        end = it.latestOffset(start, ReadAllAvailable())
    assert end["orders"] == {"0": 3, "1": 5}
    assert run(it, it.partitions(start, end)) == sorted(filled.rows)


def test_records_are_kept_as_long_as_a_batch_may_start_from_them(filled: Filled) -> None:
    it = reader(filled)
    offset = it.initialOffset()
    for _ in range(3):
        end = latest(it, offset)
        run(it, it.partitions(offset, end))
        it.commit(offset)
        offset = end
    (folder,) = (Path(filled.path) / "ledger").iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["1-0.json", "1-1.json", "2-0.json", "2-1.json"]
    # The next run goes on from the last record, and a copy of the checkpoint may do so later.
    following = reader(filled)
    end = latest(following, offset)
    run(following, following.partitions(offset, end))
    following.commit(offset)
    following.commit(end)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["1-0.json", "1-1.json", "2-0.json", "2-1.json", "passed"]


def quick(filled: Filled, *, real_time: bool) -> RealTimeStreamReader:
    """With batches of a hundredth of a second."""
    options = {"path": filled.path, "subscribe": "orders", "startingOffsets": "earliest", "holdTimeoutMs": "0"}
    parsed = SourceOptions.parse(options)
    return RealTimeStreamReader(
        replace(parsed, real_time=real_time, batch_duration_seconds=0.01, real_time_partitions=2),
        default_schema(False),
    )


runs = st.tuples(
    st.integers(0, 3),  # which of the queries
    st.booleans(),  # whether a copy of its checkpoint goes on beside it, and runs first
    st.booleans(),  # realTime
    st.integers(0, 3),  # batches
    st.integers(0, 40),  # the step at which the driver is killed
    st.integers(0, 3),  # messages put before
)


@settings(max_examples=ROUNDS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(runs, max_size=12))
def test_killed_drivers_and_copied_checkpoints_go_on_exactly(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, bool, bool, int, int, int]]
) -> None:
    filled = Filled(tmp_path_factory.mktemp("run") / "mq", {"orders": 2})
    ledger = Path(filled.path) / "ledger"
    queries = [DrivenQuery()]
    with filled.store:
        for which, copied, real_time, batches, killed_at, count in plan:
            filled.put("orders", count % 2, count)
            query = queries[which % len(queries)]
            if copied:
                query = query.copy()
                queries.append(query)
            query.run(lambda real_time=real_time: quick(filled, real_time=real_time), batches, killed_at)
        filled.put("orders", 0, 1)
        for query in queries:
            query.run(lambda: quick(filled, real_time=False))
            assert query.rows == sorted(filled.rows)
        # However many drivers were killed, what they left goes when its time is over.
        for _ in range(2):
            for path in ledger.rglob("*"):
                os.utime(path, (0, 0))
            for query in queries:
                query.run(lambda: quick(filled, real_time=True), 2)
        assert len(list(ledger.iterdir())) <= 2 * len(queries)
        for query in queries:
            query.run(lambda: quick(filled, real_time=False))
            assert query.rows == sorted(filled.rows)


def test_workers_that_keep_batches_back_are_refused(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_PIPELINED_UDF")
    it = reader(filled)
    start = it.initialOffset()
    with pytest.raises(OptionError, match=r"spark\.python\.udf\.pipelined\.enabled=true"):
        task(it, it.partitions(start, latest(it, start))[0])


def test_tasks_that_wait_for_a_slot_are_reported_once(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    for partition in it.partitions(start, end):  # one slot: one after the other
        assert task(it, partition)
    with caplog.at_level(logging.WARNING, "pyspark_mq"):
        latest(it, end)
        latest(it, end)
    (record,) = caplog.records
    assert "1 of 2 real-time tasks could start only when the others had ended" in record.getMessage()
    assert "Set realTimePartitions to 1" in record.getMessage()


def test_a_backlog_comes_in_full_batches_and_all_queues_have_turns(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_reading, "_ROWS_AT_ONCE", 100)
    filled.put("orders", 0, 250, size=1)
    it = reader(filled, realTimePartitions="1")
    start = it.initialOffset()
    (partition,) = it.partitions(start, latest(it, start))
    turns = [(batch.column("queueId")[0].as_py(), batch.num_rows) for batch in it.read(partition)]
    assert turns == [(0, 100), (1, 5), (0, 100), (0, 53)]
