"""What docs/delays.md and docs/transactions.md show, run over a store."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from store import Message, MessageStore
from store.format.layout import SCHEDULE_TOPIC, TIMER_TOPIC

DOCS = Path(__file__).parents[2] / "docs"


def shown(page: str) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    return str(block)


def test_delays(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        exec(shown("delays.md"), {"store": store, "Message": Message, "time": time, "pa": pa})
        assert [store.max_offset(SCHEDULE_TOPIC, level - 1) for level in (3, 5)] == [1, 1]
        assert store.max_offset(TIMER_TOPIC, 0) == 1
        assert store.max_offset("orders", 0) == 1


def test_transactions(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        names: dict[str, Any] = {"store": store, "Message": Message, "paid": lambda message: True}
        exec(shown("transactions.md"), names)
        assert store.max_offset("orders", 0) == 1
