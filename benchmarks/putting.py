"""How many messages per second do several threads or processes put into one store, against a single one?"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import QUEUES, TOPIC, show, side_by_side
from store import Message, MessageStore, StoreConfig

_THREADS = 8
_PROCESSES = 4
_AT_ONCE = 1_000
_FLUSHED = 10  # divides the count if each put waits for the disk


def main(count: int, runs: int) -> None:
    rows = []
    for mode, each in (("ASYNC_FLUSH", count), ("SYNC_FLUSH", count // _FLUSHED)):
        ways = {
            "put, one thread": partial(_rate, mode, each, partial(_threads, 1)),
            f"put, {_THREADS} threads": partial(_rate, mode, each, partial(_threads, _THREADS)),
            f"put, {_PROCESSES} processes": partial(_rate, mode, each, _processes),
            f"put_many, {_AT_ONCE:,} a call": partial(_rate, mode, each, _put_many),
        }
        rates = side_by_side(runs, *ways.values())
        rows += [
            [mode, way, f"{rate:,.0f} /s", f"{rate / rates[0]:.2f}"] for way, rate in zip(ways, rates, strict=True)
        ]
    show(f"Putting, medians of {runs} runs", ["flushDiskType", "by", "messages", "of one thread"], rows)


def _messages(count: int) -> list[Message]:
    return [Message(TOPIC, bytes(100), tags="paid", keys=(f"o-{number}",)) for number in range(count)]


def _rate(mode: str, count: int, put: Callable[[MessageStore, int], float]) -> float:
    """The store's files exist already. put: returns the seconds for `count`."""
    with (
        TemporaryDirectory(prefix="mq-bench-") as folder,
        MessageStore.open(Path(folder) / "store", config=StoreConfig(flushDiskType=mode)) as store,
    ):
        store.create_topic(TOPIC, QUEUES)
        store.put_many(Message(TOPIC, b"first", keys=("first",), queue_id=queue) for queue in range(QUEUES))
        return count / put(store, count)


def _put(store: MessageStore, messages: list[Message]) -> None:
    for message in messages:
        store.put(message)


def _threads(threads: int, store: MessageStore, count: int) -> float:
    messages = _messages(count)
    pool = [threading.Thread(target=_put, args=(store, messages[first::threads])) for first in range(threads)]
    begin = time.perf_counter()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return time.perf_counter() - begin


def _processes(store: MessageStore, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(_PROCESSES + 1)
    share = count // _PROCESSES
    pool = [context.Process(target=_in_a_process, args=(str(store.path), share, ready)) for _ in range(_PROCESSES)]
    for process in pool:
        process.start()
    ready.wait()
    begin = time.perf_counter()
    ready.wait()
    taken = time.perf_counter() - begin
    for process in pool:
        process.join()
    return taken * count / (share * _PROCESSES)


def _in_a_process(path: str, count: int, ready: threading.Barrier) -> None:
    with MessageStore.open(path, create=False) as store:
        messages = _messages(count)
        ready.wait()
        _put(store, messages)
        ready.wait()


def _put_many(store: MessageStore, count: int) -> float:
    messages = _messages(count)
    begin = time.perf_counter()
    for first in range(0, count, _AT_ONCE):
        store.put_many(messages[first : first + _AT_ONCE])
    return time.perf_counter() - begin


if __name__ == "__main__":
    main(20_000, 5)
