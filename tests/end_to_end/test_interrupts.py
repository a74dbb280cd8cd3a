"""An exception between any two instructions of a verb: Ctrl-C in a notebook, a signal's handler that raises, no memory.

What was acknowledged is there once, what was not is there once or not at all, no offset is given twice, and no lock is
kept: the same store, another one, and another process go on.
"""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreClosed
from tests.end_to_end.test_kill import ROOT, bodies, check_log
from tests.interrupts import (
    INTERRUPTS,
    SMALL,
    Interrupt,
    at_every_place,
    ends_in_time,
    interrupted_at,
    interrupts_of_a_bench,
    is_free,
)

SIGNALS = 500  # sent to a process
QUEUES = 3


class Bench:
    """A store that is interrupted, another one on the same directory, and what both were told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = MessageStore.open(path, config=SMALL)
        self.store.create_topic("t", QUEUES)
        self.other = MessageStore.open(path)
        self.told: dict[tuple[int, int], bytes] = {}
        self.maybe: set[bytes] = set()
        self.number = 0
        self.groups = 0

    def body(self) -> bytes:
        self.number += 1
        return f"{self.number}".encode().ljust(100, b".")

    def acknowledge(self, queue_id: int, offset: int, body: bytes) -> None:
        assert (queue_id, offset) not in self.told, "an offset was given twice"
        self.told[queue_id, offset] = body

    def put_many(self, store: MessageStore, count: int) -> None:
        sent = [Message("t", self.body(), keys=(f"k{n}", "all")) for n in range(count)]
        self.maybe.update(message.body for message in sent)
        for message, result in zip(sent, store.put_many(sent), strict=True):
            self.acknowledge(result.queue_id, result.queue_offset, message.body)

    def append_table(self) -> None:
        sent = [self.body() for _ in range(7)]
        self.maybe.update(sent)
        result = self.store.append_table("t", pa.table({"body": pa.array(sent, pa.binary())}))
        places = zip(result.queue_ids.tolist(), result.queue_offsets.tolist(), sent, strict=True)
        for queue_id, offset, body in places:
            self.acknowledge(queue_id, offset, body)

    def publish(self, *, flush: bool) -> None:
        """Five pieces, over several segments."""
        sent, append = [self.body() for _ in range(15)], self.store.begin()
        self.maybe.update(sent)
        for first in range(0, 15, 3):
            append.add("t", pa.table({"body": pa.array(sent[first : first + 3], pa.binary())}))
        result = append.publish(flush=flush, unless=lambda: self.number < 0)
        assert result is not None
        places = zip(result.queue_ids.tolist(), result.queue_offsets.tolist(), sent, strict=True)
        for queue_id, offset, body in places:
            self.acknowledge(queue_id, offset, body)

    def create_topic(self) -> None:
        self.store.create_topic(f"topic{self.number}", 2)

    def commit_offsets(self) -> None:
        self.groups += 1
        self.store.commit_offsets(f"group{self.groups}", "t", {0: self.groups})

    def flush(self) -> None:
        self.store.flush()

    def clean(self) -> None:
        self.store.clean(asked=True)

    def wait(self) -> None:
        self.store.wait(self.store.confirm_offset, 0.001)

    def scan(self) -> None:
        minimum, maximum = self.store.offsets("t", 0)
        for _ in self.store.scan("t", 0, max(minimum, maximum - 5), maximum):
            pass
        self.store.get_message("g", "t", 0, maximum - 3)

    def go_on(self, place: int) -> None:
        """All others can, and so can the interrupted one."""
        assert is_free(self.path, 1), f"the append lock is kept after place {place}"
        thread = threading.Thread(target=self.put_many, args=(self.store, 1), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), f"the threads' lock is kept after place {place}"
        turns = [self.store, self.other]
        for store in turns[:: 1 if place % 2 else -1]:
            self.put_many(store, 1)
        self.store.flush()

    def check(self) -> None:
        found = bodies(self.other)
        assert self.told.items() <= found.items()
        assert max(Counter(found.values()).values()) == 1
        assert set(found.values()) <= self.maybe
        assert bodies(self.store) == found
        for message in self.store.query("t", "all", max_messages=len(found) + 1):
            assert found[message.queue_id, message.queue_offset] == message.body

    def close(self) -> None:
        self.store.close()
        self.other.close()
        assert not (self.path / "abort").exists()
        assert is_free(self.path, 0)
        with MessageStore.open(self.path, read_only=True) as reader:
            found = bodies(reader)
        check_log(self.path, len(found))


VERBS: dict[str, Callable[[Bench], None]] = {
    "put": lambda bench: bench.put_many(bench.store, 1),
    "put_many": lambda bench: bench.put_many(bench.store, 12),
    "append_table": Bench.append_table,
    "publish": lambda bench: bench.publish(flush=False),
    "publish and flush": lambda bench: bench.publish(flush=True),
    "create_topic": Bench.create_topic,
    "commit_offsets": Bench.commit_offsets,
    "flush": Bench.flush,
    "clean": Bench.clean,
    "wait": Bench.wait,
    "scan": Bench.scan,
}


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="no open-file-description locks here")
@pytest.mark.parametrize("name", VERBS)
def test_interrupted_at_any_place(tmp_path: Path, name: str) -> None:
    for number, rounds in enumerate(interrupts_of_a_bench(max(10, INTERRUPTS // len(VERBS)))):
        path = tmp_path / str(number)
        interrupt(path, VERBS[name], rounds, random.Random(f"{name} {number} {rounds}"))
        shutil.rmtree(path)


def interrupt(path: Path, verb: Callable[[Bench], None], rounds: int, choose: random.Random) -> None:
    bench, interrupted = Bench(path), 0
    bench.put_many(bench.store, 20)
    verb(bench)
    places = interrupted_at(-1, lambda: verb(bench))
    while interrupted < rounds:
        bench.put_many(bench.other, choose.randint(0, 3))
        place = choose.randint(1, places)
        try:
            interrupted_at(place, lambda: verb(bench))
        except Interrupt:
            interrupted += 1
            bench.go_on(place)
        if choose.random() < 0.02:
            bench.check()
    bench.check()
    bench.close()


SIGNALLED = """
import json, random, signal, sys
from store import Message, MessageStore
class Interrupt(BaseException): pass
def handler(*arguments):
    raise Interrupt
signal.signal(signal.SIGALRM, handler)
told, choose, interrupted = [], random.Random(7), 0
with MessageStore.open(sys.argv[1]) as store:
    for n in range(int(sys.argv[2])):
        try:
            try:
                after = choose.choice((0.0001, 0.001, 0.01)) * choose.uniform(0.1, 1)
                signal.setitimer(signal.ITIMER_REAL, after if n % 10 else 0)  # every tenth comes to its end
                result = store.put(Message("t", f"{n}".encode(), keys=f"k{n}"))
                told.append((result.queue_id, result.queue_offset, f"{n}"))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (Interrupt, RuntimeError) as error:  # Python's own condition, by which a thread starts, may break so
            if not isinstance(error, Interrupt) and not isinstance(error.__context__, Interrupt):
                raise
            interrupted += 1
print(json.dumps([interrupted, told]))
"""


def test_a_signal_in_a_loop_of_puts(tmp_path: Path) -> None:
    """In two processes at a time, so that one that keeps the lock stops the other."""
    for number in range(max(1, INTERRUPTS // SIGNALS)):
        signalled(tmp_path / str(number))
        shutil.rmtree(tmp_path / str(number))


def signalled(path: Path) -> None:
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", QUEUES)
    processes = [
        subprocess.Popen([sys.executable, "-c", SIGNALLED, str(path), str(SIGNALS)], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    told: dict[tuple[int, int], bytes] = {}
    interrupted = 0
    for process in processes:
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 0
        count, acknowledged = json.loads(out)
        assert len(acknowledged) >= SIGNALS / 10
        interrupted += count
        for queue_id, offset, body in acknowledged:
            assert (queue_id, offset) not in told, "an offset was given twice"
            told[queue_id, offset] = body.encode()
    assert interrupted > SIGNALS / 20
    with MessageStore.open(path, read_only=True) as reader:
        found = bodies(reader)
    assert told.items() <= found.items()
    assert max(Counter(found.values()).values()) <= 2  # both put the same
    assert not (path / "abort").exists()
    check_log(path, len(found))


# Each with the function in which threads take turns.
HANDLED: dict[str, tuple[Callable[[MessageStore], object], str]] = {
    "flush": (MessageStore.flush, "_note_ends"),
    "wait": (lambda store: store.wait(0, 0.0), "one"),
    "watch": (MessageStore.watch, "new"),
}


@pytest.mark.parametrize("name", HANDLED)
def test_a_signals_handler_closes_the_store(tmp_path: Path, name: str) -> None:
    """In the thread whose turn it is: nobody would ever give that back."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
    verb, function = HANDLED[name]

    def close_at(place: int) -> int:
        with MessageStore.open(tmp_path) as store:
            store.put(Message("t", b"x"))
            with suppress(StoreClosed):
                return interrupted_at(place, partial(verb, store), store.close, function)
            return place

    at_every_place(close_at)
    assert not (tmp_path / "abort").exists()


def test_a_signals_handler_reads(tmp_path: Path) -> None:
    """Amid a look at a log of which nobody publishes the end."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(100))] * 100)
        end = store.confirm_offset
    (tmp_path / "watermark").unlink()

    def read_at_all() -> None:
        with MessageStore.open(tmp_path, read_only=True) as reader:

            def read() -> None:
                ends.append(reader.confirm_offset)

            for place in range(1, interrupted_at(-1, read, function="_look") + 1):
                interrupted_at(place, read, read, "_look")

    ends: list[int] = []
    ends_in_time(read_at_all, lambda: f"after {len(ends)} looks")
    assert ends
    assert set(ends) == {end}
