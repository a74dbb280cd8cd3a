"""A store leaves its directory by `close`, when it is dropped, or when the process exits."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, FunctionType

import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreBusy, StoreConfig, StoreLocked
from store.append.flusher import Flusher
from store.append.published_end import PublishedEnd
from store.delays.deliverer import Deliverer

ROOT = Path(__file__).parents[3]
NEVER_FLUSHED = StoreConfig(flushIntervalCommitLog=3_600_000, lockTimeoutMillis=200)
NEVER_BUSY = StoreConfig(flushIntervalCommitLog=3_600_000, lockTimeoutMillis=3_600_000)


def descriptors(path: Path) -> list[str]:
    """Return the files of `path` and the inotify instances that this process has open."""
    gc.collect()
    links = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return [link for link in links if link.startswith((str(path), "anon_inode:inotify"))]


def flushers() -> int:
    return sum(thread.name == "mq-flush" for thread in threading.enumerate())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, config=NEVER_FLUSHED) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"x"))
    return tmp_path


def test_closed_store_leaves_no_reference_cycle(path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        with MessageStore.open(path) as store:
            store.put(Message("t", b"x"))
            store.append_table("t", pa.table({"body": [b"y"]}))
        del store
        open_files = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    finally:
        gc.enable()
    assert not [link for link in open_files if link.startswith(str(path))]


@pytest.mark.parametrize("step", [Deliverer.stop, Flusher.stop])
def test_interrupted_close_leaves_no_thread(path: Path, step: FunctionType) -> None:
    store, tracing, threads = MessageStore.open(path), sys.gettrace(), threading.active_count()
    store.put(Message("t", b"later", delay_level=18))

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is step.__code__:
            raise KeyboardInterrupt

    assert threading.active_count() == threads + 1, "one thread delivers"
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.close()
    finally:
        sys.settrace(tracing)
    assert threading.active_count() == threads - 1
    with MessageStore.open(path) as again:
        assert again.max_offset("t", 0) == 1


def test_close_during_an_append_in_the_same_thread(path: Path) -> None:
    """A signal handler may do this. Otherwise the append would continue without the lock and other stores would
    overwrite it."""
    store, other = MessageStore.open(path), MessageStore.open(path, config=NEVER_FLUSHED)

    def bodies() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": [b"in the middle"]})
        with pytest.raises(StoreLocked, match="MessageStore is not re-entrant"):
            store.close()
        with pytest.raises(StoreBusy), ThreadPoolExecutor(1) as pool:
            pool.submit(other.put, Message("t", b"other")).result()

    append = store.begin()
    append.add_messages([Message("t", b"first")])
    append.add_messages([Message("t", b"second")])
    append.add("t", pa.RecordBatchReader.from_batches(pa.schema([("body", pa.binary())]), bodies()))
    assert append.publish().queue_offsets.tolist() == [1, 2, 3]
    assert other.put(Message("t", b"other")).queue_offset == 4
    store.close()
    other.close()
    assert not (path / "abort").exists()
    with MessageStore.open(path, read_only=True) as reader:
        found = [message.body for message in reader.get_message("g", "t", 0, 0).messages]
    assert found == [b"x", b"first", b"second", b"in the middle", b"other"]


def test_close_waits_for_the_append_of_another_thread(path: Path) -> None:
    store, inside, goes_on = MessageStore.open(path, config=NEVER_FLUSHED), threading.Event(), threading.Event()
    append = store.begin()
    append.add_messages([Message("t", b"late")])

    def wait() -> bool:
        inside.set()
        return not goes_on.wait(60)

    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(append.publish, unless=wait)
        inside.wait()
        closed = pool.submit(store.close)
        goes_on.set()
        assert late.result().queue_offsets.tolist() == [1]
        closed.result()
    assert not (path / "abort").exists()


DROPS = """
import sys
from store import Message, MessageStore, StoreConfig
store = MessageStore.open(sys.argv[1], config=StoreConfig(flushIntervalCommitLog=3_600_000))
store.put(Message("t", b"at the end"))
if sys.argv[2] == "drop":
    del store
"""


@pytest.mark.parametrize("how", ["drop", "keep"])
def test_dropped_store_warns_and_is_recovered(path: Path, how: str) -> None:
    """The kernel releases the locks of a process that exits, as for a killed one."""
    command = [sys.executable, "-W", "always", "-c", DROPS, str(path), how]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0
    assert f"ResourceWarning: {path}: this store was dropped" in ended.stderr
    assert (path / "abort").exists()
    with MessageStore.open(path) as store:
        assert store.put(Message("t", b"x")).queue_offset == 2


HOLDER = """
import os, signal, sys
from store import MessageStore
store = MessageStore.open(sys.argv[1])
with store._writing().held():
    os.kill(os.getpid(), signal.SIGSTOP)
store.close()
"""


def test_closing_while_a_stopped_process_holds_the_lock(path: Path) -> None:
    """`close` raises StoreBusy after `lockTimeoutMillis`. The `abort` file stays for the other process."""
    before = descriptors(path)
    store = MessageStore.open(path, config=NEVER_FLUSHED)
    store.put(Message("t", b"x"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], cwd=ROOT)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(
        StoreBusy, match=rf"held by process {holder.pid} .*which is stopped .continue it: kill -CONT {holder.pid}"
    ):
        store.close()
    store.close()
    assert (path / "abort").exists()
    assert descriptors(path) == before
    published = PublishedEnd(path, writable=False)
    assert published.flushed_offset == published.confirm_offset
    holder.send_signal(signal.SIGCONT)
    assert holder.wait(60) == 0
    assert not (path / "abort").exists()
