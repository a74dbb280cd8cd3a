from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.epochs import distribute_queues
from pyspark_mq.source.held_reading import HeldTask
from pyspark_mq.source.ledger import Ledger, TaskRecord
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader, stream_reader
from store.model.log_protocol import Queue
from tests.driven import DrivenQuery
from tests.filled import Filled
from tests.pyspark_mq.source.driving import latest, reader, run, task

ROUNDS = int(os.environ.get("ROUNDS", "10"))


@pytest.fixture(autouse=True)
def _pipelined_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")


def test_queues_are_packed_into_tasks(filled: Filled) -> None:
    it = reader(filled, realTimePartitions="1")
    start = it.initialOffset()
    end = latest(it, start)
    assert end["$from"] == [{"orders": {"0": 0, "1": 0}}]
    assert run(it, it.partitions(start, end)) == sorted(filled.rows)


@pytest.mark.parametrize(("given", "told", "tasks"), [({}, 1, 1), ({}, 2, 2), ({"realTimePartitions": "2"}, 1, 2)])
def test_number_of_tasks_follows_the_slots_unless_set(
    filled: Filled, given: dict[str, str], told: int, tasks: int
) -> None:
    options = {"path": filled.path, "subscribe": "orders", "startingOffsets": "earliest", "realTime": "true", **given}
    it = stream_reader(SourceOptions.parse(options), default_schema(False))
    start = it.initialOffset()
    end = latest(it, start)
    for partition in it.partitions(start, end):
        held: HeldTask = partition.value
        Ledger(f"{filled.path}/ledger").record(held.name, TaskRecord(held.begin, slots=told))
    assert len(latest(it, end)["$from"]) == tasks


@pytest.mark.parametrize(
    ("queues", "tasks", "sizes"), [(5, 2, [3, 2]), (2, 5, [1, 1]), (1, 1, [1]), (0, 3, []), (7, 3, [3, 2, 2])]
)
def test_queues_are_dealt_out_evenly(queues: int, tasks: int, sizes: list[int]) -> None:
    begin = {Queue("orders", queue_id): 10 * queue_id for queue_id in range(queues)}
    packed = distribute_queues(begin, tasks)
    assert [len(part) for part in packed] == sizes
    assert {queue: offset for part in packed for queue, offset in part.items()} == begin


def test_new_queue_joins_at_the_next_batch(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    filled.store.create_topic("orders", 3)
    filled.put("orders", 2, 2)
    assert len(run(it, it.partitions(start, end))) == 8
    following = latest(it, end)
    assert following["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 5}}, {"orders": {"2": 0}}]
    assert len(run(it, it.partitions(end, following))) == 2


def test_pattern_may_match_nothing_yet(filled: Filled) -> None:
    options = {"path": filled.path, "subscribePattern": "later", "realTime": "true", "holdTimeoutMs": "0"}
    it = stream_reader(SourceOptions.parse(options), default_schema(False))
    start = it.initialOffset()
    assert latest(it, start) is start
    filled.store.create_topic("later", 1)
    assert latest(it, start)["$from"] == [{"later": {"0": 0}}]


def test_query_switches_between_real_time_and_micro_batches(filled: Filled) -> None:
    first = reader(filled)
    start = first.initialOffset()
    end = latest(first, start)
    rows = run(first, first.partitions(start, end))

    second = reader(filled, real_time=False)
    assert latest(second, end) is end
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
    end = latest(first, start)
    second = reader(filled, real_time=False)
    assert run(second, second.partitions(start, end)) == sorted(filled.rows)
    assert latest(second, end) is end


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_triggers_with_an_end_use_micro_batches(filled: Filled, trigger: str) -> None:
    it = reader(filled, batchDuration="1h")
    start = it.initialOffset()
    if trigger == "availableNow":
        it.prepareForTriggerAvailableNow()
        end = latest(it, start)
    else:
        end = it.latestOffset(start, ReadAllAvailable())
    assert end["orders"] == {"0": 3, "1": 5}
    assert run(it, it.partitions(start, end)) == sorted(filled.rows)


def test_records_are_kept_while_a_batch_may_start_from_them(filled: Filled) -> None:
    it = reader(filled)
    offset = it.initialOffset()
    for _ in range(3):
        end = latest(it, offset)
        run(it, it.partitions(offset, end))
        it.commit(offset)
        offset = end
    (folder,) = (Path(filled.path) / "ledger").iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names == [".made", "1-0.json", "1-1.json", "2-0.json", "2-1.json"]
    # The next run continues from the last record, and a copy of the checkpoint may do so later.
    following = reader(filled)
    end = latest(following, offset)
    run(following, following.partitions(offset, end))
    following.commit(offset)
    following.commit(end)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [".made", "1-0.json", "1-1.json", "2-0.json", "2-1.json", "passed"]


def quick(filled: Filled, *, real_time: bool) -> MqStreamReader:
    return reader(filled, real_time=real_time, batch_seconds=0.01, realTimePartitions="2")


runs = st.tuples(
    st.integers(0, 3),
    st.booleans(),  # whether a copy of its checkpoint runs first, and the original later
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 40),  # the step at which the driver is killed
    st.integers(0, 3),
)


@settings(max_examples=ROUNDS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(runs, max_size=12))
def test_killed_drivers_and_copied_checkpoints_continue_exactly(
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
        # Leftovers of killed drivers are deleted after the retention time.
        for _ in range(2):
            for path in ledger.rglob("*"):
                os.utime(path, (0, 0))
            for query in queries:
                query.run(lambda: quick(filled, real_time=True), 2)
        assert len(list(ledger.iterdir())) <= 2 * len(queries)
        for query in queries:
            query.run(lambda: quick(filled, real_time=False))
            assert query.rows == sorted(filled.rows)


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
    assert "1 of 2 real-time tasks started only after other tasks had ended" in record.getMessage()
    assert "Set realTimePartitions to 1" in record.getMessage()
