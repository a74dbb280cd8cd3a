"""Orderly streams over real stores, called as Spark calls them. Real queries: `tests/end_to_end/test_orderly.py`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pyspark_mq.errors import DataLossError, OptionError, QueuesTaken
from pyspark_mq.options.source import SourceOptions, WhenLocked
from pyspark_mq.planning.query_figures import QueryFigures
from pyspark_mq.planning.query_group import OrderlyQueues
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader, stream_reader
from pyspark_mq.stats.measures import RunningQuery, running_queries
from store import GroupConflict
from store.api.group_protocol import Subscription
from store.directory.directory_group import DirectoryGroup
from store.directory.directory_log import DirectoryAddress
from store.model.errors import CorruptStore
from store.model.log_protocol import Queue
from tests.filled import Filled
from tests.members import remote_member
from tests.pyspark_mq.source.streaming import bare, latest, ranges
from tests.restarted import delete_as_broker
from tests.waiting import until

Q0, Q1 = Queue("orders", 0), Queue("orders", 1)
ORDERLY = {"consumeMode": "orderly", "consumerGroup": "g", "startingOffsets": "earliest", "holdTimeoutMs": "0"}
EVERYTHING = {"orders": Subscription()}


class Readers:
    """Each reader is one run of a query. All are stopped after the test."""

    def __init__(self, filled: Filled, stack: ExitStack) -> None:
        self._filled = filled
        self._stack = stack

    def __call__(self, **options: str) -> MqStreamReader:
        given = {"path": str(self._filled.path), "subscribe": "orders", **ORDERLY, **options}
        it = stream_reader(SourceOptions.parse(given), default_schema(False))
        self._stack.callback(it.stop)
        return it


@pytest.fixture
def reader(filled: Filled) -> Iterator[Readers]:
    with ExitStack() as stack:
        yield Readers(filled, stack)


@pytest.fixture
def group(filled: Filled) -> DirectoryGroup:
    return DirectoryGroup(filled.path, "g")


def figures_of(group: DirectoryGroup) -> QueryFigures:
    return QueryFigures(DirectoryAddress(group.path), group.name)


def test_query_owns_its_queues_while_it_runs(reader: Readers, group: DirectoryGroup) -> None:
    it = reader()
    start = it.initialOffset()
    assert group.members() == []
    end = latest(it, start)
    (member,) = group.members()
    assert (member.queues, member.orderly) == ((Q0, Q1), True)
    assert running_queries(Path(group.path)) == [RunningQuery("g", ("orders",), os.getpid())]
    assert latest(it, end) == end
    it.stop()
    assert group.members() == []
    assert running_queries(Path(group.path)) == []
    assert group.committed([Q0, Q1]) == {Q0: 3, Q1: 5}


def test_group_has_all_offsets_before_the_query_ends(reader: Readers, group: DirectoryGroup) -> None:
    """Spark ends a query that has read everything without calling `stop`."""
    it = reader()
    end = latest(it, it.initialOffset())
    assert latest(it, end) == end
    assert group.committed([Q0, Q1]) == {Q0: 3, Q1: 5}


def test_second_query_waits_and_continues_at_the_groups_offsets(reader: Readers, filled: Filled) -> None:
    one, other = reader(maxOffsetsPerTrigger="4"), reader()
    start = one.initialOffset()
    end = latest(one, start)
    assert latest(other, start) == start
    following = latest(one, end)
    assert latest(other, start) == start
    one.stop()
    theirs = latest(other, start)
    first = {Queue("orders", int(queue)): offset for queue, offset in end["orders"].items()}
    assert bare(theirs) == {"orders": {"0": 3, "1": 5}, "$start": {"orders": {"0": first[Q0], "1": first[Q1]}}}
    read = sorted(part for text in ranges(other, start, theirs) for part in text.split(" + "))
    assert read == [f"orders/0 [{first[Q0]}, 3)", f"orders/1 [{first[Q1]}, 5)"]
    assert bare(following)["orders"] == {"0": 3, "1": 5}
    filled.put("orders", 0, 1)
    assert bare(latest(other, theirs)) == {"orders": {"0": 4, "1": 5}}


def test_groups_offsets_count_although_no_message_is_new(reader: Readers, filled: Filled) -> None:
    one, other = reader(), reader()
    start = one.initialOffset()
    end = latest(one, start)
    assert latest(one, end) == end
    one.stop()
    assert latest(other, start) == start
    filled.put("orders", 1, 1)
    assert ranges(other, start, latest(other, start)) == ["orders/1 [5, 6)"]


def test_query_fails_if_its_queues_are_owned_on_request(reader: Readers, filled: Filled, group: DirectoryGroup) -> None:
    one, other = reader(), reader(whenLocked="fail")
    end = latest(one, one.initialOffset())
    (member,) = group.members()
    with pytest.raises(QueuesTaken, match=rf"Group g: {member.id} has locked .* set whenLocked to wait or takeOver"):
        latest(other, other.initialOffset())
    assert [(each.id, each.queues) for each in group.members()] == [(member.id, (Q0, Q1))]
    assert latest(one, end) == end
    one.stop()
    filled.put("orders", 0, 1)
    assert latest(other, other.initialOffset())["orders"] == {"0": 4, "1": 5}


def test_query_takes_over_queues_on_request(reader: Readers) -> None:
    one, other = reader(), reader(whenLocked="takeOver")
    start = one.initialOffset()
    end = latest(one, start)
    assert latest(other, start) == start
    with pytest.raises(
        QueuesTaken, match=r"Group g: another query .* took over .* ended after its last committed batch"
    ):
        latest(one, end)
    assert latest(other, start) == start, "there is nothing new to read"
    assert other._planner._group.locks
    assert other._planner._group.acquire([Q0, Q1], 0)


def test_available_now_query_waits_for_its_queues(reader: Readers) -> None:
    one, other = reader(maxOffsetsPerTrigger="4"), reader()
    start = one.initialOffset()
    latest(one, start)
    other.prepareForTriggerAvailableNow()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(latest, other, start)
        assert not asked.done()
        one.stop()
        assert asked.result()["orders"] == {"0": 3, "1": 5}


def test_repeated_batch_waits_for_its_queues(reader: Readers, filled: Filled) -> None:
    it = reader()
    start = it.initialOffset()
    end = latest(it, start)
    planned = ranges(it, start, end)
    it.stop()
    again = reader()
    with DirectoryGroup(filled.path, "g").join(EVERYTHING, orderly=True) as member:
        member.lock([Q1])
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ranges, again, start, end)
            until(lambda: len(DirectoryGroup(filled.path, "g").members()) == 2)
            assert not asked.done()
            member.unlock([Q1])
            assert asked.result() == planned


def test_added_queue_is_locked_before_it_is_read(reader: Readers, filled: Filled, group: DirectoryGroup) -> None:
    it = reader()
    end = latest(it, it.initialOffset())
    filled.store.create_topic("orders", 3)
    filled.put("orders", 2, 2)
    assert latest(it, end)["orders"] == {"0": 3, "1": 5, "2": 2}
    assert group.members()[0].queues == (Q0, Q1, Queue("orders", 2))


def test_available_now_query_waits_for_an_added_locked_queue(
    reader: Readers, filled: Filled, group: DirectoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, q2 = reader(), Queue("orders", 2)
    start = it.initialOffset()
    it.prepareForTriggerAvailableNow()
    with group.join(EVERYTHING, orderly=True) as member, ThreadPoolExecutor() as pool:
        look, was_added = it._planner._queues.hold, Event()

        def after_a_queue_is_added(*given: Any) -> Any:
            if not was_added.is_set():
                filled.store.create_topic("orders", 3)
                assert member.lock([q2]) == {q2}
                was_added.set()
            return look(*given)

        monkeypatch.setattr(it._planner._queues, "hold", after_a_queue_is_added)
        asked = pool.submit(latest, it, start)
        assert was_added.wait(60)
        until(lambda: asked.done() or not any(Q0 in each.queues for each in group.members()))
        assert not asked.done()
        member.unlock([q2])
        assert bare(asked.result())["orders"] == {"0": 3, "1": 5}


def test_real_time_tasks_wait_for_the_lock(reader: Readers, filled: Filled) -> None:
    one, other = reader(), reader(realTime="true")
    start = one.initialOffset()
    end = latest(one, start)
    assert latest(one, end) == end
    assert latest(other, start) == start
    one.stop()
    assert latest(other, start)["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 5}}]


def test_real_time_tasks_end_with_the_process_that_owns_queues(
    reader: Readers, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python process beside the driver was killed. Spark notices only after the batch, when another query owns the
    queues."""
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    it, other = reader(realTime="true", batchDuration="10 minutes", realTimePartitions="1"), reader()
    start = it.initialOffset()
    end = latest(it, start)
    (partition,) = it.partitions(start, end)
    batches, rows = it.read(partition), 0
    while rows < len(filled.rows):
        rows += next(batches).num_rows
    it.stop()
    filled.put("orders", 0, 2)
    theirs = latest(other, start)
    assert theirs["orders"] == {"0": 5, "1": 5}
    assert all(batch.num_rows == 0 for batch in batches)
    following = reader(realTime="true")
    other.stop()
    assert latest(following, end)["$from"] == [{"orders": {"0": 3}}, {"orders": {"1": 5}}]


def test_member_stopped_for_long_loses_its_queues(
    reader: Readers, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_mq.planning.query_group._RENEW_SECONDS", 0.05)
    monkeypatch.setattr("store.broker.allocation.LOCK_SECONDS", 1.0)
    with remote_member(DirectoryGroup(filled.path, "g"), EVERYTHING, orderly=True) as member:
        member.call("lock", [Q0])
        it = reader()
        start = it.initialOffset()
        assert latest(it, start) == start
        member.call("commit", {Q0: 2})
        member.signal(signal.SIGSTOP)
        until(lambda: latest(it, start) != start)
        member.signal(signal.SIGCONT)
        assert member.call("lock", [Q0]) == set()


def test_consumer_with_another_subscription_cannot_join(reader: Readers, group: DirectoryGroup) -> None:
    it = reader(subExpression="a||b")
    latest(it, it.initialOffset())
    with pytest.raises(GroupConflict, match=r"reads orders by TAG 'a\|\|b', and this one .* TAG '\*'"):
        group.join(EVERYTHING, orderly=True)
    with group.join({"orders": Subscription("b || a")}, orderly=True) as member:
        assert member.members() == [member.id]
        assert member.lock([Q0, Q1]) == set()


def test_reset_is_ignored_with_a_warning(
    reader: Readers, group: DirectoryGroup, caplog: pytest.LogCaptureFixture
) -> None:
    it = reader()
    end = latest(it, it.initialOffset())
    group.reset({Q0: 1})
    assert latest(it, end) == end
    assert "Group g was reset in orders/0, but this query continues from its checkpoint" in caplog.text


def test_old_offsets_are_void_for_a_recreated_topic(reader: Readers, filled: Filled, group: DirectoryGroup) -> None:
    it = reader()
    end = latest(it, it.initialOffset())
    assert latest(it, end) == end
    assert group.committed([Q0, Q1]) == {Q0: 3, Q1: 5}
    delete_as_broker(filled.path, "orders")
    filled.store.create_topic("orders", queues=2)
    filled.put("orders", 0, 1)
    with pytest.raises(DataLossError):
        latest(it, end)
    it.stop()
    assert group.committed([Q0, Q1]) == {Q0: 3, Q1: 5}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"consumeMode": "orderly"}, "consumeMode=orderly needs consumerGroup"),
        ({"consumeMode": "ordered", "consumerGroup": "g"}, "consumeMode takes concurrently or orderly, got 'ordered'"),
        ({"whenLocked": "wait"}, "whenLocked works only with consumeMode=orderly"),
        (ORDERLY | {"whenLocked": "go"}, "whenLocked takes wait or takeOver or fail, got 'go'"),
        (ORDERLY | {"minPartitions": "2"}, "minPartitions splits queues over partitions"),
        (ORDERLY | {"maxRecordsPerPartition": "2"}, "maxRecordsPerPartition splits queues"),
    ],
)
def test_incompatible_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        SourceOptions.parse({"path": os.devnull, "subscribe": "orders", **options})


def test_a_batch_query_locks_nothing() -> None:
    options = SourceOptions.parse({"path": os.devnull, "subscribe": "orders", **ORDERLY})
    with pytest.raises(OptionError, match="consumeMode=orderly is for streaming queries"):
        options.batch_limits()


def test_failure_to_renew_locks_ends_the_query(group: DirectoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the query continued, it would read queues that have another owner a minute later."""
    monkeypatch.setattr("pyspark_mq.planning.query_group._RENEW_SECONDS", 0.05)
    with DirectoryAddress(group.path).open() as log:
        it = OrderlyQueues(log, group, EVERYTHING, WhenLocked.WAIT, figures_of(group))
        assert it.acquire([Q0, Q1], 0)
        it.done({Q0: 1}, log.fingerprints({Q0: 1}))
        Path(group.path, "consumers", "g", "resets.json").write_text("[" * 100_000)
        with pytest.raises(CorruptStore):
            until(lambda: not it.acquire([Q0, Q1], 0))


def test_closing_without_queues(group: DirectoryGroup) -> None:
    with DirectoryAddress(group.path).open() as log:
        OrderlyQueues(log, group, EVERYTHING, WhenLocked.WAIT, figures_of(group)).close()
