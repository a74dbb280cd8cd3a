"""The streaming reader over real stores, called as Spark calls it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pyspark_mq.errors import OptionError, SubscriptionError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import stream_reader
from store import MessageStore, StoreReplaced
from store.append import log_end
from store.model.errors import NotAStore
from store.model.log_protocol import Queue
from tests.filled import Filled
from tests.pyspark_mq.source.streaming import EARLIEST, bare, first_batch, latest, ranges, reader, rows
from tests.takeover import broker


def test_every_message_is_read_once(filled: Filled) -> None:
    it = reader(filled, **EARLIEST)
    start = it.initialOffset()
    end = latest(it, start)
    assert bare(end) == {"orders": {"0": 3, "1": 5}, "$start": {"orders": {"0": 0, "1": 0}}}
    assert rows(it, start, end) == filled.rows
    assert latest(it, end) is end
    filled.put("orders", 1, 2)
    following = latest(it, end)
    assert bare(following) == {"orders": {"0": 3, "1": 7}}
    assert following["$last"]["orders"]["0"] == end["$last"]["orders"]["0"]
    assert following["$last"]["orders"]["1"] > end["$last"]["orders"]["1"]
    assert rows(it, end, following) == filled.rows[-2:]
    assert it.reportLatestOffset() == {"orders": {"0": 3, "1": 7}}


def test_latest_start_is_pinned(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    filled.put("orders", 0, 4)
    end = latest(it, start)
    filled.put("orders", 0, 9)
    # Spark was killed before it committed the batch: it asks again for the start, and the end has moved.
    replayed = reader(filled)
    moved = replayed.initialOffset()
    assert moved != start
    assert ranges(replayed, moved, end) == ranges(it, start, end) == ["orders/0 [3, 7)"]
    assert ranges(replayed, end, latest(replayed, end)) == ["orders/0 [7, 16)"]


@pytest.mark.parametrize("real_time", ["false", "true"])
def test_first_batch_is_repeated_although_a_queue_was_added(filled: Filled, real_time: str) -> None:
    """Spark asks again for the start, and the option now lacks a queue. Only a new query must name every start."""
    options = {"path": filled.path, "subscribe": "orders", "holdTimeoutMs": "0"}
    options["startingOffsets"] = '{"orders": {"0": 1, "1": 2}}'
    it, replayed = (stream_reader(SourceOptions.parse(options), default_schema(False)) for _ in range(2))
    new = stream_reader(SourceOptions.parse(options | {"realTime": real_time}), default_schema(False))
    end = first_batch(it)
    filled.store.create_topic("orders", 3)
    filled.put("orders", 2, 4)
    assert ranges(replayed, replayed.initialOffset(), end) == ["orders/0 [1, 3)", "orders/1 [2, 5)"]
    assert ranges(replayed, end, latest(replayed, end)) == ["orders/2 [0, 4)"]
    with pytest.raises(OptionError, match="does not name: orders/2"):
        first_batch(new)


def test_query_can_start_after_a_damaged_message(filled: Filled) -> None:
    damaged = filled.store.fingerprints({Queue("orders", 0): 0})[Queue("orders", 0)].physical_offset
    with next(Path(filled.path, "commitlog").iterdir()).open("r+b") as segment:
        segment.seek(damaged)
        segment.write(b"damaged!")
    it = reader(filled, startingOffsets='{"orders": {"0": 1, "1": 5}}')
    start = it.initialOffset()
    assert ranges(it, start, latest(it, start)) == ["orders/0 [1, 3)"]


def test_idle_query_keeps_its_offset(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    assert latest(it, start) is start
    assert ranges(it, start, start) == []


def test_driver_raises_for_a_new_owner(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.0)
    it = reader(filled, holdTimeoutMs="60000", **EARLIEST)
    end = latest(it, it.initialOffset())
    filled.store.close()
    with broker(Path(filled.path)) as filled.store:
        filled.put("orders", 0, 2)
        with pytest.raises(StoreReplaced):
            latest(it, end)
        it = reader(filled, holdTimeoutMs="60000", **EARLIEST)
        theirs = latest(it, end)
        assert rows(it, end, theirs) == filled.rows[-2:]
    with MessageStore.open(filled.path) as filled.store:
        filled.put("orders", 1, 3)
        with pytest.raises(StoreReplaced):
            latest(it, theirs)
        it = reader(filled, holdTimeoutMs="60000", **EARLIEST)
        assert rows(it, theirs, latest(it, theirs)) == filled.rows[-3:]


def test_new_topics_and_queues_are_read_from_their_start(filled: Filled) -> None:
    it = reader(filled, subscribePattern="orders.*")
    start = it.initialOffset()
    filled.store.create_topic("orders", 3)
    filled.store.create_topic("orders-eu", 1)
    filled.store.create_topic("payments", 1)
    filled.put("orders", 2, 2)
    filled.put("orders-eu", 0, 1)
    filled.put("payments", 0, 1)
    end = latest(it, start)
    assert ranges(it, start, end) == ["orders/2 [0, 2)", "orders-eu/0 [0, 1)"]
    assert end["$start"]["orders-eu"] == {"0": 0}


def test_a_new_empty_queue_joins_once(filled: Filled) -> None:
    it = reader(filled)
    start = latest(it, it.initialOffset())
    filled.store.create_topic("orders", 3)
    end = latest(it, start)
    assert end["orders"] == {"0": 3, "1": 5, "2": 0}
    assert ranges(it, start, end) == []
    assert latest(it, end) is end


def test_pattern_may_match_nothing_yet(filled: Filled) -> None:
    it = reader(filled, subscribePattern="later")
    start = it.initialOffset()
    assert start == {"$last": {}}
    assert latest(it, start) is start
    filled.store.create_topic("later", 1)
    filled.put("later", 0, 2)
    assert ranges(it, start, latest(it, start)) == ["later/0 [0, 2)"]


def test_holding_ends_when_a_message_arrives(filled: Filled) -> None:
    it = reader(filled, holdTimeoutMs="60000")
    start = it.initialOffset()
    arrival = threading.Timer(0.1, filled.put, ("orders", 0, 1))
    arrival.start()
    end = latest(it, start)
    arrival.join()
    assert ranges(it, start, end) == ["orders/0 [3, 4)"]


def test_partitions_are_split(filled: Filled) -> None:
    it = reader(filled, **EARLIEST, maxRecordsPerPartition="2", minPartitions="5")
    start = it.initialOffset()
    cut = ranges(it, start, latest(it, start))
    assert cut == ["orders/0 [0, 1)", "orders/0 [1, 3)", "orders/1 [0, 1)", "orders/1 [1, 3)", "orders/1 [3, 5)"]


def test_starting_offsets_are_read_from_json(filled: Filled) -> None:
    it = reader(filled, startingOffsets='{"orders": {"0": 1, "1": -1}}')
    start = it.initialOffset()
    assert ranges(it, start, latest(it, start)) == ["orders/0 [1, 3)"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"startingOffsets": '{"orders": {"0": 1}}'}, OptionError, "does not name: orders/1"),
        ({"startingOffsets": '{"orders": {"0": 1, "1": 1, "2": 1}}'}, OptionError, "not subscribed: orders/2"),
        (
            {"startingOffsets": '{"orders": {"0": 99, "1": 1}}'},
            OptionError,
            "says 99 for orders/0, which ends at 3",
        ),
        ({"subscribe": "orders,payments"}, SubscriptionError, "The log has no payments; it has orders"),
        (
            {"subscribe": "shop.orders"},
            SubscriptionError,
            "No topic can have this name: topic 'shop.orders': only letters",
        ),
    ],
)
def test_wrong_starts_are_refused(
    filled: Filled, options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        first_batch(reader(filled, **options))


def test_start_out_of_range_is_moved_if_loss_is_accepted(filled: Filled) -> None:
    it = reader(filled, startingOffsets='{"orders": {"0": 99, "1": 1}}', failOnDataLoss="false")
    assert it.initialOffset()["orders"] == {"0": 3, "1": 1}


def test_missing_store_is_refused(filled: Filled) -> None:
    with pytest.raises(NotAStore):
        reader(filled, path=filled.path + "-elsewhere").initialOffset()


def test_offset_has_fingerprints_of_the_last_messages(filled: Filled) -> None:
    end = first_batch(reader(filled, startingOffsets='{"orders": {"0": 3, "1": 0}}'))
    found = [filled.store.fingerprint("orders", queue_id, offset) for queue_id, offset in ((0, 2), (1, 4))]
    assert [tuple(it) for it in end["$last"]["orders"].values()] == found
