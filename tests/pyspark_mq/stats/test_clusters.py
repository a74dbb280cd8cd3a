from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from pyspark_mq.cli.stats import as_object, as_table
from pyspark_mq.cli.top import screen
from pyspark_mq.stats.measures import look_at_cluster, rate_in, rate_out
from pyspark_mq.stats.metrics import ClusterCollector
from pyspark_mq.stats.query_lag import LagListener
from store.cluster.address import ClusterAddress
from store.model.log_protocol import Log, Queue
from tests.pair import Pair

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

A, B = (Queue("t", 0, broker=broker) for broker in "ab")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Each broker has five messages, two of which group g has read."""
    with ExitStack() as stack:
        it = Pair(stack, tmp_path)
        for name, store in it.stores.items():
            it.put(name, *range(5))
            store.commit_offsets("g", "t", {0: 2})
        yield it


@pytest.fixture
def log(pair: Pair) -> Iterator[Log]:
    with ClusterAddress((pair.names,), patience=1.0, broker_timeout=1.0).open() as log:
        yield log


def test_look_keeps_queues_of_missing_broker(pair: Pair, log: Log) -> None:
    before = look_at_cluster(log, None)
    assert {queue: each.end for queue, each in before.queues.items()} == {A: 5, B: 5}
    assert before.missing == ()
    pair.serving["b"].close()
    pair.put("a", 5, 6)
    pair.stores["a"].commit_offsets("g", "t", {0: 6})
    now = look_at_cluster(log, before)._replace(at=before.at + 2)
    assert {queue: each.end for queue, each in now.queues.items()} == {A: 7, B: 5}
    assert {key: lag.messages for key, lag in now.groups.items()} == {("g", A): 1, ("g", B): 3}
    assert [each.name for each in now.missing] == ["b"]
    assert [rate_in(before, now, now.queues[queue]) for queue in (A, B)] == [1.0, 0.0]
    assert rate_out(before, now, now.groups["g", A]) == 2.0


def test_tables_name_the_missing_broker(pair: Pair, log: Log) -> None:
    before = look_at_cluster(log, None)
    pair.serving["b"].close()
    now = look_at_cluster(log, before)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(screen("rocketmq://names", before, now))
    for shown in (as_table(before, now), captured.get(), as_object(before, now)):
        assert "b has been missing since" in shown or '"name": "b"' in shown
    assert [line.split()[:4] for line in as_table(None, now).splitlines() if line.startswith("t ")] == [
        ["t", "a:0", "0", "5"],
        ["t", "b:0", "0", "5"],
    ]


def test_metrics_of_missing_broker_do_not_step_back(pair: Pair, log: Log) -> None:
    registry = CollectorRegistry()
    registry.register(ClusterCollector(log))

    def values() -> list[float | None]:
        group = {"topic": "t", "consumer_group": "g"}
        return [
            registry.get_sample_value("rocketmq_messages_in_total", {"topic": "t"}),
            registry.get_sample_value("rocketmq_messages_out_total", group),
            registry.get_sample_value("rocketmq_consumer_lag_messages", group),
            registry.get_sample_value("rocketmq_missing_broker_seconds", {"broker": "b"}),
        ]

    assert values() == [10, 4, 6, None]
    pair.serving["b"].close()
    pair.put("a", 5)
    *counts, missing = values()
    assert counts == [11, 4, 7]
    assert missing is not None
    assert 0 <= missing < 600


def test_listener_reports_missing_broker(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.serving["b"].close()
    ends = '{"t": {"a:0": 5, "b:0": 5}}'
    source = {"endOffset": '{"t": {"a:0": 4, "b:0": 2}, "$last": {}}', "latestOffset": ends}
    progress = SimpleNamespace(name="slow", id="one", sources=[source])
    registry = CollectorRegistry()
    listener = LagListener(ClusterAddress.parse(f"{pair.names}?brokers=a,b"), registry=registry)
    with caplog.at_level(logging.INFO, "pyspark_mq"):
        listener.onQueryProgress(cast("QueryProgressEvent", SimpleNamespace(progress=progress)))
    assert registry.get_sample_value("mq_missing_broker", {"query": "slow", "broker": "b"}) == 1
    assert registry.get_sample_value("mq_missing_broker", {"query": "slow", "broker": "a"}) is None
    assert "Query slow is behind by 4 messages (t/b:0 3, t/a:0 1); missing brokers: b" in caplog.messages
    listener.onQueryTerminated(cast("QueryTerminatedEvent", SimpleNamespace(id="one")))
    assert registry.get_sample_value("mq_missing_broker", {"query": "slow", "broker": "b"}) is None


def test_listener_warns_once_of_an_outage(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.serving["b"].close()
    ends = '{"t": {"a:0": 5, "b:0": 5}}'
    sources = [{"endOffset": '{"t": {"a:0": 4, "b:0": 2}, "$last": {}}', "latestOffset": ends}]
    listener = LagListener(ClusterAddress.parse(f"{pair.names}?brokers=a,b"))

    def warnings() -> int:
        return sum("broker b has been missing since" in message for message in caplog.messages)

    def progress(query: str) -> None:
        event = SimpleNamespace(progress=SimpleNamespace(name=query, id=query, sources=sources))
        listener.onQueryProgress(cast("QueryProgressEvent", event))

    def terminate(query: str) -> None:
        listener.onQueryTerminated(cast("QueryTerminatedEvent", SimpleNamespace(id=query)))

    for query in ("one", "other", "one"):
        progress(query)
    terminate("other")
    progress("one")
    assert warnings() == 1
    terminate("one")
    progress("next")
    assert warnings() == 2
    terminate("next")
