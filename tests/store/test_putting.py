"""Which queue a message without one goes to."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from store import Message, MessageStore
from store.putting import ROWS_A_TURN


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


def test_rows_of_a_queue_lie_side_by_side(tmp_path: Path) -> None:
    """As long as every queue gets a whole turn; the rest goes row by row, and so does a short table."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 2)
        placed = store.append_table("t", table(2 * ROWS_A_TURN + 3)).queue_ids
        assert placed.tolist() == [0] * ROWS_A_TURN + [1] * ROWS_A_TURN + [0, 1, 0]
        assert store.put(Message("t", b"")).queue_id == 1
        assert store.append_table("t", table(3)).queue_ids.tolist() == [0, 1, 0]


def test_turns_leave_sharded_rows_where_they_belong(tmp_path: Path) -> None:
    keys = ["a", None, "b", ""] * ROWS_A_TURN
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 4)
        alone = {key: store.put(Message("t", b"", sharding_key=key)).queue_id for key in ("a", "b")}
        placed = store.append_table("t", table(len(keys)).append_column("shardingKey", pa.array(keys))).queue_ids
    for key, queue in alone.items():
        assert set(placed[np.array([k == key for k in keys])].tolist()) == {queue}
    others = Counter(placed[np.array([not k for k in keys])].tolist())
    assert set(others) == {0, 1, 2, 3}
