from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from store import (
    Message,
    MessageStore,
    Producer,
    PutStatus,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreLocked,
    StoreNotOpen,
)
from tests.children import ended
from tests.store.client.producers import bodies
from tests.waiting import PATIENCE


def test_close_appends_the_buffered_messages(store: MessageStore) -> None:
    with Producer(store.path, linger=60) as producer:
        sent = [producer.send("u", str(n)) for n in range(100)]
        assert store.max_offset("u", 0) == 0
    assert store.max_offset("u", 0) == 100
    assert all(future.done() for future in sent)
    for verb in (lambda: producer.send("u", b""), producer.flush):
        with pytest.raises(StoreClosed, match=r"Open a new one with Producer\("):
            verb()
    producer.close()


def test_given_store_stays_open(store: MessageStore) -> None:
    with Producer(store) as producer:
        producer.send("u", b"")
    store.put(Message("u", b""))
    assert store.max_offset("u", 0) == 2


def test_no_message_is_accepted_and_lost_during_close(store: MessageStore) -> None:
    for _ in range(5):
        producer, taken, begun = Producer(store.path), [], threading.Event()

        def send(producer: Producer = producer, taken: list[Any] = taken, begun: Any = begun) -> None:
            with suppress(StoreClosed):
                while True:
                    taken.append(producer.send("u", b""))
                    begun.set()

        before = store.max_offset("u", 0)
        thread = threading.Thread(target=send)
        thread.start()
        begun.wait(PATIENCE)
        producer.close()
        thread.join()
        assert store.max_offset("u", 0) == before + len(taken)
        assert all(future.done() for future in taken)


def test_closing_the_store_fails_the_buffered_messages(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path)
    store.create_topic("t")
    producer = Producer(store, linger=60)
    future = producer.send("t", b"")
    store.close()
    with pytest.raises(StoreClosed):
        producer.close()
    assert isinstance(future.exception(), StoreClosed)


def test_dropped_producer_warns(store: MessageStore) -> None:
    producers = [Producer(store.path, linger=60)]
    sender = producers[0]._sender
    with pytest.warns(ResourceWarning, match="producer: was dropped without a call of close. Close it"):
        producers.clear()
    sender.finish()


def test_close_waits_for_callbacks(store: MessageStore) -> None:
    called = []
    with Producer(store.path, linger=60) as producer:
        producer.send("u", "one").add_done_callback(lambda done: (time.sleep(0.05), called.append(done)))
    assert called


def test_refused_close_leaves_the_producer_open(store: MessageStore) -> None:
    """A future's callback cannot close the producer: it would wait for itself."""
    told: Queue[StoreError | None] = Queue()
    with Producer(store.path, linger=60) as producer:
        producer.send("u", b"1").add_done_callback(lambda _: told.put(raised_by(producer.close)))
        producer.flush()
        assert isinstance(told.get(timeout=PATIENCE), StoreLocked)
        producer.send("u", b"2")
    assert bodies(store, "u") == [b"1", b"2"]


def raised_by(verb: Callable[[], object]) -> StoreError | None:
    try:
        verb()
    except StoreError as error:
        return error
    return None


def test_forked_child_sends_nothing(store: MessageStore) -> None:
    with Producer(store.path, linger=60) as producer:
        producer.send("u", b"parent's")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for verb in (lambda: producer.send("u", b"child's"), producer.flush):
                    with pytest.raises(StoreForked):
                        verb()
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert ended(child) == 0
    assert bodies(store, "u") == [b"parent's"]


def test_producer_cannot_be_pickled(producer: Producer) -> None:
    with pytest.raises(StoreNotOpen, match="Pass the path"):
        pickle.dumps(producer)


def test_error_of_a_callback_affects_no_other(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    with Producer(store, linger=PATIENCE) as producer:
        first, second = producer.send("t", "1"), producer.send("t", "2")
        first.add_done_callback(lambda _: 1 / 0)
        second.add_done_callback(lambda _: None)
        producer.flush()
        producer.send("t", "3")
    assert second.result(PATIENCE).status is PutStatus.PUT_OK
    assert "ZeroDivisionError" in caplog.text
