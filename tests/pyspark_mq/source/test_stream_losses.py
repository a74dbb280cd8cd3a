from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import DataLossError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader
from store import Message, MessageStore
from store.api.message_store import delete_topic
from store.directory.directory_log import DirectoryAddress, DirectoryLog
from store.model.log_protocol import Bounds, Fingerprints, Positions, Queue
from tests.filled import Filled
from tests.pyspark_mq.offsets.test_losses import recreate
from tests.pyspark_mq.source import driving
from tests.pyspark_mq.source.streaming import EARLIEST, bare, latest, ranges, reader, rows, seen
from tests.restarted import delete_as_broker


def test_shorter_recreated_queue_is_data_loss(filled: Filled) -> None:
    before = seen(filled, {"0": 50, "1": 5})
    with pytest.raises(DataLossError, match=r"orders/0 \[3, 50\) is lost.*set failOnDataLoss to false"):
        latest(reader(filled), before)
    accepting = reader(filled, failOnDataLoss="false")
    end = latest(accepting, before)
    assert end["orders"] == {"0": 3, "1": 5}
    assert ranges(accepting, before, end) == ["orders/0 [0, 3)"]
    assert latest(accepting, end) is end


def test_deleted_topic_is_data_loss(filled: Filled) -> None:
    before = seen(filled, {"0": 3, "1": 5}) | {"payments": {"0": 7}}
    with pytest.raises(DataLossError, match=r"payments/0 .* was deleted, or it is no longer subscribed"):
        latest(reader(filled, subscribe="orders,payments"), before)
    accepting = reader(filled, subscribePattern=".*", failOnDataLoss="false")
    end = latest(accepting, before)
    assert bare(end) == {"orders": {"0": 3, "1": 5}}
    assert latest(accepting, end) is end


def made_anew(filled: Filled) -> Filled:
    """Return a new store at the same path, with the same topic."""
    filled.store.close()
    shutil.rmtree(filled.path)
    return Filled(Path(filled.path), {"orders": 2})


def put_back(filled: Filled, backup: Path) -> MessageStore:
    filled.store.close()
    shutil.rmtree(filled.path)
    shutil.copytree(backup, filled.path)
    filled.store = MessageStore.open(filled.path)
    return filled.store


@pytest.mark.parametrize("count", [6, 7, 60])
@pytest.mark.parametrize("how", ["made anew", "put back"])
def test_replaced_queue_is_data_loss(filled: Filled, tmp_path: Path, how: str, count: int) -> None:
    filled.store.flush()
    shutil.copytree(filled.path, tmp_path / "backup")
    filled.put("orders", 0, 3)
    it = reader(filled, **EARLIEST)
    offset = json.loads(json.dumps(latest(it, it.initialOffset())))
    it.stop()
    if how == "made anew":
        filled = made_anew(filled)
        filled.put("orders", 1, 5)
    else:
        put_back(filled, tmp_path / "backup")
    with filled.store:
        filled.put("orders", 0, count - filled.store.max_offset("orders", 0))
        message = r"orders/0 from offset 6 on is lost: the queue has .* restored from a backup, .*failOnDataLoss"
        with pytest.raises(DataLossError, match=message):
            latest(reader(filled), offset)
        accepting = reader(filled, failOnDataLoss="false")
        end = latest(accepting, offset)
        anew = ["orders/1 [0, 5)"] if how == "made anew" else []
        assert ranges(accepting, offset, end) == [f"orders/0 [0, {count})", *anew]
        assert latest(accepting, end) is end
        assert latest(reader(filled), end) is end


def test_backup_newer_than_the_checkpoint_is_no_loss(filled: Filled, tmp_path: Path) -> None:
    it = reader(filled, **EARLIEST)
    offset = latest(it, it.initialOffset())
    filled.put("orders", 0, 2)
    filled.store.flush()
    shutil.copytree(filled.path, tmp_path / "backup")
    with put_back(filled, tmp_path / "backup"):
        filled.put("orders", 0, 4)
        again = reader(filled)
        assert ranges(again, offset, latest(again, offset)) == ["orders/0 [3, 9)"]


def test_batch_is_not_repeated_from_a_replaced_queue(filled: Filled) -> None:
    it = reader(filled, **EARLIEST)
    start = it.initialOffset()
    end = latest(it, start)
    it.stop()
    again = reader(filled)
    assert ranges(again, start, end) == ["orders/0 [0, 3)", "orders/1 [0, 5)"]
    again.stop()
    filled = made_anew(filled)
    with filled.store:
        filled.put("orders", 0, 30)
        filled.put("orders", 1, 30)
        with pytest.raises(DataLossError, match="orders/0 from offset 3 on is lost: the queue has other messages"):
            ranges(reader(filled), start, end)
        accepting = reader(filled, failOnDataLoss="false")
        assert ranges(accepting, start, end) == ["orders/0 [0, 3)", "orders/1 [0, 5)"]


@pytest.mark.parametrize("count", [4, 8])
def test_topic_recreated_before_the_first_batch_is_data_loss(filled: Filled, count: int) -> None:
    """The query began at the latest offset, and would skip the messages of the recreated topic."""
    it = reader(filled)
    end = latest(it, it.initialOffset())
    recreate(filled, count)
    with pytest.raises(DataLossError, match="orders/0 from offset 3 on is lost: the queue has other messages"):
        latest(it, end)
    assert ranges(it, end, latest(reader(filled, failOnDataLoss="false"), end))[0] == f"orders/0 [0, {count})"


def test_topic_recreated_by_a_broker_is_data_loss(filled: Filled) -> None:
    """The queue is replaced, and the log continues."""
    filled.store.create_topic("later", 1)
    it = reader(filled, **EARLIEST)
    end = latest(it, it.initialOffset())
    filled.put("later", 0, 4)
    queues = Path(filled.path) / "consumequeue"
    shutil.rmtree(queues / "orders" / "0")
    shutil.copytree(queues / "later" / "0", queues / "orders" / "0")
    with pytest.raises(DataLossError, match="orders/0 from offset 3 on is lost: the queue has other messages"):
        latest(it, end)


def fill(path: str, count: int) -> None:
    with MessageStore.open(path) as store:
        store.create_topic("orders", 1)
        store.put_many([Message("orders", b"body")] * count)


class Meddled(DirectoryLog):
    """A log whose topic is deleted and recreated by another process just before call number `call`; 1 is the next."""

    call = 0
    count = 0

    def topics(self, *how: Any) -> Mapping[str, tuple[Queue, ...]]:
        self._meddle()
        return super().topics(*how)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        self._meddle()
        return super().bounds(queues)

    def fingerprints(self, positions: Positions) -> Fingerprints:
        self._meddle()
        return super().fingerprints(positions)

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        self._meddle()
        return super().replaced(positions, last)

    def _meddle(self) -> None:
        self.call -= 1
        if self.call == 0:
            delete_as_broker(self._store.path, "orders")
            fill(str(self._store.path), self.count)


class SlowlyMeddled(Meddled):
    """Like Meddled, but the recreated topic is filled just before the following call."""

    def _meddle(self) -> None:
        if self.call == 0:
            fill(str(self._store.path), self.count)
        self.call -= 1
        if self.call == 0:
            delete_as_broker(self._store.path, "orders")
            fill(str(self._store.path), 0)


@dataclass(frozen=True)
class OfOne(DirectoryAddress):
    log: Meddled

    def open(self) -> Meddled:
        return self.log


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("call", range(1, 8))
def test_topic_recreated_while_a_batch_is_planned(tmp_path: Path, call: int, count: int) -> None:
    """For any number of new messages, this batch or the next raises data loss."""
    path = str(tmp_path / "mq")
    fill(path, 5)
    with Meddled(MessageStore.open(path, read_only=True)) as log:
        options = SourceOptions.parse({"path": path, "subscribe": "orders", "holdTimeoutMs": "0", **EARLIEST})
        it = MqStreamReader(replace(options, address=OfOne(path, log)), default_schema(False))
        first = latest(it, it.initialOffset())
        assert first["orders"] == {"0": 5}
        fill(path, 3)
        log.call, log.count = call, count
        try:
            second = latest(it, first)
        except DataLossError:
            return
        log.call = min(log.call, 1)
        log.bounds([])
        fill(path, 1)
        with pytest.raises(DataLossError, match="orders/0"):
            latest(it, second)


@pytest.mark.parametrize("call", range(1, 10))
def test_topic_recreated_during_planning_and_filled_later(tmp_path: Path, call: int) -> None:
    """There is no fingerprint for the batch's end."""
    filled = Filled(tmp_path / "mq", {"orders": 1, "other": 1})
    for topic in ("orders", "other"):
        filled.put(topic, 0, 5)
    it = reader(filled, **EARLIEST, subscribe="orders,other", failOnDataLoss="false")
    with filled.store, SlowlyMeddled(MessageStore.open(filled.path, read_only=True)) as log:
        start = it.initialOffset()
        log.call, log.count = call, 9
        planning = MqStreamReader(replace(it._options, address=OfOne(filled.path, log)), default_schema(False))
        end = latest(planning, start)
        log.call = min(log.call, 1)
        while log.call >= 0:
            log.bounds([])
        read = rows(it, start, end)
        while (following := latest(it, end)) != end:
            read += rows(it, end, following)
            end = following
    assert sorted(offset for topic, _, offset, body in read if body == b"body") == list(range(9))


def test_read_messages_deleted_by_retention_are_no_loss(filled: Filled) -> None:
    filled.put("orders", 0, 250, size=1000)
    it = reader(filled, **EARLIEST)
    end = latest(it, it.initialOffset())
    filled.put("orders", 1, 300, size=1000)
    after = latest(it, end)
    filled.store.clean(forced=True)
    assert filled.store.offsets("orders", 0) == (253, 253)
    filled.put("orders", 1, 1)
    assert latest(it, after)["$last"]["orders"]["0"] == end["$last"]["orders"]["0"]
    filled.put("orders", 0, 1)
    following = latest(it, after)
    assert ranges(it, after, following) == ["orders/0 [253, 254)", "orders/1 [305, 306)"]
    assert following["$last"]["orders"]["0"] > after["$last"]["orders"]["1"]


def test_topic_recreated_with_as_many_messages_is_data_loss(filled: Filled) -> None:
    for options in ({}, {"failOnDataLoss": "false"}):
        it = reader(filled, **EARLIEST, **options)
        end = latest(it, it.initialOffset())
        assert latest(it, end) == end
        recreate(filled, 3)
        if not options:
            with pytest.raises(DataLossError, match="orders/0 from offset 3 on is lost: the queue has other messages"):
                latest(it, end)
    assert ranges(it, end, latest(it, end)) == ["orders/0 [0, 3)", "orders/1 [0, 5)"]


ORDERLY = {"consumeMode": "orderly", "consumerGroup": "g"}


def behind_what_was_deleted(filled: Filled, subscribe: str = "orders,other") -> dict[str, str]:
    """Delete all messages of orders by retention; return options of a query that begins after them."""
    filled.store.create_topic("other", 1)
    filled.put("other", 0, 300, size=1000)
    filled.store.clean(forced=True)
    assert [filled.store.offsets("orders", queue_id) for queue_id in (0, 1)] == [(3, 3), (5, 5)]
    return {"subscribe": subscribe, "startingOffsets": "latest"}


@pytest.mark.parametrize("mode", [{}, ORDERLY], ids=["concurrently", "orderly"])
@pytest.mark.parametrize("subscribe", ["orders,other", "orders"])
def test_empty_topic_recreated_is_data_loss(filled: Filled, subscribe: str, mode: dict[str, str]) -> None:
    """The query began at the latest offset, and has read nothing."""
    options = {**behind_what_was_deleted(filled, subscribe), "consumerGroup": "readers", **mode}
    it = reader(filled, **options)
    start = it.initialOffset()
    end = latest(it, start)
    assert end["orders"] == {"0": 3, "1": 5}
    assert "orders" not in end["$last"]
    assert latest(it, end) == end
    it.stop()
    recreate(filled, 3)
    filled.put("orders", 1, 3)
    lost = "orders/0 from offset 3 on is lost: the queue has other messages"
    for again in (reader(filled, **options), driving.reader(filled, **options)):
        with pytest.raises(DataLossError, match=lost):
            latest(again, end)
        with pytest.raises(DataLossError, match=lost):
            again.partitions(start, end)
        again.stop()
    assert filled.store.consumer_offset(options["consumerGroup"], "orders", 0) in (0, None)
    accepting = reader(filled, **options, failOnDataLoss="false")
    assert ranges(accepting, end, latest(accepting, end)) == ["orders/0 [0, 3)", "orders/1 [0, 8)"]
    accepting.stop()


def test_replaced_log_is_data_loss_in_an_empty_queue(filled: Filled) -> None:
    """The message before the next offset is deleted, so only the log's start shows the replacement."""
    filled.put("orders", 1, 300, size=1000)
    filled.put("orders", 0, 1)
    it = reader(filled, **EARLIEST)
    end = latest(it, it.initialOffset())
    it.stop()
    filled = made_anew(filled)
    with filled.store:
        filled.put("orders", 0, 4)
        filled.put("orders", 1, 305)
        filled.put("orders", 1, 70, size=1000)
        filled.store.clean(forced=True)
        assert filled.store.offsets("orders", 0) == (4, 4)
        with pytest.raises(DataLossError, match="orders/0 from offset 4 on is lost: the queue has other messages"):
            latest(reader(filled), end)


@pytest.mark.parametrize("is_read", [True, False])
def test_query_continues_in_a_recreated_topic(filled: Filled, is_read: bool) -> None:
    """If the query had read everything, nothing is lost; otherwise the unread messages count as expired."""
    it = reader(filled, **EARLIEST)
    end = it.initialOffset()
    if is_read:
        end = latest(it, end)
    it.stop()
    delete_topic(filled.path, "orders")
    filled.store.create_topic("orders", 2)
    for queue_id in (0, 1):
        filled.put("orders", queue_id, 2)
    if not is_read:
        with pytest.raises(DataLossError, match=r"orders/0 \[0, 3\) is lost: older .* is now 3"):
            latest(reader(filled), end)
    it = reader(filled, failOnDataLoss=str(is_read).lower())
    assert ranges(it, end, latest(it, end)) == ["orders/0 [3, 5)", "orders/1 [5, 7)"]
