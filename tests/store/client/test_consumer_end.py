from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import walk_stack

import pytest

from store import Consumer, MessageStore, ReceivedMessage, StoreBusy, StoreForked, StoreLocked
from store.append.locks import among_groups
from store.directory.directory_group import DirectoryGroup
from tests.children import ended
from tests.store.client.consumers import TOPIC, Seen, config, has_done, opened, put
from tests.waiting import PATIENCE, until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


def test_interrupted_close_leaves_no_member(store: MessageStore) -> None:
    """Otherwise the queues would stay owned until the process exits."""
    put(store, [0])
    began, hold = threading.Event(), threading.Event()

    def hang(messages: Sequence[ReceivedMessage]) -> None:
        began.set()
        hold.wait()

    consumer = Consumer(store.path, "g", "t", hang, config=config())
    assert began.wait(PATIENCE)
    main = threading.get_ident()

    def is_waiting() -> bool:
        return any(frame.f_code.co_name == "wait_for_calls" for frame, _ in walk_stack(sys._current_frames()[main]))

    def interrupt() -> None:
        until(is_waiting)  # otherwise the signal would interrupt pytest
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert DirectoryGroup(store.path, "g").members() == []
    hold.set()
    interrupting.join()


@pytest.mark.parametrize("orderly", [False, True])
def test_listener_stops_its_consumer(store: MessageStore, orderly: bool) -> None:
    put(store, range(40))
    made, seen, others = threading.Event(), Seen(), Seen()

    def stop(messages: Sequence[ReceivedMessage]) -> None:
        assert made.wait(PATIENCE)
        consumer.close()
        seen(messages)

    with Consumer(store.path, "g", "t", stop, orderly=orderly, config=config()) as consumer:
        made.set()
        assert consumer.wait(PATIENCE)
    assert DirectoryGroup(store.path, "g").members() == []
    with Consumer(store.path, "g", "t", others, orderly=orderly, config=config()):
        until(lambda: len(seen.numbers) + len(others.numbers) >= 40)
    assert sorted(seen.numbers + others.numbers) == [*range(40)]


def test_signal_handler_during_a_call_cannot_close(store: MessageStore) -> None:
    with Consumer(store.path, "g", "t", config=config()) as consumer:
        with consumer._queues._lock, pytest.raises(StoreLocked, match="Let the handler raise an exception instead"):
            consumer.close()
        put(store, [0])
        assert next(iter(consumer)).body == b"0"


def test_done_messages_are_not_repeated_if_close_cannot_lock(store: MessageStore) -> None:
    """Another process holds the lock too long, but the offsets were already committed."""
    put(store, range(40))
    consumer = Consumer(store.path, "g", "t", seen := Seen(), config=config())
    until(lambda: len(seen.numbers) == 40 and has_done(consumer, TOPIC) == {10})
    holds, hold = threading.Event(), threading.Event()

    def work() -> None:
        with among_groups(store.path, PATIENCE):
            holds.set()
            hold.wait()

    holding = threading.Thread(target=work)
    holding.start()
    assert holds.wait(PATIENCE)
    consumer._member._files._timeout = 0.01  # type: ignore[attr-defined]
    with pytest.raises(StoreBusy):
        consumer.close()
    hold.set()
    holding.join()
    with Consumer(store.path, "g", "t", seen, config=config()) as consumer:
        until(lambda: consumer.assigned == TOPIC)
        put(store, range(40, 44))
        until(lambda: len(seen.numbers) >= 44)
    assert sorted(seen.numbers) == [*range(44)]


def test_forked_child_does_not_wait(store: MessageStore) -> None:
    with Consumer(store.path, "g", "t", Seen(), config=config()) as consumer:
        child = os.fork()
        if not child:
            try:
                consumer.wait()
            except StoreForked:
                os._exit(7)
            os._exit(1)
        assert ended(child) == 7


def test_child_forked_by_a_listener_ends(store: MessageStore) -> None:
    """It must not wait for a thread of its parent that was inside a queue call at the fork."""
    is_amid, goes_on, children = threading.Event(), threading.Event(), list[int]()

    def be_amid() -> None:
        with consumer._queues._lock:
            is_amid.set()
            goes_on.wait(PATIENCE)

    def fork(message: ReceivedMessage) -> None:
        threading.Thread(target=be_amid).start()
        assert is_amid.wait(PATIENCE)
        if child := os.fork():
            children.append(child)
            goes_on.set()
        else:
            signal.alarm(10)

    with Consumer(store.path, "g", "t", seen := Seen(fork), config=config()) as consumer:
        put(store, [0])
        until(lambda: has_done(consumer, TOPIC) == {0, 1})
    assert [ended(child) for child in children] == [0]
    assert seen.numbers == [0]


def test_consumer_that_cannot_start_its_threads_is_no_member(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller got no consumer that it could close."""
    started, start = [], threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if len(started) == 7:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Consumer(store.path, "g", "t", Seen(), config=config())
    monkeypatch.undo()
    assert DirectoryGroup(store.path, "g").members() == []
    assert not any(thread.is_alive() for thread in started if thread.name.startswith("consumer"))
