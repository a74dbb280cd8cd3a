"""A topic, or a part of it, as one stream of batches."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from store import InvalidArgument, InvalidColumns, Message, OffsetLost, OffsetNotYet, UnknownQueue, UnknownTopic
from tests.filled import Filled


def offsets(reader: pa.RecordBatchReader) -> list[tuple[int, int]]:
    table = reader.read_all()
    return list(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))


def test_all_queues_some_and_ranges(filled: Filled) -> None:
    store = filled.store
    everything = [(0, n) for n in range(3)] + [(1, n) for n in range(5)]
    assert offsets(store.to_arrow("orders")) == everything
    assert offsets(store.to_arrow("orders", queues=[1])) == everything[3:]
    assert offsets(store.to_arrow("orders", queues={1: (2, 4), 0: (1, 2)})) == [(1, 2), (1, 3), (0, 1)]
    assert offsets(store.to_arrow("orders", tags="B")) == [each for each in everything if each[1] % 2]
    filled.put("orders", 0, 1)
    assert offsets(store.to_arrow("orders", queues=[])) == []


def test_what_was_appended_together_is_read_together(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    store, look = filled.store, filled.store.offsets

    def look_and_append(topic: str, queue_id: int) -> tuple[int, int]:
        found = look(topic, queue_id)
        store.put_many([Message("orders", b"body", queue_id=each) for each in (0, 1)])
        return found

    monkeypatch.setattr(store, "offsets", look_and_append)
    queue_ids = [queue_id for queue_id, _ in offsets(store.to_arrow("orders"))]
    assert queue_ids.count(0) - 3 == queue_ids.count(1) - 5


def test_a_range_of_time(filled: Filled) -> None:
    store = filled.store
    seen = store.to_arrow("orders", ["storeTimestamp"]).read_all()["storeTimestamp"].cast(pa.int64()).to_pylist()
    first, last = min(seen) // 1000, max(seen) // 1000
    assert len(offsets(store.to_arrow("orders", begin=first, end=last + 1))) == 8
    assert offsets(store.to_arrow("orders", begin=last + 1)) == []
    assert offsets(store.to_arrow("orders", end=first)) == []
    assert len(offsets(store.to_arrow("orders", queues={0: (1, 3)}, begin=first))) == 2


def test_a_range_of_time_begins_where_times_are_known(filled: Filled, tmp_path: Path) -> None:
    """What only the archive has was left out, as if it were older than `begin`, or came along, whatever `end` was."""
    store = filled.store
    filled.put("orders", 0, 300, size=1000)
    filled.put("orders", 0, 1)
    (newest,) = store.scan("orders", 0, 303, 304, ["storeTimestamp"])
    last = newest["storeTimestamp"].cast(pa.int64())[0].as_py() // 1000
    store.archive(str(tmp_path / "archive"))
    store.clean(forced=True)
    first = store.min_offset("orders", 0)
    everything = {0: (0, 304)}
    assert len(offsets(store.to_arrow("orders", queues=everything))) == 304
    assert offsets(store.to_arrow("orders", queues=everything, begin=last)) == [(0, 303)]
    assert len(offsets(store.to_arrow("orders", queues=everything, end=last))) == 303
    assert len(offsets(store.to_arrow("orders", queues={0: (first, 304)}, begin=1))) == 304 - first
    for time in ({"begin": 1}, {"end": 1}, {"begin": 1, "end": last + 1}):
        with pytest.raises(OffsetLost, match=f"before offset {first} were stored at 1 or after is not known here"):
            store.to_arrow("orders", queues=everything, **time)


def test_columns_and_their_types_without_a_message(filled: Filled) -> None:
    reader = filled.store.to_arrow("orders", ["body", "properties"], queues={0: (1, 1)})
    assert reader.schema.names == ["body", "properties"]
    assert reader.read_all().num_rows == 0


def test_what_is_wrong_is_said_at_once(filled: Filled) -> None:
    to_arrow = filled.store.to_arrow
    with pytest.raises(UnknownTopic):
        to_arrow("nowhere")
    with pytest.raises(UnknownQueue):
        to_arrow("orders", queues=[7])
    with pytest.raises(InvalidColumns):
        to_arrow("orders", ["value"])
    with pytest.raises(OffsetNotYet):
        to_arrow("orders", queues={0: (0, 4)})
    with pytest.raises(InvalidArgument, match=r"queue 0: \[2, 1\) ends before it begins"):
        to_arrow("orders", queues={0: (2, 1)})


def test_what_reading_meets_is_raised_as_it_is(filled: Filled) -> None:
    store = filled.store
    filled.put("orders", 0, 200, size=1000)
    reader = store.to_arrow("orders", queues=[0])
    reader.read_next_batch()
    store.clean(forced=True)
    with pytest.raises(OffsetLost):
        reader.read_all()
