from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from store import BufferFull, MessageStore, Producer, StoreLocked
from store.client.producer_buffer import Buffer, BufferLimits
from store.client.producer_future import WIDTH, Row
from tests.store.client.producers import nobody_appends
from tests.waiting import PATIENCE, until


def test_full_buffer_refuses_messages_after_the_timeout(store: MessageStore) -> None:
    with Producer(store, buffer_bytes=10_000, timeout=0.05) as producer:
        with nobody_appends(store):
            sent = [producer.send("u", bytes(1000))]
            until(lambda: not producer._buffer._batches)
            sent += [producer.send("u", bytes(1000)) for _ in range(10)]
            with pytest.raises(BufferFull, match="This message was not taken"):
                producer.send("u", bytes(1000))
        producer.flush()
        sent.append(producer.send("u", b"again"))
    assert [future.result().queue_offset for future in sent] == list(range(len(sent)))
    assert store.max_offset("u", 0) == len(sent)


def test_waiting_caller_gets_space(store: MessageStore) -> None:
    with Producer(store, buffer_bytes=1000, timeout=PATIENCE) as producer:
        with nobody_appends(store):
            for _ in range(20):
                producer.send("u", b"")
            waiting = threading.Thread(target=lambda: [producer.send("u", b"") for _ in range(100)])
            waiting.start()
        waiting.join()
    assert store.max_offset("u", 0) == 120


def test_message_waits_until_the_batch_is_full(store: MessageStore) -> None:
    with Producer(store, linger=PATIENCE, batch_bytes=5000) as producer:
        first = producer.send("u", bytes(1000))
        time.sleep(0.02)
        assert not first.done()
        for _ in range(4):
            producer.send("u", bytes(1000))
        assert first.result(PATIENCE / 2).queue_offset == 0


def test_message_waits_no_longer_than_linger(store: MessageStore) -> None:
    with Producer(store, linger=0.05) as producer:
        begin = time.monotonic()
        producer.send("u", b"").result(PATIENCE / 2)
        assert time.monotonic() - begin >= 0.05


def test_flush_does_not_wait_for_a_full_batch(store: MessageStore) -> None:
    with Producer(store, linger=PATIENCE) as producer:
        for number in range(3):
            producer.send("u", b"")
            producer.flush()
            assert store.max_offset("u", 0) == number + 1


def test_flush_of_an_empty_buffer_returns(producer: Producer) -> None:
    producer.flush()


def test_callback_that_would_wait_for_itself_is_refused(store: MessageStore) -> None:
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


def numbered(number: int) -> Row:
    return (number, *[None] * (WIDTH - 1))


@pytest.mark.parametrize("verb", [Buffer.flush, Buffer.must_be_outside, lambda buffer: buffer.add("t", (), 0)])
def test_signal_handler_during_add_is_refused(verb: Callable[[Buffer], object]) -> None:
    buffer = Buffer("a buffer", BufferLimits(0.0, 1 << 20, 1 << 20, 1.0))

    class Interrupted(int):
        def __le__(self, other: int) -> bool:
            verb(buffer)
            return False

    buffer.add("t", numbered(0), 100, 0)
    with pytest.raises(StoreLocked, match="signal handler called this producer during send"):
        buffer.add("t", numbered(1), 100, Interrupted(1))
    buffer.add("t", numbered(1), 100, 1)
    (batch,) = buffer.take() or []
    assert batch.sequences == [0, 1]
