"""Processes that get signals. The program forks them, so that hundreds of signals take seconds:

python -m tests.end_to_end.signalled WORK STORE SIGNALS SEED

Two processes at a time repeat the same work, see `WORKS`, and get SIGNALS signals of each kind at random moments:
SIGINT, after which they continue; SIGTERM with a handler that raises SystemExit; and SIGTERM with Python's default
action.

Each process writes `queue offset body` to a file of STORE.acks/ for each acknowledged message, and `body` to a file of
STORE.seen/ for each consumed one.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import random
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import pyarrow as pa

from store import ConsumeFromWhere, Consumer, ConsumerConfig, Message, MessageStore, Producer, ReceivedMessage
from tests.children import ended
from tests.waiting import PATIENCE, until

TOPIC, QUEUES, GROUP = "t", 3, "g"
STATUS = {"interrupt": 0, "exit": 7, "kill": -signal.SIGTERM}  # exit statuses of the processes
_LATEST = 0.03  # seconds from the start of work to the signal
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_AGAIN = 10.0  # Python ignores exceptions of a handler in a finalizer: send the signal again, as a user would
CONFIG = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, consume_thread_max=2)


class Reports:
    """A process's reports, in files: if the reader fails, messages in a pipe would be lost."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._numbers = itertools.count()
        self._acks, self._seen = (
            os.open(f"{path}.{kind}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for kind in ("acks", "seen")
        )

    def close(self) -> None:
        os.close(self._acks)
        os.close(self._seen)

    def bodies(self, count: int) -> list[str]:
        return [f"{self._name}-{next(self._numbers)}" for _ in range(count)]

    def acknowledged(self, places: Sequence[tuple[int, int]], bodies: Sequence[str]) -> None:
        lines = [f"{queue} {offset} {body}\n" for (queue, offset), body in zip(places, bodies, strict=True)]
        os.write(self._acks, "".join(lines).encode())

    def consumed(self, messages: Sequence[ReceivedMessage]) -> None:
        os.write(self._seen, b"".join(message.body + b"\n" for message in messages))


Call = Callable[[], None]


def put_many(store: MessageStore, reports: Reports, count: int) -> None:
    bodies = reports.bodies(count)
    results = store.put_many([Message(TOPIC, body, keys=(body,)) for body in bodies])
    reports.acknowledged([(result.queue_id, result.queue_offset) for result in results], bodies)


@contextmanager
def putting(path: Path, reports: Reports) -> Iterator[Call]:
    with MessageStore.open(path) as store:
        yield lambda: put_many(store, reports, 1)


@contextmanager
def putting_many(path: Path, reports: Reports) -> Iterator[Call]:
    with MessageStore.open(path) as store:
        yield lambda: put_many(store, reports, 12)


@contextmanager
def appending_tables(path: Path, reports: Reports) -> Iterator[Call]:
    with MessageStore.open(path) as store:

        def call() -> None:
            bodies = reports.bodies(7)
            result = store.append_table(TOPIC, pa.table({"body": bodies, "keys": bodies}))
            places = zip(result.queue_ids.tolist(), result.queue_offsets.tolist(), strict=True)
            reports.acknowledged(list(places), bodies)

        yield call


@contextmanager
def closing(path: Path, reports: Reports) -> Iterator[Call]:
    def call() -> None:
        with MessageStore.open(path) as store:
            put_many(store, reports, 1)

    yield call


@contextmanager
def sending(path: Path, reports: Reports) -> Iterator[Call]:
    with Producer(path) as producer:

        def call() -> None:
            bodies = reports.bodies(5)
            results = [future.result(PATIENCE) for future in [producer.send(TOPIC, body) for body in bodies]]
            reports.acknowledged([(result.queue_id, result.queue_offset) for result in results], bodies)

        yield call


@contextmanager
def listening(path: Path, reports: Reports) -> Iterator[Call]:
    with MessageStore.open(path) as store:

        def call() -> None:
            with Consumer(path, GROUP, TOPIC, reports.consumed, config=CONFIG) as consumer:
                put_many(store, reports, 5)
                consumer.wait(0.01)

        yield call


@contextmanager
def iterating(path: Path, reports: Reports) -> Iterator[Call]:
    with MessageStore.open(path) as store, Consumer(path, GROUP, TOPIC, config=CONFIG) as consumer:

        def call() -> None:
            put_many(store, reports, 5)
            for number, message in enumerate(consumer):
                reports.consumed([message])
                if number == 4:
                    break

        yield call


WORKS = {
    "put": putting,
    "put_many": putting_many,
    "append_table": appending_tables,
    "close": closing,
    "send": sending,
    "listen": listening,
    "iterate": iterating,
}
CONSUMING = ("listen", "iterate")


def work(name: str, how: str, path: Path, reports: Reports, signals: int, say: Callable[[bytes], object]) -> None:
    if how == "exit":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(STATUS["exit"]))
    with WORKS[name](path, reports) as call:
        for _ in range(signals):
            try:
                say(b"r")
                while True:
                    call()
            except KeyboardInterrupt:
                say(b"c")
            call()


class Child(NamedTuple):
    pid: int
    words: int

    def watch_path(self, word: bytes, seconds: float = PATIENCE) -> bool:
        """Wait for readiness, b"r", or a caught interrupt, b"c"; return whether it came in time."""
        readable, _, _ = select.select([self.words], [], [], seconds)
        assert not readable or os.read(self.words, 1) == word, f"process {self.pid} ended"
        return bool(readable)

    def has_ended(self, seconds: float) -> bool:
        with suppress(AssertionError):
            until(
                lambda: os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, 0.001, seconds
            )
            return True
        return False

    def send(self, how: str) -> None:
        if not self.watch_path(b"r"):
            self.fail("does not begin its work")
        time.sleep(chance.uniform(0, _LATEST))
        for _ in range(int(PATIENCE / _AGAIN)):
            os.kill(self.pid, signal.SIGINT if how == "interrupt" else signal.SIGTERM)
            if self.watch_path(b"c", _AGAIN) if how == "interrupt" else self.has_ended(_AGAIN):
                return
        self.fail("does not react to the signal")

    def fail(self, why: str) -> NoReturn:
        os.kill(self.pid, signal.SIGABRT)  # faulthandler prints the stacks
        time.sleep(1)
        raise AssertionError(f"process {self.pid} {why}")


def start(name: str, how: str, path: Path, signals: int) -> None:
    read, write = os.pipe()
    reports = Reports(path, f"{how}{next(numbers)}")
    pid = os.fork()
    if pid == 0:
        alive.clear()
        signal.alarm(int(10 * PATIENCE))  # limits this process's lifetime
        work(name, how, path, reports, signals, partial(os.write, write))
        sys.exit()
    os.close(write)
    reports.close()
    alive.append(Child(pid, read))


def reap(how: str) -> None:
    child = alive.popleft()
    os.close(child.words)
    status = ended(child.pid)
    assert status == STATUS[how], f"{how}: process {child.pid} ended with {status}"


def run(name: str, how: str, path: Path, signals: int) -> None:
    many = 1 if name in CONSUMING else 2
    each = signals // many if how == "interrupt" else 1
    for _ in range(many):
        start(name, how, path, each)
    for _ in range(signals // many * many):
        alive[0].send(how)
        if how == "interrupt":
            alive.rotate()
        else:
            reap(how)
            start(name, how, path, each)
    while alive:
        if how != "interrupt":
            alive[0].send(how)
        reap(how)


if __name__ == "__main__":
    faulthandler.enable()
    alive, numbers, chance = deque[Child](), itertools.count(), random.Random(int(sys.argv[4]))
    try:
        for how in STATUS:
            run(sys.argv[1], how, Path(sys.argv[2]), int(sys.argv[3]))
    finally:
        for child in alive:
            os.kill(child.pid, signal.SIGKILL)
