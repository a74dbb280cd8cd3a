"""How a producer ends: closed, dropped, forked, with its store or its program."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
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
from tests.store.client.producers import ROOT, bodies
from tests.waiting import PATIENCE


def test_close_appends_what_is_left(store: MessageStore) -> None:
    with Producer(store.path, linger=60) as producer:
        sent = [producer.send("u", str(n)) for n in range(100)]
        assert store.max_offset("u", 0) == 0
    assert store.max_offset("u", 0) == 100
    assert all(future.done() for future in sent)
    for verb in (lambda: producer.send("u", b""), producer.flush):
        with pytest.raises(StoreClosed, match=r"make a new one with Producer\("):
            verb()
    producer.close()


def test_a_store_that_was_given_stays_open(store: MessageStore) -> None:
    with Producer(store) as producer:
        producer.send("u", b"")
    store.put(Message("u", b""))
    assert store.max_offset("u", 0) == 2


def test_nothing_is_taken_while_it_closes(store: MessageStore) -> None:
    """Whatever the moment: what was taken is there, what was not raised."""
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


def test_a_store_that_was_closed_under_it(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path)
    store.create_topic("t")
    producer = Producer(store, linger=60)
    future = producer.send("t", b"")
    store.close()
    with pytest.raises(StoreClosed):
        producer.close()
    assert isinstance(future.exception(), StoreClosed)


def test_one_that_is_dropped_appends_and_warns(store: MessageStore) -> None:
    producers = [Producer(store.path, linger=60)]
    future = producers[0].send("u", b"there")
    with pytest.warns(ResourceWarning, match="producer: was dropped; close it"):
        producers.clear()
    assert future.result(PATIENCE).queue_offset == 0


def ran(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE)


def test_the_end_of_the_program_appends_what_is_left(store: MessageStore) -> None:
    program = f"""
from store import Producer
producer = Producer({str(store.path)!r}, linger=60)
for number in range(100):
    producer.send("u", str(number))
producer.send("u", bytes(1 << 24))
"""
    done = ran(program, "-Wd")
    assert "ResourceWarning" in done.stderr
    assert "was dropped, and some of what was sent failed: MESSAGE_ILLEGAL" in done.stderr
    assert bodies(store, "u") == [str(number).encode() for number in range(100)]


_forgotten: list[Producer] = []


def _send_and_forget(path: str) -> None:
    _forgotten.append(Producer(path, linger=60))
    _forgotten[0].send("u", b"of a global one")
    Producer(path, linger=60).send("u", b"of one that is dropped")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_end_of_a_child_appends_what_is_left(store: MessageStore, method: str) -> None:
    """Which ends without what Python calls at the end of a program; also where its parent has, or had, one."""
    Producer(store.path).close()
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=_send_and_forget, args=(str(store.path),))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert sorted(bodies(store, "u")) == [b"of a global one", b"of one that is dropped"]


def test_the_end_of_the_program_appends_what_is_left_where_warnings_are_errors(store: MessageStore) -> None:
    program = f"""
from store import Producer
producers = [Producer({str(store.path)!r}, linger=60) for _ in range(3)]
for producer in producers:
    producer.send("u", "x")
del producer, producers[1]
"""
    done = ran(program, "-Werror")
    assert "ResourceWarning" in done.stderr
    assert bodies(store, "u") == [b"x"] * 3


def test_the_end_of_the_program_waits_for_what_futures_call(store: MessageStore) -> None:
    """Also where another thread waited for the same future, which is told before what it calls is called."""
    program = f"""
import time
from concurrent.futures import wait
from store import Producer
with Producer({str(store.path)!r}, linger=0.1) as producer:
    future = producer.send("u", "one")
    future.add_done_callback(lambda done: (time.sleep(0.3), print("called")))
    wait([future])
"""
    done = ran(program)
    assert done.stdout == "called\n"


def test_who_may_not_close_it_leaves_it_open(store: MessageStore) -> None:
    """What a future calls: it would wait for itself."""
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


def test_a_forked_child_sends_nothing(store: MessageStore) -> None:
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


def test_it_is_not_handed_to_other_processes(producer: Producer) -> None:
    with pytest.raises(StoreNotOpen, match="hand its path on"):
        pickle.dumps(producer)


def test_what_a_callback_raises_keeps_nobody_else(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    """Not even what ends a thread."""
    with Producer(store, linger=PATIENCE) as producer:
        first, second = producer.send("t", "1"), producer.send("t", "2")
        first.add_done_callback(lambda _: sys.exit(3))
        second.add_done_callback(lambda _: None)
        producer.flush()
        producer.send("t", "3")
    assert second.result(PATIENCE).status is PutStatus.PUT_OK
    assert "SystemExit" in caplog.text
