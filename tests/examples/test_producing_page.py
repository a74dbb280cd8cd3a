"""Run the code of docs/producing.md and docs/stats.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from store import MessageStore

DOCS = Path(__file__).parents[2] / "docs"


def shown(page: str, path: Path) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert all("/data/mq" in block for block in blocks)
    return [block.replace("/data/mq", str(path)) for block in blocks]


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, "page", "exec"), names)
    return names


def test_code_of_producing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 4)

        def count() -> int:
            return sum(store.max_offset("orders", queue) for queue in range(4))

        send, again, ask = shown("producing.md", tmp_path)
        run(send)
        assert count() == 100_001
        assert run(again)["begin"] is None
        assert run(again)["begin"] == 2
        assert count() == 100_004
        store.create_topic("questions", 1)
        capsys.readouterr()
        run(ask)
        assert capsys.readouterr().out == "b'17 pieces'\n"


def test_code_of_stats_registers_metrics(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 4)
    (block,) = shown("stats.md", tmp_path)
    before = set(REGISTRY._collector_to_names)
    run(block)
    (ours,) = set(REGISTRY._collector_to_names) - before
    assert REGISTRY.get_sample_value("rocketmq_topic_number") == 1
    REGISTRY.unregister(ours)
    ours._store.close()  # type: ignore[attr-defined]


def test_every_metric_is_on_the_page(tmp_path: Path) -> None:
    from pyspark_mq.stats.metrics import StoreCollector

    page = (DOCS / "stats.md").read_text()
    with MessageStore.open(tmp_path) as store:
        for metric in StoreCollector(store).collect():
            name = metric.name + ("_total" if metric.type == "counter" else "")
            assert f"`{name}`" in page
