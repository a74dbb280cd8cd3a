from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreClosed, StoreConfig
from store.append.published_end import PublishedEnd
from store.disk.checkpoint import read_checkpoint
from store.disk.queue_ends import QueueEnds
from tests.waiting import PATIENCE

SMALL = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200}


def flushed(path: Path) -> int:
    return PublishedEnd(path, writable=False).flushed_offset


def test_nothing_is_flushed_before_its_time(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(**SMALL, flushIntervalCommitLog=3_600_000)) as store:
        store.create_topic("t", 2)
        store.put(Message("t", b"x"))
        assert flushed(tmp_path) == 0
        store.flush()
        assert flushed(tmp_path) == store.confirm_offset
        store.put(Message("t", b"x"))
        assert flushed(tmp_path) < store.confirm_offset
        confirm = store.confirm_offset
    assert flushed(tmp_path) == confirm, "closing flushes the log"


def test_concurrent_first_appends_share_one_flusher(tmp_path: Path) -> None:
    threads, interval = 8, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for n in range(10):
            with MessageStore.open(tmp_path / str(n)) as store, ThreadPoolExecutor(threads) as pool:
                store.create_topic("t", 1)
                together = threading.Barrier(threads)
                list(pool.map(lambda _, s=store, t=together: (t.wait(), s.put(Message("t", b"x"))), range(threads)))
                assert [thread.name for thread in threading.enumerate()].count("mq-flush") == 1
    finally:
        sys.setswitchinterval(interval)


def test_close_during_the_first_append_of_another_thread(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            for _ in range(100):
                store, together = MessageStore.open(tmp_path), threading.Barrier(2)
                put = pool.submit(lambda s=store, t=together: (t.wait(), s.put(Message("t", b"x"))))
                together.wait()
                store.close()
                assert put.exception() is None or isinstance(put.exception(), StoreClosed)
                assert not (tmp_path / "abort").exists()
    finally:
        sys.setswitchinterval(interval)


def test_flusher_catches_up(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(**SMALL, flushIntervalCommitLog=1)) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", bytes(500)) for _ in range(20)])
        deadline = time.monotonic() + 30
        while flushed(tmp_path) < store.confirm_offset and time.monotonic() < deadline:
            time.sleep(0.001)
        assert flushed(tmp_path) == store.confirm_offset


PUT_AND_DIE = """
import os, signal, sys
from store import Message, MessageStore, StoreConfig
store = MessageStore.open(sys.argv[1], config=StoreConfig(flushIntervalCommitLog=3_600_000))
store.put(Message("t", b"left in memory"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_idle_store_flushes_messages_of_a_killed_writer(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
    with MessageStore.open(tmp_path, config=StoreConfig(flushIntervalCommitLog=50)) as idle:
        subprocess.run([sys.executable, "-c", PUT_AND_DIE, str(tmp_path)], check=False)
        assert idle.max_offset("t", 0) == 1
        deadline = time.monotonic() + 30
        while flushed(tmp_path) < idle.confirm_offset and time.monotonic() < deadline:
            time.sleep(0.001)
        assert flushed(tmp_path) == idle.confirm_offset


def test_queue_folder_without_files_has_no_end(tmp_path: Path) -> None:
    """A failed append leaves such a folder. If its end were saved, the next opening would rebuild all queues."""
    config = StoreConfig(flushIntervalCommitLog=3_600_000)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("t", 2)
        with MessageStore.open(tmp_path, config=config) as other:
            for _ in range(3):
                other.put(Message("t", bytes(2 << 20), queue_id=0))
            (tmp_path / "consumequeue/t/1").mkdir()
            store.flush()
    ends = QueueEnds.read(tmp_path)
    assert ends is not None
    assert ends.of == {("t", 0): 3}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_messages_of_another_store_are_flushed(tmp_path: Path, flush: str) -> None:
    config = StoreConfig(**SMALL, flushIntervalCommitLog=3_600_000, flushDiskType=flush)
    with MessageStore.open(tmp_path, config=config) as one, MessageStore.open(tmp_path, config=config) as two:
        one.create_topic("t", 2)
        for n in range(30):
            (one, two)[n % 2].put(Message("t", bytes(200)))
        two.flush()
        assert flushed(tmp_path) == one.confirm_offset


def test_checkpoint_follows_the_flush(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(**SMALL, flushIntervalCommitLog=3_600_000)) as store:
        store.create_topic("t", 1)
        assert read_checkpoint(tmp_path) is None
        store.put(Message("t", b"x"))
        store.flush()
        assert read_checkpoint(tmp_path) == store.get_message("g", "t", 0, 0).messages[0].store_timestamp


def test_hanging_device_does_not_block_other_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_flush, hangs, goes_on = os.fdatasync, threading.Event(), threading.Event()

    def flush(fd: int) -> None:
        if threading.current_thread() is slow:
            hangs.set()
            goes_on.wait(PATIENCE)
        real_flush(fd)

    with MessageStore.open(tmp_path / "slow") as hanging, MessageStore.open(tmp_path / "other") as store:
        for each in (hanging, store):
            each.create_topic("t", 1)
            each.put(Message("t", b"x"))
        slow, other = threading.Thread(target=hanging.flush), threading.Thread(target=store.flush)
        monkeypatch.setattr(os, "fdatasync", flush)
        slow.start()
        assert hangs.wait(PATIENCE)
        other.start()
        other.join(PATIENCE / 2)
        is_over = not other.is_alive()
        goes_on.set()
        slow.join()
        other.join()
    assert is_over
