"""How long sending takes, as Prometheus sees it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from store import MessageRefused, MessageStore, Producer


def test_batches_are_timed(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    def found(name: str, status: str = "success", **more: str) -> float:
        labels = {"topic": "t", "invocation_status": status, **more}
        return registry.get_sample_value(f"rocketmq_send_cost_time_{name}", labels) or 0.0

    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        with Producer(store, linger=0.06, registry=registry) as producer, Producer(store, registry=registry) as other:
            begin = time.monotonic()
            for _ in range(10):
                producer.send("t", b"")
            producer.send("t", b"").result()
            took = (time.monotonic() - begin) * 1000
            assert found("count") == 1
            assert 60 <= found("sum") <= took
            assert found("bucket", le="50.0") == 0
            other.send("t", b"").result()
            assert found("count") == 2
            other.send("t", b"", tags="a|b")
            with pytest.raises(MessageRefused):
                other.flush()
            assert (found("count"), found("count", "failure")) == (2, 1)
