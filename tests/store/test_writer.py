"""Leaving a directory: by closing, by dropping the store, by the end of the process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, FunctionType

import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreBusy, StoreConfig, StoreLocked
from store.delays.deliverer import Deliverer
from store.delays.delivery import Delivery
from store.publish.flusher import Flusher
from store.publish.published_end import PublishedEnd
from tests.waiting import until

ROOT = Path(__file__).parents[2]
NEVER_FLUSHED = StoreConfig(flushIntervalCommitLog=3_600_000, lockTimeoutMillis=200)
NEVER_BUSY = StoreConfig(flushIntervalCommitLog=3_600_000, lockTimeoutMillis=3_600_000)


def descriptors(path: Path) -> list[str]:
    """What of `path`, and of those that belong to no file, this process has open."""
    gc.collect()
    links = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return [link for link in links if link.startswith((str(path), "anon_inode:inotify"))]


def flushers() -> int:
    return sum(thread.name == "mq-flush" for thread in threading.enumerate())


def is_nobody_dropping() -> bool:
    return all(thread.name != "mq-drop" for thread in threading.enumerate())


def dropped(path: Path, *, read_only: bool = False, appends: bool = True) -> None:
    """Use a store, and forget it."""
    store = MessageStore.open(path, config=NEVER_FLUSHED, read_only=read_only)
    if not read_only and appends:
        store.put(Message("t", b"x", keys=("k",)))
    store.wait(0, 0.0)
    assert store.offsets("t", 0)[0] == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, config=NEVER_FLUSHED) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"x"))
    return tmp_path


def test_a_closed_store_leaves_no_cycle_behind(path: Path) -> None:
    """Its files close with the last reference to it, not when the garbage collector runs."""
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


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("appends", [False, True])
def test_a_dropped_store_is_gone(path: Path, read_only: bool, appends: bool) -> None:
    before, threads = descriptors(path), flushers()
    with pytest.warns(ResourceWarning, match=rf"{path}: this store was dropped; close it, or use a with statement"):
        dropped(path, read_only=read_only, appends=appends)
    until(is_nobody_dropping)
    assert descriptors(path) == before
    assert flushers() == threads
    assert not (path / "abort").exists()
    published = PublishedEnd(path, writable=False)
    assert published.flushed_offset == published.confirm_offset


def test_a_dropped_store_whose_directory_was_moved_away_says_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MessageStore.open(path, config=NEVER_FLUSHED)
    store.put(Message("t", b"x"))
    path.rename(path.parent / "elsewhere")
    with pytest.warns(ResourceWarning):
        del store
    until(is_nobody_dropping)
    assert [line for line in caplog.messages if line.startswith(f"a store was dropped, and left as if killed: {path}")]
    with MessageStore.open(path.parent / "elsewhere") as again:
        assert again.max_offset("t", 0) == 2


@pytest.mark.parametrize("step", [Deliverer.stop, Flusher.stop])
def test_a_close_that_is_interrupted_leaves_no_thread_behind(path: Path, step: FunctionType) -> None:
    """Which would go on in a directory that others may have by then."""
    store, tracing, threads = MessageStore.open(path), sys.gettrace(), threading.active_count()
    store.put(Message("t", b"later", delay_level=18))

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is step.__code__:
            raise KeyboardInterrupt

    assert threading.active_count() == threads + 1, "one delivers"
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.close()
    finally:
        sys.settrace(tracing)
    assert threading.active_count() == threads - 1
    with MessageStore.open(path) as again:
        assert again.max_offset("t", 0) == 1


def test_a_dropped_store_that_others_write_to(path: Path) -> None:
    with MessageStore.open(path) as other:
        with pytest.warns(ResourceWarning):
            dropped(path)
        until(is_nobody_dropping)
        assert (path / "abort").exists()
        assert other.put(Message("t", b"x")).queue_offset == 2
    assert not (path / "abort").exists()


def test_a_store_that_is_dropped_during_an_append_of_another_in_the_same_thread(path: Path) -> None:
    """The garbage collector may run anywhere: it must not wait for what waits for it."""

    box = [MessageStore.open(path, config=NEVER_BUSY)]
    box[0].put(Message("t", b"x"))
    with MessageStore.open(path) as other:

        def during_an_append() -> None:
            with pytest.warns(ResourceWarning):
                box.clear()
            until(is_nobody_dropping)

        other._writing().exclusively(during_an_append)
        assert (path / "abort").exists()
        assert other.put(Message("t", b"x")).queue_offset == 2
    assert not (path / "abort").exists()


def test_a_store_that_is_dropped_in_its_own_flushers_thread(path: Path) -> None:
    """By the garbage collector, in the middle of a flush, if it was part of a cycle."""
    threads = flushers()
    store = MessageStore.open(path, config=StoreConfig(flushIntervalCommitLog=1))
    flusher = store._writing()._flusher
    boxes, flushed = [store], flusher._flush
    in_flusher = threading.Event()

    def flush_and_drop() -> None:
        if boxes and threading.current_thread().name == "mq-flush":
            boxes.clear()
            in_flusher.set()
        flushed()

    flusher._flush = flush_and_drop  # type: ignore[method-assign]
    store.put(Message("t", b"x"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del store
        assert in_flusher.wait(60)
        until(lambda: flushers() == threads and not (path / "abort").exists())
    assert [each.category for each in warned] == [ResourceWarning]


def test_a_store_that_is_dropped_in_its_own_deliverers_thread(path: Path) -> None:
    """Likewise, where delayed messages are delivered."""
    store = MessageStore.open(path)
    deliverer = store._writing()._deliverer
    boxes, new_delivery = [store], deliverer._delivery
    in_deliverer = threading.Event()

    def drop_and_deliver() -> Delivery:
        boxes.clear()
        in_deliverer.set()
        return new_delivery()

    deliverer._delivery = drop_and_deliver
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        store.put(Message("t", b"late", delay_level=1))
        del store
        assert in_deliverer.wait(60)
        until(lambda: not (path / "abort").exists())
    assert [each.category for each in warned] == [ResourceWarning]


def test_closing_in_the_middle_of_an_append_in_the_same_thread(path: Path) -> None:
    """As a signal's handler may: the append would go on without the lock, and others over it."""
    store, other = MessageStore.open(path), MessageStore.open(path, config=NEVER_FLUSHED)

    def bodies() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": [b"in the middle"]})
        with pytest.raises(StoreLocked, match="interrupted another verb of this store in the same thread"):
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


def test_a_store_that_is_dropped_in_the_middle_of_an_append(path: Path) -> None:
    """Which has the writer, but not the store: the last who had it was what the append reads."""
    other, box = MessageStore.open(path, config=NEVER_FLUSHED), [MessageStore.open(path)]

    def bodies() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": [b"third"]})
        with pytest.warns(ResourceWarning):
            box.clear()
        with pytest.raises(StoreBusy), ThreadPoolExecutor(1) as pool:
            pool.submit(other.put, Message("t", b"other")).result()

    append = box[0].begin()
    append.add_messages([Message("t", b"first")])
    append.add_messages([Message("t", b"second")])
    append.add("t", pa.RecordBatchReader.from_batches(pa.schema([("body", pa.binary())]), bodies()))
    assert append.publish().queue_offsets.tolist() == [1, 2, 3]
    assert other.put(Message("t", b"other")).queue_offset == 4
    until(is_nobody_dropping)
    other.close()
    assert not (path / "abort").exists()


def test_closing_while_another_thread_never_ends_its_append(path: Path) -> None:
    before = descriptors(path)
    store, inside, goes_on = MessageStore.open(path, config=NEVER_FLUSHED), threading.Event(), threading.Event()
    append = store.begin()
    append.add_messages([Message("t", b"late")])

    def wait() -> bool:
        inside.set()
        return not goes_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(append.publish, unless=wait)
        inside.wait()
        with pytest.raises(StoreBusy):
            store.close()
        assert (path / "abort").exists()
        goes_on.set()
        assert late.result().queue_offsets.tolist() == [1]
    del append, late
    assert descriptors(path) == before
    with MessageStore.open(path) as store:
        assert store.put(Message("t", b"next")).queue_offset == 2


LEAVES_OPEN = """
import sys
from store import Message, MessageStore, StoreConfig
store = MessageStore.open(sys.argv[1], config=StoreConfig(flushIntervalCommitLog=3_600_000))
store.put(Message("t", b"at the end"))
"""


def test_the_end_of_a_process_closes_its_stores(path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", LEAVES_OPEN, str(path)], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert f"ResourceWarning: {path}: this store was dropped" in ended.stderr
    assert not (path / "abort").exists()
    published = PublishedEnd(path, writable=False)
    assert published.flushed_offset == published.confirm_offset
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.max_offset("t", 0) == 2


HOLDER = """
import os, signal, sys
from store import MessageStore
store = MessageStore.open(sys.argv[1])
store._writing().exclusively(lambda: os.kill(os.getpid(), signal.SIGSTOP))
store.close()
"""


def test_closing_while_a_stopped_process_holds_the_lock(path: Path) -> None:
    """It leaves after `lockTimeoutMillis`, says so, and `abort` stays for the other one."""
    before = descriptors(path)
    store = MessageStore.open(path, config=NEVER_FLUSHED)
    store.put(Message("t", b"x"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], cwd=ROOT)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(StoreBusy, match=rf"held by process {holder.pid} .*which is stopped: 'kill -CONT {holder.pid}'"):
        store.close()
    store.close()
    assert (path / "abort").exists()
    assert descriptors(path) == before
    published = PublishedEnd(path, writable=False)
    assert published.flushed_offset == published.confirm_offset
    holder.send_signal(signal.SIGCONT)
    assert holder.wait(60) == 0
    assert not (path / "abort").exists()
