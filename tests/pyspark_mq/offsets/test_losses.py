"""Every row of the table in `losses`: which losses end a query, and at which offset an accepting query continues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_mq.errors import DataLossError, MqSourceError, OptionError, SubscriptionError
from pyspark_mq.offsets.losses import Loss, LossCase, loss_before, loss_in, report_loss
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.queues import Queues
from pyspark_mq.source.reading import RangeReader, RangeTask, default_schema
from store import Message, MessageStore
from store.directory.directory_log import DirectoryLog
from store.model.log_protocol import BATCH_ROWS, Bounds, Queue, QueueRange
from tests.filled import Filled
from tests.pyspark_mq.source.streaming import EARLIEST, first_batch, latest, reader, rows, unknown
from tests.restarted import delete_as_broker

A0 = Queue("a", 0)
HAS = Bounds(10, 20)


@pytest.mark.parametrize(
    ("position", "there", "is_another", "lost"),
    [
        (10, HAS, False, None),
        (20, HAS, False, None),
        (0, Bounds(0, 0), False, None),
        (4, HAS, False, (LossCase.EXPIRED, 4, 10)),
        (25, HAS, False, (LossCase.CUT, 20, 25)),
        (25, HAS, True, (LossCase.CUT, 20, 25)),
        (15, HAS, True, (LossCase.ANOTHER, 15, 15)),
        (4, HAS, True, (LossCase.ANOTHER, 4, 4)),
        (15, None, False, (LossCase.GONE, 15, 15)),
    ],
)
def test_losses_before_a_batch(
    position: int, there: Bounds | None, is_another: bool, lost: tuple[LossCase, int, int] | None
) -> None:
    loss = loss_before(A0, position, there, is_another)
    assert loss == (lost and Loss(QueueRange(A0, *lost[1:]), lost[0], there or Bounds(0, 0)))


@pytest.mark.parametrize(
    ("wanted", "there", "is_another", "lost", "left"),
    [
        ((10, 20), HAS, False, None, (10, 20)),
        ((4, 4), HAS, True, None, (4, 4)),
        ((25, 25), None, True, None, (25, 25)),
        ((4, 15), HAS, False, (LossCase.EXPIRED, 4, 10), (10, 15)),
        ((4, 8), HAS, False, (LossCase.EXPIRED, 4, 8), (8, 8)),
        ((15, 25), HAS, False, (LossCase.UNSEEN, 20, 25), (15, 20)),
        ((22, 25), HAS, False, (LossCase.UNSEEN, 22, 25), (25, 25)),
        ((15, 18), HAS, True, (LossCase.ANOTHER, 15, 18), (18, 18)),
        ((15, 18), None, False, (LossCase.GONE, 15, 18), (18, 18)),
    ],
)
def test_losses_within_a_range(
    wanted: tuple[int, int],
    there: Bounds | None,
    is_another: bool,
    lost: tuple[LossCase, int, int] | None,
    left: tuple[int, int],
) -> None:
    planned = QueueRange(A0, *wanted)
    loss = loss_in(planned, there, is_another)
    assert loss == (lost and Loss(QueueRange(A0, *lost[1:]), lost[0], there or Bounds(0, 0)))
    assert (planned if loss is None else loss.rest_of(planned)) == QueueRange(A0, *left)


def test_lost_messages_are_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    loss = Loss(QueueRange(Queue("a", 0), 1, 3), LossCase.EXPIRED, HAS)
    what = "a/0 [1, 3) is lost: older messages were deleted, and the queue's first message is now 10"
    with pytest.raises(DataLossError) as caught:
        report_loss(True, loss)
    assert str(caught.value).startswith(f"{what}. To continue with the remaining messages, set")
    assert not caplog.records
    report_loss(False, loss, "startingOffsets")
    assert f"ignored because failOnDataLoss is false: startingOffsets: {what}" in caplog.text


class Query:
    """A query that read everything, and continues from its checkpoint in a new run."""

    def __init__(self, filled: Filled, **options: str) -> None:
        self._filled, self._options = filled, {**EARLIEST, **options}
        it = reader(filled, **self._options)
        self.checkpoint = latest(it, it.initialOffset())
        it.stop()

    def must_end(self, error: type[MqSourceError], match: str) -> None:
        it = reader(self._filled, **self._options)
        with pytest.raises(error, match=match):
            latest(it, self.checkpoint)
        it.stop()

    def accepts(self, *, available_now: bool = False) -> list[tuple[Any, ...]]:
        """Return the rows that it reads with failOnDataLoss=false, up to the end."""
        it = reader(self._filled, **self._options, failOnDataLoss="false")
        if available_now:
            it.prepareForTriggerAvailableNow()
        read = []
        while (end := latest(it, self.checkpoint)) != self.checkpoint:
            read += rows(it, self.checkpoint, end)
            self.checkpoint = end
        it.stop()
        return read


def delete(filled: Filled, topic: str = "orders") -> None:
    filled.store.close()
    delete_as_broker(filled.path, topic)
    filled.rows = [row for row in filled.rows if row[0] != topic]
    filled.store = MessageStore.open(filled.path)


def recreate(filled: Filled, count: int) -> None:
    """Recreate topic orders at offset 0, with `count` messages in queue 0 and 5 in queue 1."""
    delete(filled)
    filled.store.create_topic("orders", 2)
    put_new(filled, 0, count)
    put_new(filled, 1, 5)


def put_new(filled: Filled, queue: int, count: int) -> None:
    for _ in range(count):
        result = filled.store.put(Message("orders", b"new", queue_id=queue))
        filled.rows.append(("orders", queue, result.queue_offset, b"new"))


def expire(filled: Filled) -> int:
    """Put into queue 0 until retention deletes unread messages; return the first remaining offset."""
    filled.put("orders", 0, 250, size=1000)
    assert filled.store.clean(forced=True).log
    filled.put("orders", 1, 1)
    return filled.store.min_offset("orders", 0)


@pytest.fixture(params=["a run", "available now"])
def available_now(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "available now")


def test_expired_messages_are_a_loss(filled: Filled, available_now: bool) -> None:
    query = Query(filled)
    first = expire(filled)
    query.must_end(DataLossError, rf"orders/0 \[3, {first}\) is lost: older .* is now {first}")
    assert query.accepts(available_now=available_now) == [
        row for row in filled.rows if (row[1] == 0 and row[2] >= first) or (row[1] == 1 and row[2] == 5)
    ]


@pytest.mark.parametrize("fail", [True, False])
def test_start_before_expired_messages_is_a_loss(filled: Filled, fail: bool) -> None:
    first = expire(filled)
    start = {"startingOffsets": '{"orders": {"0": 1, "1": -1}}', "failOnDataLoss": str(fail)}
    if fail:
        with pytest.raises(DataLossError, match=rf"^startingOffsets: orders/0 \[1, {first}\) is lost: older mess"):
            first_batch(reader(filled, **start))
    else:
        assert reader(filled, **start).initialOffset()["orders"] == {"0": first, "1": 6}


def test_messages_expired_while_a_task_reads(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.put("orders", 0, 250, size=1000)
    wanted, scan = QueueRange(Queue("orders", 0), 0, 253), DirectoryLog.scan

    def overtaken(log: DirectoryLog, wanted: QueueRange, spec: Any) -> Iterator[Any]:
        batches = scan(log, wanted, spec)
        if wanted.start == 0:
            yield next(batches)
            filled.store.clean(forced=True)
            filled.put("orders", 1, 1)
            scan(log, wanted, spec)
        yield from batches

    monkeypatch.setattr(DirectoryLog, "scan", overtaken)
    with pytest.raises(DataLossError, match=r"orders/0 \[0, \d+\) is lost: older messages"):
        read(filled, wanted)
    filled.put("orders", 0, 200, size=1000)
    wanted = wanted._replace(end=453)
    offsets = read(filled, wanted, failOnDataLoss="false")
    assert offsets[-1] == 452
    assert len(set(offsets)) == len(offsets)


def test_topic_recreated_while_a_task_reads_without_fingerprints(filled: Filled) -> None:
    filled.put("orders", 0, BATCH_ROWS)
    wanted = QueueRange(Queue("orders", 0), 0, BATCH_ROWS + 3)
    parsed = SourceOptions.parse({"path": filled.path, "subscribe": "orders", "failOnDataLoss": "false"})
    batches = RangeReader(parsed, default_schema(False), 0.0).read(InputPartition(unknown(wanted)))
    offsets = next(batches)["queueOffset"].to_pylist()
    recreate(filled, 7)
    offsets += [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]
    assert len(set(offsets)) == len(offsets)


def read(filled: Filled, wanted: QueueRange, task: RangeTask | None = None, **options: str) -> list[int]:
    parsed = SourceOptions.parse({"path": filled.path, "subscribe": "orders", **options})
    batches = RangeReader(parsed, default_schema(False), 0.0).read(InputPartition(task or unknown(wanted)))
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def test_shortened_queue_is_a_loss(filled: Filled, available_now: bool) -> None:
    query = Query(filled)
    recreate(filled, 2)
    query.must_end(DataLossError, r"orders/0 \[2, 3\) is lost: the queue ends at 2, so it was recreated or truncated")
    assert query.accepts(available_now=available_now) == filled.rows


@pytest.mark.parametrize("count", [3, 4, 30])
def test_recreated_topic_is_a_loss(filled: Filled, available_now: bool, count: int) -> None:
    query = Query(filled)
    recreate(filled, count)
    filled.store.put(Message("orders", b"more", queue_id=1))
    filled.rows.append(("orders", 1, 5, b"more"))
    query.must_end(
        DataLossError, r"orders/0 from offset 3 on is lost: the queue has other messages than the query read. The topic"
    )
    assert query.accepts(available_now=available_now) == filled.rows
    put_new(filled, 0, 1)
    assert query.accepts() == filled.rows[-1:]


def test_store_restored_from_a_backup_is_a_loss(filled: Filled, tmp_path: Path, available_now: bool) -> None:
    filled.store.flush()
    shutil.copytree(filled.path, tmp_path / "backup")
    filled.put("orders", 0, 2)
    query = Query(filled)
    filled.store.close()
    shutil.rmtree(filled.path)
    shutil.copytree(tmp_path / "backup", filled.path)
    with MessageStore.open(filled.path) as filled.store:
        del filled.rows[-2:]
        put_new(filled, 0, 4)
        query.must_end(DataLossError, r"orders/0 from offset 5 on is lost: .* restored from a backup")
        assert query.accepts(available_now=available_now) == [
            row for row in (*filled.rows[:3], *filled.rows[-4:]) if row[1] == 0
        ]


@pytest.mark.parametrize("count", [2, 3, 30])
def test_topic_recreated_between_planning_and_reading(filled: Filled, count: int) -> None:
    """The next batch begins with all messages of the recreated topic."""
    it = reader(filled, **EARLIEST)
    start = it.initialOffset()
    end = latest(it, start)
    partitions = it.partitions(start, end)
    it.stop()
    recreate(filled, count)
    for partition in partitions:
        with pytest.raises(DataLossError, match=r"orders/. \[0, .\) is lost: the queue has other messages than"):
            list(reader(filled).read(partition))
        assert list(reader(filled, failOnDataLoss="false").read(partition)) == []
    query = Query(filled)
    query.checkpoint = end
    assert query.accepts() == filled.rows


def test_recreated_topic_is_shorter_than_the_planned_range(filled: Filled) -> None:
    """The last planned message is deleted, so only the queue's end shows the recreation."""
    filled.put("orders", 0, 250, size=1000)
    it = reader(filled, **EARLIEST)
    start = it.initialOffset()
    end = latest(it, start)
    it.stop()
    recreate(filled, 1)
    filled.put("orders", 0, 100, size=1000)
    filled.store.clean(forced=True)
    again = reader(filled, failOnDataLoss="false")
    assert [row for row in rows(again, start, end) if row[1] == 0] == []
    first = filled.store.min_offset("orders", 0)
    assert 0 < first < 101
    assert rows(again, end, latest(again, end)) == [r for r in filled.rows if r[1] == 0 and r[2] >= first]


def test_topic_recreated_during_a_batch_query(filled: Filled) -> None:
    from pyspark_mq.source.batch_reader import MqBatchReader

    options = SourceOptions.parse({"path": filled.path, "subscribe": "orders"})
    it = MqBatchReader(options, default_schema(False))
    partitions = it.partitions()
    recreate(filled, 9)
    for partition in partitions:
        with pytest.raises(DataLossError, match="the queue has other messages than the query read"):
            list(it.read(partition))


@pytest.mark.parametrize("count", [0, 2, 3, 5, 30])
def test_topic_deleted_or_recreated_while_a_batch_is_planned(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It happens between two requests of the driver."""
    query, last = Query(filled), Queues.last
    filled.put("orders", 0, 1)

    def overtaken(queues: Queues, *planned: Any) -> Any:
        monkeypatch.setattr(Queues, "last", last)
        if count:
            recreate(filled, count)
        else:
            delete(filled)
        return last(queues, *planned)

    monkeypatch.setattr(Queues, "last", overtaken)
    read = query.accepts()
    if not count:
        filled.store.create_topic("orders", 1)
        put_new(filled, 0, 9)
        read += query.accepts()
    assert read == filled.rows


def test_deleted_topic_is_a_loss(filled: Filled, available_now: bool) -> None:
    filled.store.create_topic("more", 1)
    filled.put("more", 0, 2)
    query = Query(filled, subscribe="orders,more")
    delete(filled)
    query.must_end(
        DataLossError, r"orders/[01] from offset [35] on is lost: the queue was deleted, or it is no longer subscribed"
    )
    filled.put("more", 0, 1)
    assert query.accepts(available_now=available_now) == filled.rows[-1:]
    query.must_end(SubscriptionError, r"^The log has no orders; it has more")
    assert query.accepts(available_now=available_now) == []
    filled.store.create_topic("orders", 2)
    put_new(filled, 1, 3)
    assert query.accepts(available_now=available_now) == filled.rows[-3:]


def test_topic_deleted_and_created_during_a_query(filled: Filled) -> None:
    it = reader(filled, **EARLIEST, failOnDataLoss="false")
    end = latest(it, it.initialOffset())
    delete(filled)
    gone = latest(it, end)
    assert gone == {"$last": {}}
    assert latest(it, gone) == gone
    filled.store.create_topic("orders", 1)
    put_new(filled, 0, 4)
    back = latest(it, gone)
    assert rows(it, gone, back) == filled.rows


def test_topic_deleted_between_planning_and_reading(filled: Filled) -> None:
    it = reader(filled, **EARLIEST)
    start = it.initialOffset()
    partitions = it.partitions(start, latest(it, start))
    it.stop()
    delete(filled)
    for partition in partitions:
        with pytest.raises(DataLossError, match=r"orders/. \[0, .\) is lost: the queue was deleted"):
            list(reader(filled).read(partition))
        assert list(reader(filled, failOnDataLoss="false").read(partition)) == []


def test_unpublished_messages_are_a_loss_after_a_while(filled: Filled) -> None:
    wanted = QueueRange(Queue("orders", 0), 1, 9)
    with pytest.raises(
        DataLossError, match=r"orders/0 \[3, 9\) is lost: the queue still ends at 3 on this .*does not see"
    ):
        read(filled, wanted)
    assert read(filled, wanted, failOnDataLoss="false") == [1, 2]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_missing_from_the_start(filled: Filled, fail: str) -> None:
    it = reader(filled, subscribe="orders,payments", failOnDataLoss=fail)
    with pytest.raises(SubscriptionError, match="The log has no payments; it has orders"):
        first_batch(it)


def test_start_beyond_the_end_is_refused(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    start = {"startingOffsets": '{"orders": {"0": 99, "1": 1}}'}
    with pytest.raises(OptionError, match="says 99 for orders/0, which ends at 3"):
        first_batch(reader(filled, **start))
    assert reader(filled, **start, failOnDataLoss="false").initialOffset()["orders"] == {"0": 3, "1": 1}
    assert "Data loss" not in caplog.text
    assert "Ignored because failOnDataLoss is false: startingOffsets says 99" in caplog.text


def test_empty_range_is_never_a_loss(filled: Filled) -> None:
    for start, end in ((99, 99), (3, 3), (0, 0)):
        assert read(filled, QueueRange(Queue("orders", 0), start, end)) == []
        assert read(filled, QueueRange(Queue("payments", 0), start, end)) == []
