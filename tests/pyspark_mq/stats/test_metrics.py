from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from pyspark_mq.stats.metrics import StoreCollector
from store import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Message,
    MessageRefused,
    MessageStore,
    Producer,
    ReceivedMessage,
    StoreConfig,
    StoreLocked,
    UnknownTopic,
)
from store.api.message_store import delete_topic
from tests.waiting import until

SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=20 * 20, maxMessageSize=4096)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path, config=SMALL) as it:
        it.create_topic("orders", 2)
        it.create_topic("empty", 1)
        yield it


@pytest.fixture
def registry(store: MessageStore) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))
    return registry


def put(store: MessageStore, count: int, topic: str = "orders") -> int:
    """Put messages; return the bytes of their records."""
    begin = store.confirm_offset
    store.put_many([Message(topic, bytes(100))] * count)
    return store.confirm_offset - begin


def test_received_messages_and_bytes_are_counted(store: MessageStore, registry: CollectorRegistry) -> None:
    size = 0
    for count in (3, 4, 5):
        size += put(store, count)
        assert registry.get_sample_value("rocketmq_throughput_in_total", {"topic": "orders"}) == size
    assert registry.get_sample_value("rocketmq_messages_in_total", {"topic": "orders"}) == 12
    assert registry.get_sample_value("rocketmq_messages_in_total", {"topic": "empty"}) == 0
    assert registry.get_sample_value("rocketmq_topic_number") == 2
    assert registry.get_sample_value("rocketmq_storage_dispatch_behind_bytes") == 0
    assert registry.get_sample_value("rocketmq_storage_size") > 0


def test_counters_do_not_decrease_with_retention(store: MessageStore, registry: CollectorRegistry) -> None:
    size = put(store, 100)
    assert registry.get_sample_value("rocketmq_throughput_in_total", {"topic": "orders"}) == size
    put(store, 2000, "empty")
    store.clean(asked=True, forced=True)
    assert store.min_offset("orders", 0) > 0
    size += put(store, 7)
    assert registry.get_sample_value("rocketmq_messages_in_total", {"topic": "orders"}) == 107
    assert registry.get_sample_value("rocketmq_throughput_in_total", {"topic": "orders"}) == size


def test_groups_have_lag_and_progress(store: MessageStore, registry: CollectorRegistry) -> None:
    labels = {"topic": "orders", "consumer_group": "readers"}
    before = time.time() * 1000
    put(store, 10)
    store.commit_offsets("readers", "orders", {0: 5, 1: 2})
    assert registry.get_sample_value("rocketmq_consumer_lag_messages", labels) == 3
    assert registry.get_sample_value("rocketmq_messages_out_total", labels) == 7
    assert registry.get_sample_value("rocketmq_consumer_group_number") == 1
    latency = registry.get_sample_value("rocketmq_consumer_lag_latency", labels)
    kept = registry.get_sample_value("rocketmq_storage_message_reserve_time")
    assert latency is not None
    assert kept is not None
    assert 0 <= latency <= kept <= time.time() * 1000 - before + 1
    store.commit_offsets("readers", "orders", {1: 5})
    assert registry.get_sample_value("rocketmq_consumer_lag_latency", labels) == 0
    assert registry.get_sample_value("rocketmq_consumer_lag_messages", labels) == 0


def test_dead_letters_are_counted(store: MessageStore, registry: CollectorRegistry) -> None:
    store.create_topic("%DLQ%readers", 1)
    store.put_many([Message("%DLQ%readers", b"")] * 3)
    assert registry.get_sample_value("rocketmq_send_to_dlq_messages_total", {"consumer_group": "readers"}) == 3


def test_counter_continues_in_a_recreated_topic(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("orders", 2)
        put(store, 10)
    with MessageStore.open(tmp_path, read_only=True) as reader:
        registry = CollectorRegistry()
        registry.register(StoreCollector(reader))
        assert registry.get_sample_value("rocketmq_messages_in_total", {"topic": "orders"}) == 10
        delete_topic(tmp_path, "orders")
        with MessageStore.open(tmp_path, config=SMALL) as store:
            store.create_topic("orders", 2)
            put(store, 4)
        assert registry.get_sample_value("rocketmq_messages_in_total", {"topic": "orders"}) == 14


def told(registry: CollectorRegistry, name: str, **labels: str) -> float:
    every = [sample for metric in registry.collect() for sample in metric.samples if sample.name == name]
    return sum(each.value for each in every if labels.items() <= each.labels.items())


def test_durations_of_appends_are_counted(store: MessageStore, registry: CollectorRegistry) -> None:
    found = partial(told, registry, "rocketmq_put_cost_time_count")
    store.create_topic("other", 1)
    for _ in range(5):
        store.put(Message("orders", b""))
    store.put_many([Message("orders", b""), Message("other", b""), Message("orders", b"")])
    store.put_many([Message("orders", b"")] * 1000)
    store.append_table("orders", pa.table({"body": [b"", b""]}))
    append = store.begin()
    append.add("other", pa.table({"body": [b""]}))
    append.publish(flush=True)
    with pytest.raises(UnknownTopic):
        store.put(Message("nowhere", b""))
    until(lambda: found(topic="orders", invocation_status="success") == 8)
    assert found(topic="other", invocation_status="success") == 2
    assert found(invocation_status="failure") == 0
    took = told(registry, "rocketmq_put_cost_time_sum", topic="orders")
    assert 0 < took < 1000 * 60
    append = store.begin()
    append.add("other", pa.table({"body": [b""]}))
    with pytest.raises(StoreLocked):
        append.publish(unless=lambda: bool(store.put(Message("orders", b""))))
    for topic in ("orders", "other"):
        until(lambda topic=topic: found(topic=topic, invocation_status="failure") == 1)


def test_metrics_of_clients_are_counted(store: MessageStore, registry: CollectorRegistry) -> None:
    found = partial(told, registry)

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        if messages[0].body == b"bad":
            raise ValueError("bad")

    earliest = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    ok, failed = {"invocation_status": "success"}, {"invocation_status": "failure"}
    of_group = {"topic": "orders", "consumer_group": "readers"}
    with Producer(store) as producer, Consumer(store.path, "readers", "orders", listen, config=earliest):
        producer.send("orders", b"good").result()
        producer.send("orders", b"", tags="a|b")
        with pytest.raises(MessageRefused):
            producer.flush()
        until(lambda: found("rocketmq_send_cost_time_count", topic="orders", **ok) == 1)
        until(lambda: found("rocketmq_send_cost_time_bucket", topic="orders", le="+Inf", **failed) == 1)
        assert found("rocketmq_send_cost_time_bucket", topic="orders", le="500.0", **ok) == 1
        store.put_many([Message("orders", b"bad"), Message("orders", b"good")])
        until(lambda: found("rocketmq_process_time_count", **of_group, **ok) == 2)
        until(lambda: found("rocketmq_process_time_count", **of_group, **failed) == 1)
        until(lambda: found("rocketmq_delivery_latency_bucket", **of_group, le="+Inf") == 3)
        until(lambda: found("rocketmq_held_requests", **of_group) == 2)
    assert found("rocketmq_held_requests") == found("rocketmq_process_time_count") == 0
