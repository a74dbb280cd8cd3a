from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import DataLossError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source import held_reading
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import stream_reader
from store import MessageStore
from tests.filled import Filled
from tests.pyspark_mq.offsets.test_losses import delete, recreate
from tests.pyspark_mq.source.driving import Row, latest, reader, run
from tests.pyspark_mq.source.streaming import seen
from tests.pyspark_mq.source.test_stream_losses import Meddled, OfOne, behind_what_was_deleted, fill

ACCEPTING = {"failOnDataLoss": "false"}


@pytest.fixture(autouse=True)
def _pipelined_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")


class Held:
    """A query within a batch, whose one task holds both queues and has read everything."""

    def __init__(self, filled: Filled, batch_seconds: float = 2, **options: str) -> None:
        self.reader = reader(filled, batch_seconds=batch_seconds, realTimePartitions="1", **options)
        self.rows: list[Row] = []
        start = self.reader.initialOffset()
        self.end = latest(self.reader, start)
        (partition,) = self.reader.partitions(start, self.end)
        self._batches = self.reader.read(partition)
        self._take(next(self._batches))
        while 0 < len(self.rows) < len(filled.rows):
            self._take(next(self._batches))

    def go_on(self) -> None:
        for batch in self._batches:
            self._take(batch)

    def next_batch(self) -> None:
        """Read the rest of this batch and all of the next one."""
        self.go_on()
        end = latest(self.reader, self.end)
        self.rows += run(self.reader, self.reader.partitions(self.end, end))
        self.end = end

    def _take(self, batch: Any) -> None:
        self.rows += [(r["topic"], r["queueId"], r["queueOffset"], r["body"]) for r in batch.to_pylist()]


@pytest.mark.parametrize("count", [1, 3, 4, 30])
def test_topic_recreated_in_a_held_batch_is_read_by_the_next(filled: Filled, count: int) -> None:
    query, before = Held(filled, 0.5, **ACCEPTING), list(filled.rows)
    recreate(filled, count)
    filled.put("orders", 1, 4)
    query.go_on()
    assert sorted(query.rows) == sorted(before)
    query.next_batch()
    assert sorted(query.rows) == sorted(before + filled.rows)


@pytest.mark.parametrize("count", [1, 3, 4, 30])
def test_topic_recreated_in_a_held_batch_fails_a_strict_query(filled: Filled, count: int) -> None:
    query, before = Held(filled), list(filled.rows)
    recreate(filled, count)
    filled.put("orders", 1, 4)
    with pytest.raises(
        DataLossError, match=r"orders/1 (from offset 5 on|\[0, 5\)) is lost: the queue has other messages|orders/0 "
    ):
        query.go_on()
    assert sorted(query.rows) == sorted(before)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("real_time", [True, False])
@pytest.mark.parametrize("call", range(1, 10))
def test_empty_topic_recreated_while_a_batch_is_planned(
    tmp_path: Path, call: int, real_time: bool, is_known: bool
) -> None:
    filled = Filled(tmp_path / "mq", {"orders": 1, "other": 1})
    filled.put("orders", 0, 5)
    filled.put("other", 0, 300, size=1000)
    filled.store.clean(forced=True)
    latest_of_both = {"subscribe": "orders,other", "startingOffsets": "latest"}
    it = reader(filled, real_time=real_time, **latest_of_both, **ACCEPTING)
    start = it.initialOffset()
    if not is_known:
        for by_topic in (start, start["$start"]):
            del by_topic["orders"]
    filled.put("orders", 0, 4)
    with filled.store, Meddled(MessageStore.open(filled.path, read_only=True)) as log:
        log.call, log.count = call, 9
        planning = stream_reader(replace(it._options, address=OfOne(filled.path, log)), default_schema(False))
        end = latest(planning, start)
        log.call = min(log.call, 1)
        log.bounds([])
        rows = run(it, planning.partitions(start, end))
    if (following := latest(it, end)) != end:
        rows += run(it, it.partitions(end, following))
    assert [offset for _, _, offset, body in rows if body == b"body"] == list(range(9))


@pytest.mark.parametrize("count", [3, 4, 30])
def test_empty_topic_recreated_in_a_held_batch(filled: Filled, count: int) -> None:
    it = reader(filled, batch_seconds=2, **behind_what_was_deleted(filled), **ACCEPTING)
    end = latest(it, it.initialOffset())
    partitions = it.partitions(end, end)

    def see(_: Row) -> None:
        if ("orders", 0, 0, b"new") not in filled.rows:
            recreate(filled, count)
            filled.put("orders", 1, 3)

    filled.put("other", 0, 1)
    rows = run(it, partitions, see)
    following = latest(it, end)
    rows += run(it, it.partitions(end, following))
    assert [row for row in rows if row[0] == "orders"] == sorted(row for row in filled.rows if row[3][:1] != b"0")


def empty_anew(filled: Filled) -> list[Row]:
    """Delete and recreate topic "empty", with three messages."""
    delete(filled, "empty")
    filled.store.create_topic("empty", 1)
    filled.put("empty", 0, 3)
    return [row for row in filled.rows if row[0] == "empty"]


def test_topic_recreated_in_a_held_batch_without_rows(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is at offset 0 of the old and of the new topic."""
    monkeypatch.setattr(held_reading, "_HEARTBEAT_SECONDS", 0.1)
    filled.store.create_topic("empty", 1)
    query = Held(filled, subscribe="empty")
    rows = empty_anew(filled)
    query.go_on()
    assert query.rows == rows
    query.next_batch()
    assert query.rows == rows


@pytest.mark.parametrize("count", [0, 2, 8])
@pytest.mark.parametrize("call", range(1, 4))
def test_topic_recreated_between_two_requests_of_a_held_task(tmp_path: Path, call: int, count: int) -> None:
    """The topic has `count` messages then and nine in the end; each is read once."""
    path = str(tmp_path / "mq")
    fill(path, 3)
    options = {"path": path, "subscribe": "orders", "startingOffsets": "earliest", "realTime": "true", **ACCEPTING}
    parsed = replace(SourceOptions.parse(options), batch_duration_seconds=0.1)
    it = stream_reader(parsed, default_schema(False))
    start = it.initialOffset()
    first = latest(it, start)
    log = Meddled(MessageStore.open(path, read_only=True))
    log.call, log.count = call, count
    in_a_task = stream_reader(replace(parsed, address=OfOne(path, log)), default_schema(False))
    rows = run(in_a_task, it.partitions(start, first))
    fill(path, 9 - count)
    rows += run(it, it.partitions(first, latest(it, first)))
    assert [offset for _, _, offset, _ in rows] == list(range(9))


def test_unread_topic_recreated_before_a_micro_batch(filled: Filled) -> None:
    filled.store.create_topic("empty", 1)
    it = reader(filled, real_time=False, subscribe="empty")
    start = latest(it, it.initialOffset())
    rows = empty_anew(filled)
    assert run(it, it.partitions(start, latest(it, start))) == rows


def test_topic_deleted_in_a_held_batch_is_data_loss(filled: Filled) -> None:
    query = Held(filled)
    delete(filled)
    filled.store.create_topic("more", 1)
    filled.put("more", 0, 1)
    with pytest.raises(
        DataLossError, match=r"orders/[01] (from offset [35] on|\[0, [35]\)) is lost: the queue was deleted"
    ):
        query.next_batch()


def test_real_time_query_notices_a_replaced_store(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    first = latest(it, start)
    run(it, it.partitions(start, first))
    second = latest(it, first)
    assert first["$last"] == {}
    assert [tuple(last) for last in second["$last"]["orders"].values()] == [
        filled.store.fingerprint("orders", 0, 2),
        filled.store.fingerprint("orders", 1, 4),
    ]
    it.stop()
    ledger = Path(filled.path) / "ledger"
    shutil.move(ledger, Path(filled.path).with_name("ledger"))
    filled.store.close()
    shutil.rmtree(filled.path)
    filled = Filled(Path(filled.path), {"orders": 2})
    shutil.move(Path(filled.path).with_name("ledger"), ledger)
    message = r"orders/0 from offset 3 on is lost: the queue has other messages"
    with filled.store:
        filled.put("orders", 0, 9)
        filled.put("orders", 1, 9)
        for real_time in (True, False):
            with pytest.raises(DataLossError, match=message):
                latest(reader(filled, real_time=real_time), first)
            with pytest.raises(DataLossError, match=message):
                reader(filled, real_time=real_time).partitions(first, second)
        accepting = reader(filled, failOnDataLoss="false")
        again = latest(accepting, first)
        assert again["$from"] == [{"orders": {"0": 0}}, {"orders": {"1": 0}}]
        assert again["$last"] == {}
        assert run(accepting, accepting.partitions(first, again)) == sorted(filled.rows)


def test_lost_messages_are_reported_before_the_batch(filled: Filled) -> None:
    before = seen(filled, {"0": 50, "1": 5})
    with pytest.raises(DataLossError, match=r"orders/0 \[3, 50\) is lost"):
        latest(reader(filled), before)
    accepting = latest(reader(filled, failOnDataLoss="false"), before)
    assert accepting["$from"] == [{"orders": {"0": 0}}, {"orders": {"1": 5}}]
