"""Run the code of docs/delays.md and docs/transactions.md."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pyarrow as pa

from store import Message, MessageStore
from store.format.layout import SCHEDULE_TOPIC, TIMER_TOPIC

DOCS = Path(__file__).parents[2] / "docs"


def shown(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def test_code_of_delays_runs(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        (block,) = shown("delays.md")
        exec(block, {"store": store, "Message": Message, "time": time, "pa": pa})
        assert [store.max_offset(SCHEDULE_TOPIC, level - 1) for level in (3, 5)] == [1, 1]
        assert store.max_offset(TIMER_TOPIC, 0) == 1
        assert store.max_offset("orders", 0) == 1


def test_code_of_transactions_runs(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        producer, verbs = (block.replace("/data/mq", str(tmp_path)) for block in shown("transactions.md"))
        database: dict[str, str] = {}
        exec(producer, {"database": database})
        (message,) = store.get_message("", "orders", 0, 0).messages
        assert (message.body, database) == (b"order 17", {message.msg_id: "paid"})
        exec(verbs, {})
        assert store.max_offset("orders", 0) == 3
