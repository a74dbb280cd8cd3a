"""Which queues got messages between two ends of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig


@pytest.fixture
def config() -> StoreConfig:
    return StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)


def test_each_append_tells_its_queues(tmp_path: Path, config: StoreConfig) -> None:
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("a", 4)
        store.create_topic("b", 2)
        seen = store.confirm_offset
        store.put(Message("a", b"", queue_id=3))
        middle = store.confirm_offset
        store.put_many([Message("b", b"x" * 500, tags="t", queue_id=n % 2) for n in range(20)])  # over segments
        end = store.confirm_offset
        assert end - middle > 2 * 4096
        assert store.arrivals(seen, middle) == {("a", 3)}
        assert store.arrivals(middle, end) == {("b", 0), ("b", 1)}
        assert store.arrivals(seen, end) == {("a", 3), ("b", 0), ("b", 1)}
        assert store.arrivals(end, end) == set()


def test_records_of_a_broker_with_ipv6_hosts() -> None:
    golden = Path(__file__).parents[1] / "golden" / "hosts-5.3"
    with MessageStore.open(golden, read_only=True) as store:
        queues = {(topic, queue_id) for topic, count in store.topics().items() for queue_id in range(count)}
        there = {name for name in queues if store.max_offset(*name)}
        assert store.arrivals(0, store.confirm_offset) == there
