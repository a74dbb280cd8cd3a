"""Iterating over a consumer, also in an event loop: asking for the next message acknowledges the previous one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Consumer, MessageStore, StoreError, StoreForked
from store.api.group_protocol import MessageModel
from store.model.errors import InvalidArgument
from tests.children import ended, in_a_child
from tests.store.client.consumers import QUEUES, TOPIC, committed, config, opened, put
from tests.waiting import PATIENCE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


@pytest.mark.parametrize("orderly", [False, True])
def test_iteration_yields_messages(store: MessageStore, orderly: bool) -> None:
    put(store, range(30))
    found: list[int] = []
    with Consumer(store.path, "g", "t", orderly=orderly, config=config(consume_message_batch_max_size=4)) as consumer:
        for message in consumer:
            found.append(int(message.body))
            if len(found) == 17:
                break
        assert consumer._member.committed(TOPIC)
    with Consumer(store.path, "g", "t", orderly=orderly) as consumer:
        for message in consumer:
            found.append(int(message.body))
            if len(found) == 31:
                break
    assert found[16] in found[17:] or not orderly, "the message in hand is delivered again"
    assert Counter(found) == Counter([*range(30), found[16]])


def test_next_loop_begins_with_the_unfinished_message(store: MessageStore) -> None:
    put(store, range(0, 40, QUEUES))
    with Consumer(store.path, "g", "t", config=config(consume_message_batch_max_size=5)) as consumer:
        found = [next(iter(consumer)).queue_offset for _ in range(3)]
        for message in consumer:
            found.append(message.queue_offset)
            if len(found) == 13:
                break
    assert found == [0, 0, 0, *range(10)]
    assert committed(store)[TOPIC[0]] == 9


def test_forked_child_iterates_over_nothing(store: MessageStore) -> None:
    """The messages in memory belong to the parent, even in a loop that was started before the fork."""
    put(store, range(40))
    with Consumer(store.path, "g", "t", config=config()) as consumer:
        begun = iter(consumer)
        next(begun)
        child = os.fork()
        if not child:
            refused = 0
            for messages in (begun, iter(consumer)):
                try:
                    next(messages)
                except StoreForked:
                    refused += 1
            os._exit(refused)
        assert ended(child) == 2


@pytest.mark.parametrize("is_left", [False, True])
def test_forked_child_waits_for_no_thread_of_its_parent(store: MessageStore, is_left: bool) -> None:
    put(store, range(40))
    with Consumer(store.path, "g", "t", config=config()) as consumer:
        begun = iter(consumer)
        next(begun)
        is_amid, goes_on = threading.Event(), threading.Event()

        def be_amid() -> None:
            with consumer._queues._lock:
                is_amid.set()
                goes_on.wait(PATIENCE)

        amid = threading.Thread(target=be_amid)
        amid.start()
        assert is_amid.wait(PATIENCE)

        def go_on() -> None:
            signal.alarm(10)
            if is_left:
                begun.close()
            else:
                with pytest.raises(StoreForked):
                    next(begun)

        try:
            assert in_a_child(go_on) == "None"
        finally:
            goes_on.set()
            amid.join()


def test_iteration_ends_when_another_thread_closes(store: MessageStore) -> None:
    consumer = Consumer(store.path, "g", "t", config=config())
    closing = threading.Timer(0.1, consumer.close)
    closing.start()
    assert list(consumer) == []
    closing.join()
    with pytest.raises(StoreError, match="was closed"):
        _ = consumer.assigned


def test_iterated_message_can_be_sent_back(store: MessageStore) -> None:
    put(store, [5])
    tries = []
    with Consumer(store.path, "g", "t", config=config()) as consumer:
        for message in consumer:
            tries.append(message.reconsume_times)
            if message.reconsume_times:
                break
            consumer.send_back(message, delay_level=1)
    assert tries == [0, 1]


def test_broadcasting_consumer_only_sends_back_dead_letters(store: MessageStore) -> None:
    """No consumer would receive messages sent back to a broadcasting group."""
    put(store, [5])
    with Consumer(store.path, "g", "t", config=config(message_model=MessageModel.BROADCASTING)) as consumer:
        message = next(iter(consumer))
        with pytest.raises(InvalidArgument, match="broadcasting"):
            consumer.send_back(message)
        consumer.send_back(message, delay_level=-1)
    assert store.max_offset("%DLQ%g", 0) == 1
    assert "%RETRY%g" not in store.topics()


def test_iteration_works_in_an_event_loop(store: MessageStore) -> None:
    put(store, range(10))

    async def consume() -> list[int]:
        found: list[int] = []
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with Consumer(store.path, "g", "t", config=config()) as consumer:
            async for message in consumer:
                found.append(int(message.body))
                if len(found) == 10:
                    before = ticks
                    asyncio.get_running_loop().call_later(0.1, put, store, [10])
                if len(found) == 11:
                    assert ticks > before, "other tasks ran while there was no message"
                    break
        ticking.cancel()
        return found

    assert sorted(asyncio.run(consume())) == [*range(11)]
    assert sum(committed(store).values()) == 10


def test_cancelled_task_loses_no_message(store: MessageStore) -> None:
    async def consume() -> list[int]:
        found: list[int] = []

        async def read(consumer: Consumer, most: int) -> None:
            async for message in consumer:
                found.append(int(message.body))
                if len(found) >= most:
                    break

        with Consumer(store.path, "g", "t", config=config()) as consumer:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(read(consumer, 1), 0.05)
            put(store, range(5))
            await read(consumer, 5)
        return found

    assert sorted(asyncio.run(consume())) == [*range(5)]


def test_iteration_closed_by_its_own_loop_ends(store: MessageStore) -> None:
    put(store, range(0, 20, QUEUES))
    found: list[int] = []
    for _ in range(2):
        with Consumer(store.path, "g", "t", config=config(consume_message_batch_max_size=5)) as consumer:
            for message in consumer:
                found.append(message.queue_offset)
                if len(found) % 3 == 0:
                    consumer.close()
    assert found == [0, 1, 2, 2, 3, 4]
