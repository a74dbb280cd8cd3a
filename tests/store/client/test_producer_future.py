from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest

from store import MessageStore, Producer, StoreForked
from store.client.producer_future import SendFuture
from tests.children import in_a_child
from tests.waiting import PATIENCE


def test_future_calls_back_when_done(producer: Producer) -> None:
    called: Queue[SendFuture] = Queue()
    future = producer.send("t", "one")
    future.add_done_callback(called.put)
    assert called.get(timeout=PATIENCE) is future
    future.add_done_callback(called.put)
    assert called.get_nowait() is future
    assert future.done()
    assert future.exception() is None


def test_forked_child_does_not_wait_for_its_parents_append(store: MessageStore) -> None:
    with Producer(store, linger=60) as producer:
        before = producer.send("t", "appended before")
        producer.flush()
        future = producer.send("t", "appended in the parent")

        def ask() -> int:
            signal.alarm(10)
            with pytest.raises(StoreForked, match="Ask its future in process"):
                future.result()
            return before.result().queue_offset

        assert in_a_child(ask) == "0"
        producer.flush()
        assert future.done()


def test_future_waits_no_longer_than_its_timeout(store: MessageStore) -> None:
    with Producer(store, linger=60) as producer:
        future = producer.send("t", "it goes")
        assert not future.done()
        with pytest.raises(TimeoutError):
            future.result(0.01)
    assert future.result().queue_offset == 0


def test_futures_are_awaited(producer: Producer) -> None:
    async def send() -> list[int]:
        results = await asyncio.gather(*(producer.send("u", str(n)) for n in range(100)))
        return [result.queue_offset for result in results]

    assert asyncio.run(send()) == list(range(100))


def test_cancelled_coroutine_leaves_the_message(store: MessageStore) -> None:
    async def send(producer: Producer) -> SendFuture:
        future = producer.send("u", "one")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)
        return future

    with Producer(store, linger=60) as producer:
        future = asyncio.run(send(producer))
    assert future.result().queue_offset == 0


def test_several_threads_wait_for_one_future(store: MessageStore) -> None:
    with Producer(store, linger=60) as producer:
        future = producer.send("u", "one")
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(future.result, PATIENCE) for _ in range(4)]
            producer.flush()
            assert {each.result(PATIENCE).queue_offset for each in waiting} == {0}
