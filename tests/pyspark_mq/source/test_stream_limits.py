from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_mq.errors import DataLossError
from store import MessageStore
from tests.filled import Filled
from tests.pyspark_mq.source.streaming import EARLIEST, latest, reader, rows


def test_batch_waits_for_the_minimum_of_messages(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="4", holdTimeoutMs="1", **EARLIEST)
    first = latest(it, it.initialOffset())
    assert first["orders"] == {"0": 3, "1": 5}  # as in the Kafka source, the first batch does not wait
    filled.put("orders", 0, 2)
    filled.put("orders", 1, 1)
    assert latest(it, first) == first
    filled.put("orders", 1, 1)
    assert latest(it, first)["orders"] == {"0": 5, "1": 7}


def test_empty_start_counts_as_the_first_batch(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="4", holdTimeoutMs="1")
    start = it.initialOffset()
    assert latest(it, start) == start
    filled.put("orders", 0, 3)
    assert latest(it, start) == start
    filled.put("orders", 0, 1)
    assert latest(it, start)["orders"] == {"0": 7, "1": 5}


def test_held_request_returns_at_the_minimum_of_messages(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="4", holdTimeoutMs="60000", **EARLIEST)
    first = latest(it, it.initialOffset())
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(latest, it, first)
        for _ in range(4):
            assert not asked.done()
            filled.put("orders", 0, 1)
        assert asked.result()["orders"] == {"0": 7, "1": 5}


def test_small_batch_is_returned_after_the_maximum_delay(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="4", maxTriggerDelay="1s", holdTimeoutMs="10", **EARLIEST)
    first, since = latest(it, it.initialOffset()), time.monotonic()
    filled.put("orders", 0, 1)
    while (end := latest(it, first)) == first:
        pass
    assert end["orders"] == {"0": 4, "1": 5}
    assert time.monotonic() - since >= 0.9


def test_available_now_ignores_the_minimum_of_messages(filled: Filled) -> None:
    it = reader(filled, minOffsetsPerTrigger="100", **EARLIEST)
    it.prepareForTriggerAvailableNow()
    first = latest(it, it.initialOffset())
    filled.put("orders", 0, 1)
    it.prepareForTriggerAvailableNow()
    assert latest(it, first)["orders"] == {"0": 4, "1": 5}


def test_available_now_ends_at_its_first_end_offsets(filled: Filled) -> None:
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


def test_trigger_once_reads_everything(filled: Filled) -> None:
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
def test_batches_keep_their_limits(filled: Filled, limits: dict[str, str], batches: list[tuple[int, int]]) -> None:
    it = reader(filled, **EARLIEST, **limits)
    offset, counts, seen = it.initialOffset(), [], []
    while (end := latest(it, offset)) is not offset:
        batch = rows(it, offset, end)
        counts.append((sum(row[1] == 0 for row in batch), sum(row[1] == 1 for row in batch)))
        seen += batch
        offset = end
    assert counts == batches
    assert sorted(seen) == sorted(filled.rows)


def test_query_restarted_after_every_batch_serves_all_queues(filled: Filled) -> None:
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
        used = sum(int(filled.store.sizes(r.queue.topic, r.queue.queue_id, r.start, r.end).sum()) for r in batch)
        assert used <= limit or sum(r.length for r in batch) == 1
        seen += sum(r.length for r in batch)
        offset = end
    assert seen == len(filled.rows)


@pytest.mark.parametrize("accepted", [True, False])
def test_retention_between_end_offsets_and_sizes(
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
