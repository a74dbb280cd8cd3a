"""Members of a group share its queues, in one process and in others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import (
    Consumer,
    Message,
    MessageStore,
    ReceivedMessage,
)
from store.local_group import LocalGroup
from tests.store.client.consumers import QUEUES, TOPIC, Seen, committed, config, opened, put
from tests.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


@pytest.mark.parametrize("orderly", [False, True])
def test_members_share_the_queues_and_each_message_is_consumed_once(store: MessageStore, orderly: bool) -> None:
    first, second = Seen(), Seen()
    with Consumer(store.path, "g", "t", first, orderly=orderly, config=config()) as one:
        put(store, range(100))
        until(lambda: one.assigned == TOPIC)
        with Consumer(store.path, "g", "t", second, orderly=orderly, config=config()) as two:
            until(lambda: len(one.assigned) == len(two.assigned) == 2)
            assert sorted(one.assigned + two.assigned) == TOPIC
            put(store, range(100, 200))
            until(lambda: len(first.numbers) + len(second.numbers) >= 200)
            assert second.numbers
        until(lambda: one.assigned == TOPIC)
        put(store, range(200, 300))
        until(lambda: len(first.numbers) + len(second.numbers) >= 300)
    assert sorted(first.numbers + second.numbers) == [*range(300)]


def test_an_orderly_queue_is_not_given_away_while_a_call_is_under_way(store: MessageStore) -> None:
    put(store, range(8))
    hold, running = threading.Event(), Counter[int]()

    def slow(message: ReceivedMessage) -> None:
        running[message.queue_id] += 1
        assert running[message.queue_id] == 1
        hold.wait(60)
        running[message.queue_id] -= 1

    seen = Seen(slow)
    with Consumer(store.path, "g", "t", seen, orderly=True, config=config()) as one:
        until(lambda: len(seen.numbers) == 4)
        with Consumer(store.path, "g", "t", seen, orderly=True, config=config()) as two:
            until(lambda: len(one.assigned) == 2)
            assert two.assigned == []
            hold.set()
            until(lambda: len(two.assigned) == 2)
            until(lambda: len(seen.numbers) == 8)
    assert sorted(seen.numbers) == [*range(8)]


def test_a_topic_that_grows(store: MessageStore) -> None:
    with Consumer(store.path, "g", "t", seen := Seen(), config=config()) as consumer:
        until(lambda: consumer.assigned == TOPIC)
        store.create_topic("t", QUEUES + 1)
        store.put(Message("t", b"99", queue_id=QUEUES))
        until(lambda: seen.numbers == [99])


@pytest.mark.parametrize("orderly", [False, True])
def test_a_reset_while_the_group_consumes(store: MessageStore, orderly: bool) -> None:
    put(store, range(40))
    with Consumer(store.path, "g", "t", seen := Seen(), orderly=orderly, config=config()):
        until(lambda: len(seen.numbers) == 40)
        LocalGroup(store.path, "g").reset({TOPIC[1]: 7})
        until(lambda: len(seen.numbers) == 43)
    assert sorted(seen.numbers[40:]) == [29, 33, 37]
    assert committed(store) == dict.fromkeys(TOPIC, 10)
