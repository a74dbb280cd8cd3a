"""The streaming reader by itself, driven as Spark drives it, over real stores."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_mq.errors import DataLossError, OptionError, SubscriptionError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.realtime_reader import RealTimeStreamReader
from pyspark_mq.source.schema import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader
from store import MessageStore
from store.any_group import Subscription
from store.any_log import Queue
from store.broker.deletion import delete_topic
from store.errors import NotAStore
from store.local import LocalAddress
from store.publish import log_end
from tests.filled import Filled
from tests.takeover import broker

EARLIEST = {"startingOffsets": "earliest"}


def reader(filled: Filled, **options: Any) -> MqStreamReader:
    options = {"path": filled.path, "subscribe": "orders", "holdTimeoutMs": "0", **options}
    if "subscribePattern" in options:
        del options["subscribe"]
    return MqStreamReader(SourceOptions.parse(options), default_schema(False))


def bare(offset: dict[str, Any]) -> dict[str, Any]:
    """Without the fingerprints."""
    return {key: value for key, value in offset.items() if key != "$last"}


def latest(it: MqStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return it.latestOffset(start, it.getDefaultReadLimit())


def first_batch(it: MqStreamReader) -> dict[str, Any]:
    return latest(it, it.initialOffset())


def ranges(it: MqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [" + ".join(map(str, partition.value.ranges)) for partition in it.partitions(start, end)]


def rows(it: MqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    batches = [batch for partition in it.partitions(start, end) for batch in it.read(partition)]
    return [
        tuple(row[name] for name in ("topic", "queueId", "queueOffset", "body"))
        for batch in batches
        for row in batch.to_pylist()
    ]


def test_a_batch_waits_until_it_is_large_enough(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="4", holdTimeoutMs="1", **EARLIEST)
    first = latest(it, it.initialOffset())
    assert first["orders"] == {"0": 3, "1": 5}  # as in the Kafka source the first one comes at once
    filled.put("orders", 0, 2)
    filled.put("orders", 1, 1)
    assert latest(it, first) == first
    filled.put("orders", 1, 1)
    assert latest(it, first)["orders"] == {"0": 5, "1": 7}


def test_a_batch_that_is_waited_for_comes_when_it_is_large_enough(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="4", holdTimeoutMs="60000", **EARLIEST)
    first = latest(it, it.initialOffset())
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(latest, it, first)
        for _ in range(4):
            assert not asked.done()
            filled.put("orders", 0, 1)
        assert asked.result()["orders"] == {"0": 7, "1": 5}


def test_a_small_batch_comes_after_the_longest_delay(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="4", maxTriggerDelay="1s", holdTimeoutMs="10", **EARLIEST)
    first, since = latest(it, it.initialOffset()), time.monotonic()
    filled.put("orders", 0, 1)
    while (end := latest(it, first)) == first:
        pass
    assert end["orders"] == {"0": 4, "1": 5}
    assert time.monotonic() - since >= 0.9


def test_what_is_there_is_read_however_little(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="100", **EARLIEST)
    it.prepareForTriggerAvailableNow()
    first = latest(it, it.initialOffset())
    filled.put("orders", 0, 1)
    it.prepareForTriggerAvailableNow()
    assert latest(it, first)["orders"] == {"0": 4, "1": 5}


def group(filled: Filled) -> dict[int, int | None]:
    return {queue: filled.store.consumer_offset("readers", "orders", queue) for queue in (0, 1)}


def test_a_group_is_told_what_is_done_and_no_more(filled: Filled) -> None:
    it = reader(filled, consumerGroup="readers", maxOffsetsPerTrigger="4", **EARLIEST)
    start = it.initialOffset()
    end = latest(it, start)
    assert group(filled) == {0: 0, 1: 0}
    it.stop()  # before Spark has asked for another batch: nobody knows whether this one was done
    assert group(filled) == {0: 0, 1: 0}
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    following = latest(it, end)
    assert group(filled) == {0: end["orders"]["0"], 1: end["orders"]["1"]}
    assert latest(it, following) == following
    assert group(filled) == {0: 3, 1: 5}  # Spark may end the process now, without another word
    it.stop()


def test_a_group_that_cannot_be_told_is_a_warning(
    filled: Filled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mq/config").mkdir(exist_ok=True)
    (tmp_path / "mq/config/consumerOffset.json").write_text("[]")
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    end = latest(it, it.initialOffset())
    latest(it, end)
    it.stop()
    assert len([text for text in caplog.messages if "Group readers is not told" in text]) == 1


def test_a_group_with_consumers_is_not_moved(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    """Who comes after them would not read what they have not read."""
    queue = Queue("orders", 1)
    readers = LocalAddress(filled.path).group("readers")
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    with readers.join({"orders": Subscription()}) as member:
        member.lock([queue])
        member.begin({queue: 0})
        member.commit({queue: 2})
        end = latest(it, it.initialOffset())
        assert latest(it, end) == end
        assert caplog.text.count("Group readers is not told how far this query is: its members consume orders") == 1
    it.stop()  # they may be on their way back
    assert group(filled)[1] == 2


@pytest.mark.parametrize("messages", [1, 50])
def test_a_group_is_not_told_of_a_topic_that_was_created_anew(filled: Filled, messages: int) -> None:
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    end = latest(it, it.initialOffset())
    it.stop()
    delete_topic(filled.path, "orders")
    filled.store.create_topic("orders", queues=2)
    filled.put("orders", 0, messages)
    it = reader(filled, consumerGroup="readers")
    with pytest.raises(DataLossError):
        latest(it, end)
    it.stop()
    assert group(filled)[0] in (0, None)


def test_a_start_where_a_group_stands(filled: Filled) -> None:
    filled.store.commit_offsets("readers", "orders", {1: 2})
    it = reader(filled, consumerGroup="readers", startingOffsets="group")
    assert it.initialOffset()["orders"] == {"0": 0, "1": 2}


def test_a_start_where_a_group_stands_of_a_topic_that_was_created_anew(
    filled: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    filled.store.commit_offsets("readers", "orders", {0: 9})  # as a backup of config/ may have it
    options = {"consumerGroup": "readers", "startingOffsets": "group"}
    with pytest.raises(OptionError, match=r"startingOffsets says 9 for orders/0, and its next message will be 3\. Was"):
        first_batch(reader(filled, **options))
    assert reader(filled, failOnDataLoss="false", **options).initialOffset()["orders"] == {"0": 3, "1": 0}
    assert "startingOffsets says 9 for orders/0" in caplog.text


def test_a_start_where_a_group_stands_that_retention_overtook(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    filled.store.commit_offsets("readers", "orders", {0: 1})
    filled.put("orders", 0, 2000, size=60)
    filled.store.clean(forced=True)
    first = filled.store.min_offset("orders", 0)
    assert first > 3
    options = {"consumerGroup": "readers", "startingOffsets": "group"}
    with pytest.raises(DataLossError, match=rf"startingOffsets: orders/0 \[1, {first}\) is lost: the queue's first"):
        first_batch(reader(filled, **options))
    assert reader(filled, failOnDataLoss="false", **options).initialOffset()["orders"]["0"] == first
    assert f"orders/0 [1, {first}) is lost" in caplog.text


def test_everything_once(filled: Filled) -> None:
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


def test_the_latest_start_is_pinned(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    filled.put("orders", 0, 4)
    end = latest(it, start)
    filled.put("orders", 0, 9)
    # Spark was killed before it committed the batch: it asks again where to start, and the tail has moved.
    replayed = reader(filled)
    moved = replayed.initialOffset()
    assert moved != start
    assert ranges(replayed, moved, end) == ranges(it, start, end) == ["orders/0 [3, 7)"]
    assert ranges(replayed, end, latest(replayed, end)) == ["orders/0 [7, 16)"]


@pytest.mark.parametrize("real_time", ["false", "true"])
@pytest.mark.parametrize("kind", [MqStreamReader, RealTimeStreamReader])
def test_a_first_batch_is_run_again_though_a_queue_was_added(
    filled: Filled, kind: type[MqStreamReader], real_time: str
) -> None:
    """Spark asks again where to start, and now the option leaves out a queue: only a new query has no start."""
    options = {"path": filled.path, "subscribe": "orders", "holdTimeoutMs": "0"}
    options["startingOffsets"] = '{"orders": {"0": 1, "1": 2}}'
    it, replayed = (kind(SourceOptions.parse(options), default_schema(False)) for _ in range(2))
    new = kind(SourceOptions.parse(options | {"realTime": real_time}), default_schema(False))
    end = first_batch(it)
    filled.store.create_topic("orders", 3)
    filled.put("orders", 2, 4)
    assert ranges(replayed, replayed.initialOffset(), end) == ["orders/0 [1, 3)", "orders/1 [2, 5)"]
    assert ranges(replayed, end, latest(replayed, end)) == ["orders/2 [0, 4)"]
    with pytest.raises(OptionError, match="leaves out: orders/2"):
        first_batch(new)


def test_a_query_begins_behind_a_damaged_message(filled: Filled) -> None:
    """As a user leaves it out."""
    damaged = filled.store.fingerprints({Queue("orders", 0): 0})[Queue("orders", 0)].physical_offset
    with next(Path(filled.path, "commitlog").iterdir()).open("r+b") as segment:
        segment.seek(damaged)
        segment.write(b"damaged!")
    it = reader(filled, startingOffsets='{"orders": {"0": 1, "1": 5}}')
    start = it.initialOffset()
    assert ranges(it, start, latest(it, start)) == ["orders/0 [1, 3)"]


def test_an_idle_query_keeps_its_offset(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    assert latest(it, start) is start
    assert ranges(it, start, start) == []


def test_the_driver_goes_on_behind_a_broker_that_took_over_and_back(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.05)
    it = reader(filled, holdTimeoutMs="60000", **EARLIEST)
    start = it.initialOffset()
    end = latest(it, start)
    assert rows(it, start, end) == filled.rows
    filled.store.close()
    with broker(Path(filled.path)) as filled.store:
        filled.put("orders", 0, 2)
        theirs = latest(it, end)
        assert rows(it, end, theirs) == filled.rows[-2:]
    with MessageStore.open(filled.path) as filled.store:
        filled.put("orders", 1, 3)
        assert rows(it, theirs, latest(it, theirs)) == filled.rows[-3:]


def test_new_topics_and_queues_are_read_from_their_beginning(filled: Filled) -> None:
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


def test_a_pattern_may_match_nothing_yet(filled: Filled) -> None:
    it = reader(filled, subscribePattern="later")
    start = it.initialOffset()
    assert start == {}
    assert latest(it, start) is start
    filled.store.create_topic("later", 1)
    filled.put("later", 0, 2)
    assert ranges(it, start, latest(it, start)) == ["later/0 [0, 2)"]


def test_holding_ends_with_an_arrival(filled: Filled) -> None:
    it = reader(filled, holdTimeoutMs="60000")
    start = it.initialOffset()
    arrival = threading.Timer(0.1, filled.put, ("orders", 0, 1))
    arrival.start()
    end = latest(it, start)
    arrival.join()
    assert ranges(it, start, end) == ["orders/0 [3, 4)"]


def test_available_now_ends_at_the_tails_it_saw_first(filled: Filled) -> None:
    it = reader(filled, subscribePattern=".*", maxOffsetsPerTrigger="5", holdTimeoutMs="60000", **EARLIEST)
    it.prepareForTriggerAvailableNow()
    filled.put("orders", 0, 10)
    filled.store.create_topic("later", 1)
    filled.put("later", 0, 1)
    offset, seen = it.initialOffset(), []
    while (end := latest(it, offset)) != offset:
        seen += rows(it, offset, end)
        offset = end
    assert sorted(row for row in seen if row[0] == "orders") == sorted(filled.rows[:8])
    assert [row for row in seen if row[0] == "later"] == []


def test_once_takes_everything(filled: Filled) -> None:
    it = reader(filled, maxOffsetsPerTrigger="2", maxBytesPerTrigger="1", holdTimeoutMs="60000", **EARLIEST)
    start = it.initialOffset()
    assert rows(it, start, it.latestOffset(start, ReadAllAvailable())) == filled.rows
    at_the_end = reader(filled).initialOffset()
    assert it.latestOffset(at_the_end, ReadAllAvailable()) is at_the_end


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        ({"maxOffsetsPerTrigger": "4"}, [(2, 2), (1, 3)]),
        ({"maxOffsetsPerTrigger": "1"}, [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (0, 1)]),
        ({"maxBytesPerTrigger": "1"}, [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (0, 1)]),
        ({"maxBytesPerTrigger": "1g"}, [(3, 5)]),
        ({"maxBytesPerTrigger": "1g", "maxOffsetsPerTrigger": "6"}, [(2, 4), (1, 1)]),
    ],
)
def test_limits(filled: Filled, limits: dict[str, str], batches: list[tuple[int, int]]) -> None:
    it = reader(filled, **EARLIEST, **limits)
    offset, counts, seen = it.initialOffset(), [], []
    while (end := latest(it, offset)) is not offset:
        batch = rows(it, offset, end)
        counts.append((sum(row[1] == 0 for row in batch), sum(row[1] == 1 for row in batch)))
        seen += batch
        offset = end
    assert counts == batches
    assert sorted(seen) == sorted(filled.rows)


def test_one_that_is_restarted_after_every_batch_serves_all_queues(filled: Filled) -> None:
    filled.store.create_topic("orders", 4)
    for queue_id in range(4):
        filled.put("orders", queue_id, 40)
    offset = reader(filled, **EARLIEST).initialOffset()
    for _ in range(20):
        offset = latest(reader(filled, maxOffsetsPerTrigger="2"), offset)
    assert all(position > 0 for position in offset["orders"].values())


def test_bytes_per_trigger_hold_exactly(filled: Filled) -> None:
    limit = 700
    it = reader(filled, **EARLIEST, maxBytesPerTrigger=str(limit))
    filled.put("orders", 0, 20, size=100)
    filled.put("orders", 1, 3, size=900)
    offset, seen = it.initialOffset(), 0
    while (end := latest(it, offset)) is not offset:
        batch = [r for partition in it.partitions(offset, end) for r in partition.value.ranges]
        used = sum(int(filled.store.sizes(*r).sum()) for r in batch)
        assert used <= limit or sum(r.length for r in batch) == 1
        seen += sum(r.length for r in batch)
        offset = end
    assert seen == len(filled.rows)


@pytest.mark.parametrize("accepted", [True, False])
def test_retention_between_the_tails_and_the_sizes(
    tmp_path: Path, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = Filled(tmp_path / "mq", {"orders": 1})
    sizes = MessageStore.sizes

    def overtaken(store: MessageStore, *range_: Any) -> Any:
        if store.min_offset("orders", 0) == 0:
            assert filled.store.clean(forced=True).queues
        return sizes(store, *range_)

    with filled.store:
        filled.put("orders", 0, 250, size=1000)
        it = reader(filled, maxBytesPerTrigger="1m", failOnDataLoss=str(not accepted), **EARLIEST)
        start = it.initialOffset()
        monkeypatch.setattr(MessageStore, "sizes", overtaken)
        end = latest(it, start)
        assert end["orders"] == {"0": 250}
        first = filled.store.min_offset("orders", 0)
        assert 0 < first < 250
        if accepted:
            assert rows(it, start, end) == filled.rows[first:]
        else:
            with pytest.raises(DataLossError, match=rf"orders/0 \[0, {first}\) is lost"):
                rows(it, start, end)


def test_partitions_are_cut(filled: Filled) -> None:
    it = reader(filled, **EARLIEST, maxRecordsPerPartition="2", minPartitions="5")
    start = it.initialOffset()
    cut = ranges(it, start, latest(it, start))
    assert cut == ["orders/0 [0, 1)", "orders/0 [1, 3)", "orders/1 [0, 1)", "orders/1 [1, 3)", "orders/1 [3, 5)"]


def test_starting_offsets_as_json(filled: Filled) -> None:
    it = reader(filled, startingOffsets='{"orders": {"0": 1, "1": -1}}')
    start = it.initialOffset()
    assert ranges(it, start, latest(it, start)) == ["orders/0 [1, 3)"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"startingOffsets": '{"orders": {"0": 1}}'}, OptionError, "leaves out: orders/1"),
        ({"startingOffsets": '{"orders": {"0": 1, "1": 1, "2": 1}}'}, OptionError, "not subscribed: orders/2"),
        (
            {"startingOffsets": '{"orders": {"0": 99, "1": 1}}'},
            OptionError,
            "says 99 for orders/0, and its next message will be 3",
        ),
        ({"subscribe": "orders,payments"}, SubscriptionError, "The log has no payments; it has orders"),
        ({"subscribe": "shop.orders"}, SubscriptionError, "There can be none: topic 'shop.orders': only letters"),
    ],
)
def test_wrong_starts(filled: Filled, options: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        first_batch(reader(filled, **options))


def test_a_start_out_of_range_is_moved_when_loss_is_accepted(filled: Filled) -> None:
    it = reader(filled, startingOffsets='{"orders": {"0": 99, "1": 1}}', failOnDataLoss="false")
    assert it.initialOffset()["orders"] == {"0": 3, "1": 1}


def test_no_store(filled: Filled) -> None:
    with pytest.raises(NotAStore):
        reader(filled, path=filled.path + "-elsewhere").initialOffset()


def test_an_offset_of_an_earlier_version_gains_what_it_lacks(filled: Filled) -> None:
    it = reader(filled)
    before = {"orders": {"0": 1, "1": 5}}
    end = latest(it, before)
    assert ranges(it, before, end) == ["orders/0 [1, 3)"]
    found = [filled.store.fingerprint("orders", queue_id, offset) for queue_id, offset in ((0, 2), (1, 4))]
    assert [tuple(it) for it in end["$last"]["orders"].values()] == found
    idle = {"orders": {"0": 3, "1": 5}}
    assert latest(reader(filled), idle) is idle
