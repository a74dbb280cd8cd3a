"""The futures of a producer are futures, of whoever looks at them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
from concurrent.futures import _base

import pytest

from store import (
    MessageStore,
    Producer,
    StoreForked,
)
from tests.children import in_a_child
from tests.waiting import PATIENCE, until


def test_its_future_is_one(producer: Producer) -> None:
    sent = [producer.send("t", str(number)) for number in range(10)]
    done, left = concurrent.futures.wait(sent, PATIENCE)
    assert done == set(sent)
    assert not left
    later = [producer.send("t", str(number)) for number in range(10)]
    producer.flush()
    assert {future.result().queue_offset for future in concurrent.futures.as_completed(later, PATIENCE)}
    assert all(future.done() and not future.cancel() and not future.cancelled() for future in sent)
    called: list[object] = []
    sent[0].add_done_callback(called.append)
    assert called == [sent[0]]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        sent[0].nonsense  # noqa: B018


def test_a_forked_child_does_not_wait_for_what_its_parent_appends(store: MessageStore) -> None:
    with Producer(store, linger=60) as producer:
        before = producer.send("t", "appended before")
        producer.flush()
        future = producer.send("t", "appended in the parent")

        def ask() -> int:
            signal.alarm(10)
            with pytest.raises(StoreForked, match="ask there"):
                future.result()
            return before.result().queue_offset

        assert in_a_child(ask) == "0"
        producer.flush()
        assert future.done()


def test_a_message_that_was_handed_over_cannot_be_called_back(store: MessageStore) -> None:
    with Producer(store, linger=60) as producer:
        future = producer.send("t", "it goes")
        assert not future.cancel()
        assert future.running()
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.01)
    assert future.result().queue_offset == 0


def test_futures_are_awaited(producer: Producer) -> None:
    async def send() -> list[int]:
        results = await asyncio.gather(*(asyncio.wrap_future(producer.send("u", str(n))) for n in range(100)))
        return [result.queue_offset for result in results]

    assert asyncio.run(send()) == list(range(100))


def test_one_future_in_several_threads(store: MessageStore) -> None:
    with Producer(store, linger=60) as producer:
        future = producer.send("u", "one")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            told = [pool.submit(concurrent.futures.wait, [future], PATIENCE) for _ in range(4)]
            waiting = [pool.submit(future.result, PATIENCE) for _ in range(4)]
            until(lambda: future.is_watched)
            producer.flush()
            assert {each.result(PATIENCE).queue_offset for each in waiting} == {0}
            assert all(each.result(PATIENCE).done == {future} for each in told)


def test_two_threads_wait_for_some_of_the_same_futures(store: MessageStore) -> None:
    """Who waits holds all of its futures as it begins to, and must not need one that another holds."""
    with Producer(store, linger=60) as producer:
        first, second, third = (producer.send("u", str(number)) for number in range(3))
        with _base._AcquireFutures([first, second]):  # type: ignore[attr-defined]
            flushing = threading.Thread(target=producer.flush)
            flushing.start()
            until(first.done)
            other = threading.Thread(target=concurrent.futures.wait, args=([third],), daemon=True)
            other.start()
            other.join(PATIENCE)
            assert not other.is_alive()
        flushing.join()
        assert concurrent.futures.wait([first, second], PATIENCE).done == {first, second}
