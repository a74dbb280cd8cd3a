"""Fork a process in every way that Python programs do, while a store is open."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreConfig, StoreForked, StoreNotOpen
from store.upkeep.verify import verify
from tests.children import ended
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=2000)
PUTS = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 2)
    return tmp_path


def put_some(path: Path, store: MessageStore | None = None) -> int:
    """Put with this process's store; return the number of acknowledged puts."""
    with store or MessageStore.open(path) as own:
        for number in range(PUTS):
            own.put(Message("t", f"{uuid4()} {number}".encode(), keys=("k",)))
    return PUTS


def nothing_is_lost(path: Path, puts: int) -> None:
    assert not (path / "abort").exists()
    assert verify(path).findings == []
    bodies: list[bytes] = []
    with MessageStore.open(path, read_only=True) as reader:
        for queue in range(2):
            batches = reader.scan("t", queue, 0, reader.max_offset("t", queue), ("body",))
            bodies += [body for batch in batches for body in batch.column(0).to_pylist()]
    assert len(bodies) == len(set(bodies)) == puts


def child_of(work: Callable[[], object]) -> int:
    """Fork a process that exits with 0 if `work` raised nothing."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def test_parent_and_forked_child_append_concurrently(path: Path) -> None:
    """The child cannot use the parent's store, and opens its own."""
    parents = MessageStore.open(path)
    parents.put(Message("t", b"before"))

    def work() -> None:
        with pytest.raises(StoreForked):
            parents.put(Message("t", b"refused"))
        put_some(path)

    children = [child_of(work) for _ in range(2)]
    put_some(path, parents)
    assert [ended(child) for child in children] == [0, 0]
    nothing_is_lost(path, 3 * PUTS + 1)


def test_child_forked_during_appends_is_not_blocked(path: Path) -> None:
    stop, done = threading.Event(), [0, 0]
    with MessageStore.open(path) as first, MessageStore.open(path) as second:

        def append(number: int, store: MessageStore) -> None:
            while not stop.is_set():
                store.put(Message("t", f"{number} {done[number]}".encode()))
                done[number] += 1

        threads = [threading.Thread(target=append, args=each) for each in enumerate((first, second))]
        for thread in threads:
            thread.start()
        until(lambda: min(done) > 3)

        def work() -> None:
            with MessageStore.open(path) as own:
                own.put(Message("t", f"child {os.getpid()}".encode()))
            first.close()
            second.close()

        children = [child_of(work) for _ in range(20)]
        assert [ended(child) for child in children] == [0] * 20
        stop.set()
        for thread in threads:
            thread.join()
    nothing_is_lost(path, sum(done) + 20)


ORPHANING = """
import os, sys, threading
from store import Message, MessageStore
store = MessageStore.open(sys.argv[1])
def append():
    while True:
        store.put(Message("t", b"x"))
threading.Thread(target=append, daemon=True).start()
while store.max_offset("t", 0) < 3:
    pass
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()  # outlives its parent
    os._exit(0)
sys.stdin.read()
"""


def test_orphaned_child_holds_no_lock(path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANING, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    os.kill(child, 0)
    with MessageStore.open(path, config=StoreConfig(lockTimeoutMillis=10_000)) as store:
        assert store._writing()._lock.is_last()
        store.put(Message("t", b"x"))
    assert not (path / "abort").exists()
    os.kill(child, 0)
    assert parent.stdin is not None
    parent.stdin.close()
    parent.stdout.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_workers_append(path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with MessageStore.open(path) as store:
        processes = [context.Process(target=put_some, args=(path,)) for _ in range(2)]
        for process in processes:
            process.start()
        done = PUTS * 2
        for number in range(PUTS):
            store.put(Message("t", f"parent {number}".encode()))
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [0, 0]
        if method != "fork":
            with pytest.raises(StoreNotOpen, match=r"cannot be copied or pickled"):
                context.Process(target=put_some, args=(path, store)).start()
    nothing_is_lost(path, done + PUTS)


def test_child_forked_within_an_append_does_not_continue_it(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.create_topic("forked", 1)
        append, child = store.begin(), -1

        def forking() -> Iterator[pa.RecordBatch]:
            nonlocal child
            child = os.fork()
            yield pa.record_batch({"body": [b"parent" if child else b"child"]})

        for body in (b"first", b"second"):
            append.add("forked", pa.table({"body": [body]}))
        append.add("forked", pa.RecordBatchReader.from_batches(pa.schema([("body", pa.binary())]), forking()))
        refused = 1
        try:
            append.publish()
        except (StoreForked, OSError):
            refused = 0
        finally:
            if child == 0:
                os._exit(refused)
        assert ended(child) == 0
        store.put(Message("forked", b"behind"))
        found = store.get_message("g", "forked", 0, 0).messages
        assert [message.body for message in found] == [b"first", b"second", b"parent", b"behind"]
    assert verify(path).findings == []


def test_child_forked_after_fsync_does_not_continue_the_append(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a signal handler; its child is slow."""
    real_flush, child, (waits, goes_on) = os.fdatasync, -1, os.pipe()

    def flush(fd: int) -> None:
        nonlocal child
        real_flush(fd)
        if child < 0:
            child = os.fork()
            if child == 0:
                os.close(goes_on)
                os.read(waits, 1)

    config = StoreConfig(flushDiskType="SYNC_FLUSH", flushIntervalCommitLog=3_600_000)
    with MessageStore.open(path, config=config) as store:
        store.put(Message("t", b"first"))
        monkeypatch.setattr(os, "fdatasync", flush)
        refused = 1
        try:
            store.put(Message("t", b"0"))
        except (StoreForked, OSError):
            refused = 0
        finally:
            if child == 0:
                os._exit(refused)
        for number in range(1, 4):
            store.put(Message("t", f"{number}".encode()))
        os.close(goes_on)
        assert ended(child) == 0
        store.put(Message("t", b"behind"))
    os.close(waits)
    nothing_is_lost(path, 6)
