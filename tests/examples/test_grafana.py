from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, generate_latest

from pyspark_mq.stats.metrics import StoreCollector
from store import Message, MessageStore

HERE = Path(__file__).parents[2] / "examples" / "grafana"
PAGE = HERE.parents[1] / "docs" / "howto" / "grafana.md"


def metrics(path: Path) -> set[str]:
    """Return the names in an answer to Prometheus; for a histogram, the name of its buckets."""
    with MessageStore.open(path) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"x"))
        store.commit_offsets("billing", "orders", {0: 0})
    registry = CollectorRegistry()
    with MessageStore.open(path, read_only=True) as store:
        registry.register(StoreCollector(store))
        text = generate_latest(registry).decode()
    found = {"rocketmq_missing_broker_seconds"}  # of a cluster only
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        found.add(f"{name}_bucket" if kind == "histogram" else name)
    return found


def test_dashboard_and_alerts_ask_for_existing_metrics(tmp_path: Path) -> None:
    there = metrics(tmp_path)
    dashboard = json.loads((HERE / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"] for each in dashboard["templating"]["list"]]
    asked += re.findall(r"expr: (.*)", PAGE.read_text())
    names = {name for text in asked for name in re.findall(r"rocketmq_\w+", text)}
    assert len(names) > 10
    assert names <= there


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((HERE / "dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_compose_file_mounts_existing_files() -> None:
    services = yaml.safe_load((HERE / "compose.yml").read_text())["services"]
    mounted = [each.split(":")[0] for service in services.values() for each in service["volumes"]]
    assert all((HERE / each).exists() for each in mounted)
    for path in HERE.rglob("*.yml"):
        assert yaml.safe_load(path.read_text())
