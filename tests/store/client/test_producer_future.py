"""The futures of a producer are futures, of whoever looks at them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from concurrent.futures import _base

import pytest

from store import (
    MessageStore,
    Producer,
)
from tests.end_to_end import test_interrupts
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


@pytest.mark.parametrize("verb", ["result", "exception", "done"])
def test_a_signals_handler_closes_its_producer_amid(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Also in the middle of what Python itself waits with."""
    monkeypatch.setattr(test_interrupts, "CODE", (test_interrupts.CODE, threading.__file__, _base.__file__))
    arguments = () if verb == "done" else (PATIENCE,)
    places: list[int] = []

    def close_at(place: int) -> int:
        with Producer(store.path) as producer:
            future = producer.send("u", b"x")
            return test_interrupts.interrupted_at(place, lambda: getattr(future, verb)(*arguments), producer.close)

    def close_at_all() -> None:
        places.append(close_at(-1))
        places.extend(map(close_at, range(1, places[0] + 1)))

    test_interrupts.ends_in_time(close_at_all, lambda: f"closed at place {len(places)} of {places[:1]}")
    assert len(places) == places[0] + 1 > 1
