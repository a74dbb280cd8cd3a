from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from store import FlushFailed, Message, MessageRefused, MessageStore
from tests.end_to_end.test_kill import ROOT, bodies
from tests.failing import CONFIG, SYNC, Device, put
from tests.waiting import PATIENCE

TESTS = str(ROOT / "tests")
PUT = """
import sys
from store import Message, MessageStore
with MessageStore.open(sys.argv[1]) as store:
    print("open", flush=True)
    sys.stdin.readline()
    store.put(Message("t", b"from another process"))
"""


def test_failure_of_another_store_in_the_context_does_not_count(
    path: Path, device: Device, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An error raised while handling another store's FlushFailed has it as its context."""
    store, other = MessageStore.open(path), MessageStore.open(tmp_path_factory.mktemp("other"), config=CONFIG)
    put(store, 10, 11)
    other.create_topic("t", 1)
    device.fail(1)
    try:
        store.flush()
    except FlushFailed:
        with pytest.raises(MessageRefused):
            other.put(Message("t", bytes(4096)))
    other.put(Message("t", b"x"))
    other.close()
    with pytest.raises(FlushFailed):
        store.close()


@pytest.mark.parametrize("amid", ["a stream", "a condition"])
def test_failure_of_another_store_during_an_append(
    path: Path, device: Device, tmp_path_factory: pytest.TempPathFactory, amid: str
) -> None:
    """The iterator that an append reads may flush another store, on another device."""
    store, other = MessageStore.open(path), MessageStore.open(tmp_path_factory.mktemp("other"), config=CONFIG)
    other.create_topic("t", 1)
    other.put(Message("t", b"x"))
    append, schema = store.begin(), pa.schema({"body": pa.binary()})

    def batches() -> Iterator[pa.RecordBatch]:
        other.flush()
        yield pa.record_batch([[b"not seen"]], schema=schema)

    for _ in range(2):  # pieces that are encoded before this append takes the lock
        append.add_messages([Message("t", b"not seen")])
    if amid == "a stream":
        append.add("t", pa.RecordBatchReader.from_batches(schema, batches()))
    device.fail_in(f"{other.path}/commitlog")
    with pytest.raises(FlushFailed, match="other"):
        append.publish(unless=None if amid == "a stream" else lambda: other.flush() is not None)
    put(store, 10, 11)
    store.close()
    with pytest.raises(FlushFailed):
        other.close()


def test_concurrent_flush_does_not_miss_a_failure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads flush one descriptor, and fsync reports a failure to only one of them. The other thread must not
    count its records as flushed before the first has recorded the failure."""
    if sys.platform != "linux":
        pytest.skip("names of open files are read from /proc")
    real_flush, told, has_heard, goes_on = os.fdatasync, set[int](), threading.Event(), threading.Event()

    def flush(fd: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}") and fd not in told:
            told.add(fd)
            if threading.current_thread() is other:
                has_heard.set()
                goes_on.wait(30)
            raise OSError(errno.EIO, "Input/output error")
        real_flush(fd)

    store, synced = MessageStore.open(path), MessageStore.open(path, config=SYNC)
    put(store, 10, 11)
    confirm = store.confirm_offset

    def flush_beside() -> None:
        with pytest.raises(FlushFailed):
            synced.flush()

    other = threading.Thread(target=flush_beside)
    monkeypatch.setattr(os, "fdatasync", flush)
    other.start()
    assert has_heard.wait(30)
    try:
        with pytest.raises(FlushFailed):
            synced.put(Message("t", b"x"))
    finally:
        goes_on.set()
        other.join()
    assert store.confirm_offset == confirm
    for each in (store, synced):
        with pytest.raises(FlushFailed):
            each.close()


@pytest.mark.parametrize(("stores", "archives"), [(1, False), (2, False), (1, True)])
def test_two_flushes_of_one_descriptor(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    stores: int,
    *,
    archives: bool,
) -> None:
    real_flush, has_heard, goes_on = os.fdatasync, threading.Event(), threading.Event()

    def flush(fd: int) -> None:
        if threading.current_thread() is first:
            has_heard.set()
            goes_on.wait(PATIENCE)
            raise OSError(errno.EIO, "Input/output error")
        real_flush(fd)

    opened, told = [MessageStore.open(path) for _ in range(stores)], []
    put(opened[0], 10, 11)
    verbs = [store.flush for store in opened]
    if archives:
        verbs.append(lambda: opened[0].archive(str(tmp_path_factory.mktemp("archive"))))

    def watch_path(verb: Callable[[], object]) -> None:
        try:
            verb()
            told.append("all is flushed")
        except FlushFailed:
            told.append("failed")

    first, second = (threading.Thread(target=watch_path, args=(verbs[number],)) for number in (0, -1))
    monkeypatch.setattr(os, "fdatasync", flush)
    first.start()
    assert has_heard.wait(PATIENCE)
    second.start()
    second.join(0.1)  # without the check the second flush returns here
    goes_on.set()
    first.join()
    second.join()
    assert told == ["failed", "failed"]
    for store in opened:
        with pytest.raises(FlushFailed):
            store.close()


def test_failed_flush_of_archiving_counts(path: Path, device: Device, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Archiving flushes through a shared descriptor, on which fsync reports a failure only once. A store's appends and
    the flusher of a store behind a reader that archives must see that failure."""
    for config, read_only in ((SYNC, False), (CONFIG, True)):
        store = MessageStore.open(path, config=config)
        put(store, 10, 11)
        archives = MessageStore.open(path, read_only=True) if read_only else store
        device.fail_in("commitlog")
        with pytest.raises(FlushFailed):
            archives.archive(str(tmp_path_factory.mktemp("archive")))
        with pytest.raises(FlushFailed):
            store.flush() if read_only else put(store, 11, 12)
        with pytest.raises(FlushFailed):
            store.close()


def test_other_processes_see_a_failed_flush(path: Path, device: Device) -> None:
    arguments = [sys.executable, "-c", PUT, str(path)]
    other = subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    store = MessageStore.open(path)
    put(store, 10, 11)
    device.fail(1)
    with pytest.raises(FlushFailed):
        store.close()
    with pytest.raises(FlushFailed, match="close the store in all processes"):
        MessageStore.open(path)
    _, errors = other.communicate("\n")
    assert "FlushFailed" in errors
    assert "commitlog" in errors
    assert (path / "abort").exists()
    with MessageStore.open(path) as again:
        assert len(bodies(again)) == 11
