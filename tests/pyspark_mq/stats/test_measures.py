from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pyspark_mq.stats.measures import Extents, extents, group_lags
from pyspark_mq.stats.metrics import StoreCollector
from store import Message, MessageStore
from store.api.message_store import delete_topic
from store.directory.directory_log import DirectoryLog
from store.model.log_protocol import Queue
from tests.waiting import PATIENCE

LIVES = 8
QUEUES = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Topic "kept" has a message, and one that a group read."""
    path = tmp_path / "mq"
    with MessageStore.open(path) as writing:
        writing.create_topic("kept", 1)
        writing.put_many([Message("kept", b"body")] * 2)
        writing.commit_offsets("readers", "kept", {0: 1})
    with MessageStore.open(path, read_only=True) as reading:
        yield reading


def come_and_go(path: str) -> None:
    """Recreate topic "passing" repeatedly, with 9 or 3 messages in each queue."""
    for life in range(LIVES):
        with MessageStore.open(path) as store:
            store.create_topic("passing", QUEUES)
            store.put_many(
                [Message("passing", b"body", queue_id=queue) for queue in range(QUEUES)] * (9 if life % 2 else 3)
            )
            store.commit_offsets("readers", "passing", dict.fromkeys(range(QUEUES), 1))
        delete_topic(path, "passing")


Look = Callable[[], set[str]]  # returns the topics that it finds


def of_lags(store: MessageStore) -> Look:
    return lambda: {lag.queue.topic for lag in group_lags(DirectoryLog(store))}


def of_extents(store: MessageStore) -> Look:
    seen: Extents = {}

    def look() -> set[str]:
        nonlocal seen
        seen = extents(store, seen)
        return {queue.topic for queue in seen}

    return look


def of_metrics(store: MessageStore) -> Look:
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))

    def look() -> set[str]:
        text = generate_latest(registry).decode()
        return {topic for topic in ("kept", "passing") if f'rocketmq_messages_in_total{{topic="{topic}"}}' in text}

    return look


@pytest.mark.parametrize("looking", [of_lags, of_extents, of_metrics])
def test_topic_deleted_between_two_requests_hides_no_other(
    store: MessageStore, looking: Callable[[MessageStore], Look]
) -> None:
    look, found = looking(store), []
    passing = threading.Thread(target=come_and_go, args=(str(store.path),))
    passing.start()
    try:
        while passing.is_alive():
            found.append(look())
    finally:
        passing.join(PATIENCE)
    assert all("kept" in topics for topics in found)
    assert {"kept", "passing"} in found
    assert {"kept"} in found


def test_recreated_topic_does_not_count_old_bytes(store: MessageStore) -> None:
    path, registry = str(store.path), CollectorRegistry()
    registry.register(StoreCollector(store))

    def counted() -> float | None:
        return registry.get_sample_value("rocketmq_throughput_in_total", {"topic": "kept"})

    before, first = extents(store, {}), counted()
    delete_topic(path, "kept")
    with MessageStore.open(path) as writing:
        writing.create_topic("kept", 1)
        writing.put_many([Message("kept", b"another body")] * 3)
    now = extents(store, before)
    assert now == extents(store, {})
    assert first is not None
    assert counted() == first + (now[Queue("kept", 0)].size or 0)
