from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import Message, MessageRefused, MessageStore, UnknownQueue
from store.append.putting import ROWS_A_TURN


def table(rows: int) -> pa.Table:
    return pa.table({"body": pa.array([b""] * rows, pa.binary())})


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 12 * ROWS_A_TURN), min_size=1, max_size=4))
def test_tables_fill_queues_as_evenly_as_single_messages(queues: int, tables: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, MessageStore.open(Path(folder) / "store") as store:
        store.create_topic("t", queues)
        total = 0
        for rows in tables:
            store.append_table("t", table(rows))
            total += rows
            lengths = [store.max_offset("t", queue) for queue in range(queues)]
            assert lengths == [len(range(queue, total, queues)) for queue in range(queues)]


def test_rows_of_a_queue_are_adjacent(tmp_path: Path) -> None:
    """A long table fills each queue by whole turns. The remaining rows, like a short table, alternate between the
    queues."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 2)
        placed = store.append_table("t", table(2 * ROWS_A_TURN + 3)).queue_ids
        assert placed.tolist() == [0] * ROWS_A_TURN + [1] * ROWS_A_TURN + [0, 1, 0]
        assert store.put(Message("t", b"")).queue_id == 1
        assert store.append_table("t", table(3)).queue_ids.tolist() == [0, 1, 0]


def test_sharded_rows_stay_in_their_queue(tmp_path: Path) -> None:
    keys = ["a", None, "b", ""] * ROWS_A_TURN
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 4)
        alone = {key: store.put(Message("t", b"", sharding_key=key)).queue_id for key in ("a", "b")}
        placed = store.append_table("t", table(len(keys)).append_column("shardingKey", pa.array(keys))).queue_ids
    for key, queue in alone.items():
        assert set(placed[np.array([k == key for k in keys])].tolist()) == {queue}
    others = Counter(placed[np.array([not k for k in keys])].tolist())
    assert set(others) == {0, 1, 2, 3}


def test_table_may_mix_rows_with_and_without_a_queue(tmp_path: Path) -> None:
    columns = {
        "queueId": pa.array([3, None, None, 0, None], pa.int16()),
        "shardingKey": pa.array(["a", "a", None, None, "a"]),
    }
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 4)
        of_a = store.put(Message("t", b"", sharding_key="a")).queue_id
        placed = store.append_table("t", pa.table({"body": [b""] * 5, **columns})).queue_ids
        with pytest.raises(UnknownQueue, match="queues 0 to 3, not -1"):
            store.append_table("t", pa.table({"body": [b""] * 2, "queueId": [None, -1]}))
    assert placed[[0, 1, 3, 4]].tolist() == [3, of_a, 0, of_a]
    assert 0 <= placed[2] < 4


def test_generator_of_messages_is_accepted(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        results = store.put_many(Message("t", f"{n}") for n in range(3))
        assert [result.queue_offset for result in results] == [0, 1, 2]
        assert store.put_many(iter(())) == []


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (Message("t", b""), "put_many takes an iterable of Message, not Message"),
        ([Message("t", b""), {"body": b""}], "{'body': b''} is a dict. put takes a store.Message"),
        ("text", "'t' is a str. put takes"),
        ([Message("t", b"", queue_id="0")], "queue_id='0': must be a whole number"),  # type: ignore[arg-type]
        ([Message("t", b"", queue_id=0.0)], "queue_id=0.0: must be a whole number"),  # type: ignore[arg-type]
        ([Message("t", b"", sharding_key=["a"])], r"sharding_key=\['a'\]: must be a text"),  # type: ignore[arg-type]
        ([Message(["t"], b"")], r"topic=\['t'\]: must be a text"),  # type: ignore[arg-type]
    ],
)
def test_wrong_messages_are_refused(tmp_path: Path, messages: Any, message: str) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        with pytest.raises(MessageRefused, match=message):
            store.put_many(messages)
        assert store.max_offset("t", 0) == 0


@pytest.mark.parametrize("queue_id", [np.int64(1), np.uint8(1)])
def test_numpy_integers_are_accepted(tmp_path: Path, queue_id: Any) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 2)
        assert store.put(Message("t", b"", queue_id=queue_id, flag=queue_id)).queue_id == 1
        assert [m.flag for m in store.get_message("g", "t", 1, 0).messages] == [1]
