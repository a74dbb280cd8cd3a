"""A device, a small file system in memory, runs out of space during an append."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import mktime

import pyarrow as pa
import pytest

from store import FlushFailed, Message, MessageStore, StoreConfig, StoreFull
from store.upkeep.retention import CleanReason, refuse_when_full, used_percent
from tests.end_to_end.test_kill import ROOT, bodies, check_log

PAGE = 4096
SIZES = StoreConfig(
    mappedFileSizeCommitLog=8 * PAGE,
    mappedFileSizeConsumeQueue=400,
    maxHashSlotNum=1000,
    maxIndexNum=1000,
    flushIntervalCommitLog=60_000,
    diskSpaceWarningLevelRatio=100,  # otherwise the store would refuse to append
)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small tmpfs needs root on Linux")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={200 * PAGE}", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(device: Path, free_pages: int) -> Path:
    """Leave `free_pages` pages of the device free."""
    ballast = device / "ballast"
    space = os.statvfs(device)
    ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - free_pages * PAGE))
    return ballast


READER = """
import sys
from store import MessageStore
with MessageStore.open(sys.argv[1], read_only=True) as store:
    for queue in range(2):
        minimum, maximum = store.offsets("t", queue)
        rows = sum(batch.num_rows for batch in store.scan("t", queue, minimum, maximum))
        got = store.get_message("g", "t", queue, maximum)
        assert got.status.name == "OFFSET_OVERFLOW_ONE", got
        print(rows, end=" ")
"""


@pytest.mark.parametrize("free_pages", range(16))
def test_append_without_space_fails_and_leaves_nothing(device: Path, free_pages: int) -> None:
    """It needs 16 pages, of the log, then of queues, then of the index, in files that do not exist yet."""
    path = device / "mq"
    with MessageStore.open(path, config=SIZES) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", f"old {n}".encode(), queue_id=n % 2) for n in range(30)])
        old, confirm = bodies(store, "t"), store.confirm_offset
        ballast = fill(device, free_pages)
        big = [Message("t", b"x" * 1000, queue_id=n % 2, keys=(f"k{n}",)) for n in range(44)]
        with pytest.raises(StoreFull, match=r"no space left .*; nothing of the failed call is visible\. Free some"):
            store.put_many(big)
        assert store.confirm_offset == confirm
        assert bodies(store, "t") == old
        reader = subprocess.run([sys.executable, "-c", READER, str(path)], cwd=ROOT, capture_output=True, text=True)
        assert (reader.returncode, reader.stdout) == (0, "15 15 "), reader.stderr
        with pytest.raises(StoreFull):
            store.put_many(big)

    with MessageStore.open(path) as again:
        assert bodies(again, "t") == old
        ballast.unlink()
        offsets = [result.queue_offset for result in again.put_many(big)]
        assert offsets == [15 + n // 2 for n in range(44)]
        assert bodies(again, "t") == {**old, **{(n % 2, offsets[n]): b"x" * 1000 for n in range(44)}}
        for n in range(44):
            assert [message.queue_offset for message in again.query("t", f"k{n}")] == [offsets[n]]
    check_log(path, 74)


def test_store_opens_after_a_failed_flush_once_there_is_space(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sync = device / "mq", os.fdatasync

    def refuse(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = MessageStore.open(path, config=SIZES)
    store.create_topic("t", 2)
    store.put_many([Message("t", b"x" * 1000, queue_id=n % 2) for n in range(20)])
    expected = bodies(store, "t")
    monkeypatch.setattr(os, "fdatasync", refuse)
    for verb in (store.flush, store.close):
        with pytest.raises(FlushFailed):
            verb()
    monkeypatch.setattr(os, "fdatasync", sync)
    ballast = fill(device, 4)
    for _ in range(2):
        with pytest.raises(StoreFull):
            MessageStore.open(path)
        assert os.statvfs(device).f_bavail * os.statvfs(device).f_frsize >= 3 * PAGE
    ballast.unlink()
    with MessageStore.open(path) as again:
        assert bodies(again, "t") == expected
    check_log(path, 20)


def test_creating_a_topic_on_a_full_device_fails(device: Path) -> None:
    with MessageStore.open(device / "mq", config=SIZES) as store:
        store.create_topic("t", 1)
        ballast = fill(device, 0)
        with pytest.raises(StoreFull, match=r"topics.json.*: no space left"):
            store.create_topic("other" * 20, 1000)
        assert store.topics() == {"t": 1}
        with pytest.raises(StoreFull, match="no space left"):
            MessageStore.open(device / "another", config=SIZES)
        ballast.unlink()
        store.create_topic("other" * 20, 1000)
    MessageStore.open(device / "another", config=SIZES).close()


def test_messages_are_refused_above_the_warning_level(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.api.writer._SPACE_SECONDS", 0.0)
    with MessageStore.open(device / "mq", config=replace(SIZES, diskSpaceWarningLevelRatio=90)) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"old"))
        confirm = store.confirm_offset
        ballast = fill(device, 18)
        for put in (
            lambda: store.put(Message("t", b"x")),
            lambda: store.append_table("t", pa.table({"body": [b"x"]})),
        ):
            with pytest.raises(StoreFull, match=r"the disk is 9\d% full, more than diskSpaceWarningLevelRatio=90\."):
                put()
        assert used_percent(device) == 91, "182 of 200 pages are used"
        refuse_when_full(device, replace(SIZES, diskSpaceWarningLevelRatio=91))
        assert store.confirm_offset == confirm
        assert bodies(store, "t") == {(0, 0): b"old"}
        ballast.unlink()
        assert store.put(Message("t", b"x")).queue_offset == 1


def test_full_disk_is_cleaned_at_any_hour_and_age(device: Path) -> None:
    config = replace(SIZES, deleteFileBatchMax=2)
    with MessageStore.open(device / "mq", config=config) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(3000)) for _ in range(40)])
        ballast = fill(device, 20)
        done = store.clean()
        assert (done.reason, len(done.log), done.taken) == (CleanReason.DISK_FULL, 2, (2 * 8 + 1) * PAGE)
        ballast.unlink()
        assert store.clean(now=mktime((2030, 1, 1, 12, 0, 0, 0, 0, -1))).reason is CleanReason.NOT_NOW
