"""What a producer's buffer takes, and who waits for it."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from store import (
    BufferFull,
    InvalidArgument,
    MessageStore,
    Producer,
    StoreClosed,
    StoreLocked,
)
from store.client.producer_buffer import Buffer, Limits
from store.client.producer_future import WIDTH, Lot, Row, Sent
from tests.interrupts import at_every_place
from tests.interrupts import interrupted_at as handled_at
from tests.store.client.producers import bodies, nobody_appends
from tests.waiting import PATIENCE, until


def test_a_full_buffer(store: MessageStore) -> None:
    with Producer(store, buffer_bytes=10_000, timeout=0.05) as producer:
        with nobody_appends(store):
            sent = [producer.send("u", bytes(1000))]
            until(lambda: not producer._buffer._lots)
            sent += [producer.send("u", bytes(1000)) for _ in range(10)]
            with pytest.raises(BufferFull, match="this message was not taken"):
                producer.send("u", bytes(1000))
        producer.flush()
        sent.append(producer.send("u", b"again"))
    assert [future.result().queue_offset for future in sent] == list(range(len(sent)))
    assert store.max_offset("u", 0) == len(sent)


def test_who_waits_for_room_gets_it(store: MessageStore) -> None:
    with Producer(store, buffer_bytes=1000, timeout=PATIENCE) as producer:
        with nobody_appends(store):
            for _ in range(20):
                producer.send("u", b"")
            waiting = threading.Thread(target=lambda: [producer.send("u", b"") for _ in range(100)])
            waiting.start()
        waiting.join()
    assert store.max_offset("u", 0) == 120


def test_a_message_waits_for_others_until_they_are_a_batch(store: MessageStore) -> None:
    with Producer(store, linger=PATIENCE, batch_bytes=5000) as producer:
        first = producer.send("u", bytes(1000))
        time.sleep(0.02)
        assert not first.done()
        for _ in range(4):
            producer.send("u", bytes(1000))  # and a header each
        assert first.result(PATIENCE / 2).queue_offset == 0


def test_a_message_waits_no_longer_than_it_may(store: MessageStore) -> None:
    with Producer(store, linger=0.05) as producer:
        begin = time.monotonic()
        producer.send("u", b"").result(PATIENCE / 2)
        assert time.monotonic() - begin >= 0.05


def test_flush_does_not_wait_for_others(store: MessageStore) -> None:
    with Producer(store, linger=PATIENCE) as producer:
        for number in range(3):
            producer.send("u", b"")
            producer.flush()
            assert store.max_offset("u", 0) == number + 1


def test_flush_of_nothing(producer: Producer) -> None:
    producer.flush()


def test_callbacks_cannot_wait_for_themselves(store: MessageStore) -> None:
    told: list[BaseException] = []

    def call(verb: Any) -> None:
        try:
            verb()
        except (BufferFull, StoreLocked) as error:
            told.append(error)

    with Producer(store, linger=PATIENCE) as producer:
        producer.send("u", b"").add_done_callback(lambda _: call(producer.flush))
        producer.send("u", b"").add_done_callback(lambda _: call(producer.close))
        producer.flush()
    assert [type(error) for error in told] == [BufferFull, StoreLocked]


ADD, FIRST_LINE = inspect.getsourcelines(Buffer.add)


@contextmanager
def interrupted_at(line: int) -> Iterator[None]:
    """Ctrl-C, before a line of `Buffer.add` is run the first time; which is caught."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not Buffer.add.__code__:
            return None
        if event == "line" and frame.f_lineno == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    with suppress(KeyboardInterrupt):
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)


def numbered(number: int) -> Row:
    return (number, *[None] * (WIDTH - 1))


@pytest.mark.parametrize("line", range(FIRST_LINE, FIRST_LINE + len(ADD)))
@pytest.mark.parametrize("before", [0, 2])
def test_a_message_that_is_interrupted_is_there_once(line: int, before: int) -> None:
    """Sent again it is taken, or it was; those behind it have their sequences."""
    buffer = Buffer("a buffer", Limits(0.0, 1 << 20, 1 << 20, 1.0))
    for number in range(before):
        buffer.add("t", numbered(number), 100, number)
    with interrupted_at(line):
        buffer.add("t", numbered(before), 100, before)
    with suppress(InvalidArgument):
        buffer.add("t", numbered(before), 100, before)
    buffer.add("t", numbered(before + 1), 100, before + 1)
    (lot,) = buffer.take() or []
    assert lot.columns(0, len(lot))[0] == lot.sequences == list(range(before + 2))
    with pytest.raises(InvalidArgument, match="was sent after"):
        buffer.add("t", numbered(before + 1), 100, before + 1)


@pytest.mark.parametrize("line", range(FIRST_LINE, FIRST_LINE + len(ADD)))
def test_the_message_after_one_that_is_interrupted_goes_at_once(line: int) -> None:
    buffer, taken = Buffer("a buffer", Limits(0.0, 1 << 20, 1 << 20, 1.0)), []
    taker = threading.Thread(target=lambda: taken.extend(buffer.take() or []), daemon=True)
    taker.start()
    until(lambda: bool(buffer._work._waiters))
    with interrupted_at(line):
        buffer.add("t", numbered(0), 100)
    time.sleep(0.01)  # who waits may have been waked for nothing
    buffer.add("t", numbered(1), 100)
    taker.join(PATIENCE)
    assert isinstance(taken[0], Lot)


HANDLERS: list[Callable[[Producer], object]] = [
    Producer.close,
    Producer.flush,
    lambda producer: producer.send("u", b"y"),
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_signals_handler_amid_send(store: MessageStore, handler: Callable[[Producer], object]) -> None:
    """In the same thread, before any instruction: what it cannot do there it refuses, and what is sent comes."""
    sent: list[Sent] = []

    def send_at(place: int) -> int:
        with Producer(store.path) as producer:

            def send() -> None:
                sent.append(producer.send("u", b"x"))

            with suppress(StoreClosed, StoreLocked):
                return handled_at(place, send, partial(handler, producer), "add")
        return place

    at_every_place(send_at)
    offsets = [future.result(PATIENCE).queue_offset for future in sent]
    assert len(set(offsets)) == len(offsets)
    assert max(offsets) < store.max_offset("u", 0)


@pytest.mark.parametrize("before", [0, 2])
def test_what_interrupts_a_send_closes(store: MessageStore, before: int) -> None:
    """And what it interrupts is sent, or refused, also behind others that waited."""
    told = Counter[bool]()
    for place in range(1, 200):
        producer = Producer(store.path, linger=PATIENCE)
        for _ in range(before):
            producer.send("u", b"")
        try:
            if handled_at(place, partial(producer.send, "u", b"x"), producer.close, "add") < place:
                break
            told[True] += 1
        except StoreClosed:
            told[False] += 1
        finally:
            producer.close()
        assert bodies(store, "u").count(b"x") == told[True]
    assert told[True]
    assert told[False]
