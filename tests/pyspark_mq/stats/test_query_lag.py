from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry

from pyspark_mq.stats.query_lag import LagListener, QueryLag, positions, query_lags, total
from store import Message, MessageStore
from store.cluster.address import ClusterAddress
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import Queue
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.filled import Filled
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent


def source(reached: dict[str, Any], ends: dict[str, Any]) -> dict[str, str]:
    return {"endOffset": json.dumps({**reached, "$last": {}}), "latestOffset": json.dumps(ends)}


def test_lag_of_each_queue() -> None:
    progress = source(
        {"orders": {"0": 5, "1": 7}, "$start": {"orders": {"0": 0}}}, {"orders": {"0": 9, "1": 7, "2": 4}}
    )
    assert query_lags(progress) == {
        Queue("orders", 0): QueryLag(4),
        Queue("orders", 1): QueryLag(0, 0, 0.0),
        Queue("orders", 2): QueryLag(4),
    }
    assert total(query_lags(progress)) == QueryLag(8, None, None)


def test_real_time_batch_counts_from_its_begin() -> None:
    epoch = {"$epoch": 3, "$reader": "0" * 32, "$from": [{"orders": {"0": 5}}, {"orders": {"1": 6}}]}
    assert positions(source(epoch, {"orders": {"0": 9, "1": 6}})) == (
        {Queue("orders", 0): 5, Queue("orders", 1): 6},
        {Queue("orders", 0): 9, Queue("orders", 1): 6},
    )


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"endOffset": "None", "latestOffset": "None"},
        {"endOffset": None, "latestOffset": None},
        source({"orders": {"0": 5}}, {"orders": [1, 2]}),
        {"endOffset": "17", "latestOffset": "20"},
        {"endOffset": '{"orders": {"0": 5}}', "latestOffset": '{"orders": {"0": 9}}'},
        {"endOffset": '{"logOffset": 3}', "latestOffset": "null"},
    ],
)
def test_other_sources_have_no_lag(other: dict[str, Any]) -> None:
    assert query_lags(other) == {}


def test_log_gives_bytes_and_seconds(filled: Filled) -> None:
    with DirectoryAddress(str(filled.store.path)).open() as log:
        by_queue = query_lags(source({"orders": {"0": 1, "1": 5}}, {"orders": {"0": 3, "1": 5}}), log)
        assert by_queue[Queue("orders", 0)].bytes == filled.store.sizes("orders", 0, 1, 3).sum()
        assert 0 < (by_queue[Queue("orders", 0)].seconds or 0) < 600
        assert by_queue[Queue("orders", 1)] == QueryLag(0, 0, 0.0)
        gone = query_lags(source({"orders": {"0": 1}}, {"orders": {"0": 99}}), log)
        assert gone == {Queue("orders", 0): QueryLag(98)}


def test_deleted_messages_do_not_count(tmp_path: Path) -> None:
    """In a queue that was never read, and in one where retention deleted unread messages."""
    filled = Filled(tmp_path / "mq", {"orders": 2})
    with filled.store as store, DirectoryAddress(filled.path).open() as log:
        for queue in range(2):
            filled.put("orders", queue, 150, size=1000)
        filled.put("orders", 0, 100, size=1000)
        store.clean(forced=True)
        first = [store.min_offset("orders", queue) for queue in range(2)]
        assert min(first) > 1
        by_queue = query_lags(source({"orders": {"0": 1}}, {"orders": {"0": 250, "1": 150}}), log)
        assert [by_queue[Queue("orders", queue)].messages for queue in range(2)] == [250 - first[0], 150 - first[1]]
        assert None not in by_queue[Queue("orders", 0)]


def test_lag_of_a_cluster(tmp_path: Path) -> None:
    with (
        MessageStore.open(tmp_path / "mq") as store,
        serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName="b")) as serving,
    ):
        store.create_topic("orders", 2)
        store.put_many([Message("orders", b"x", queue_id=0)] * 9)
        progress = source({"orders": {"b:0": 5, "b:1": 0}}, {"orders": {"b:0": 9, "b:1": 0}})
        with ClusterAddress((serving.address,)).open() as log:
            by_queue = query_lags(progress, log)
    behind = by_queue.pop(Queue("orders", 0, broker="b"))
    assert (behind.messages, behind.bytes) == (4, None)
    assert behind.seconds is not None
    assert 0 <= behind.seconds < 600
    assert by_queue == {Queue("orders", 1, broker="b"): QueryLag(0, 0, 0.0)}


@pytest.mark.parametrize("turn", [1, -1])
def test_larger_lag_of_two_sources_of_a_topic_is_reported(turn: int, caplog: pytest.LogCaptureFixture) -> None:
    ends = {"orders": {"0": 9, "1": 7}}
    sources = [source({"orders": {"0": 9, "1": 7}}, ends), source({"orders": {"0": 2, "1": 7}}, ends)][::turn]
    registry = CollectorRegistry()
    progress = SimpleNamespace(name="joined", id="one", sources=sources)
    with caplog.at_level(logging.INFO, "pyspark_mq"):
        LagListener(registry=registry).onQueryProgress(cast("QueryProgressEvent", SimpleNamespace(progress=progress)))
    assert caplog.messages == ["Query joined is behind by 7 messages (orders/0 7)"]
    assert [gauge_of(registry, "joined", queue) for queue in "01"] == [7, 0]


def test_query_that_falls_behind_has_lag(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "mq")
    with MessageStore.open(path) as store:
        store.create_topic("orders", 2)
        store.put_many([Message("orders", b"%d" % number, queue_id=number % 2) for number in range(100)])
    registry = CollectorRegistry()
    listener = LagListener(DirectoryAddress(path), every=0.0, registry=registry)
    spark.streams.addListener(listener)
    try:
        rows = spark.readStream.format("mq").option("path", path).option("subscribe", "orders")
        limited = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10).load()
        with caplog.at_level(logging.INFO, "pyspark_mq"):
            query = limited.writeStream.format("noop").queryName("slow").start()
            query.processAllAvailable()
            until(lambda: "Query slow is behind by 0 messages" in caplog.text)
            assert gauges(registry) == [0, 0, 0]
            query.stop()
            until(lambda: gauges(registry) == [None, None, None])
    finally:
        spark.streams.removeListener(listener)
    assert "Query slow is behind by 90 messages" in caplog.text
    assert "(orders/0 45, orders/1 45)" in caplog.text


def gauge_of(registry: CollectorRegistry, query: str, queue: str) -> float | None:
    return registry.get_sample_value("mq_lag_messages", {"query": query, "topic": "orders", "queue": queue})


def gauges(registry: CollectorRegistry) -> list[float | None]:
    labels = {"query": "slow", "topic": "orders", "queue": "1"}
    return [registry.get_sample_value(name, labels) for name in ("mq_lag_messages", "mq_lag_bytes", "mq_lag_seconds")]
