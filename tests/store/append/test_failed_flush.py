"""After one failed flush the store refuses appends. Which stores see the failure: `test_failed_flush_told`."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store import FlushFailed, Message, MessageStore, StoreConfig, StoreUnavailable
from store.append.published_end import PublishedEnd
from store.disk.checkpoint import read_checkpoint
from tests.end_to_end.test_kill import bodies, check_log
from tests.failing import CONFIG, SYNC, Device, put
from tests.store.upkeep.crashed import another_boot
from tests.takeover import broker


@pytest.mark.parametrize("number", range(1, 9))
def test_any_failed_flush_stops_appends(path: Path, device: Device, number: int) -> None:
    device.code = (errno.EIO, errno.ENOSPC, errno.EDQUOT)[number % 3]
    store = MessageStore.open(path)
    put(store, 10, 50)
    offset, checkpoint = PublishedEnd(path, writable=False).flushed_offset, read_checkpoint(path)
    device.fail(number)
    with pytest.raises(FlushFailed, match=os.strerror(device.code)) as failure:
        store.flush()
    assert device.failed in str(failure.value)
    if not device.failed.endswith("watermark"):
        assert PublishedEnd(path, writable=False).flushed_offset == offset
    assert read_checkpoint(path) == checkpoint
    for verb in (store.flush, store.clean, lambda: put(store, 0, 1), store.flush, store.close):
        with pytest.raises(FlushFailed, match=r"close the store in all processes and open it for writing"):
            verb()
    assert (path / "abort").exists()
    with MessageStore.open(path, read_only=True) as reader:
        assert len(bodies(reader)) == 50, "readers continue"
        with MessageStore.open(path) as again:
            put(again, 50, 51)
            found = bodies(again)
            assert bodies(reader) == found, "also in the files that a recovery replaces"
    assert not (path / "abort").exists()
    assert found == {(n % 2, n // 2): f"{n}".encode() for n in range(51)}
    check_log(path, 51)


def test_unflushed_put_is_not_acknowledged(path: Path, device: Device) -> None:
    store = MessageStore.open(path, config=SYNC)
    confirm = store.confirm_offset
    device.fail(1)
    for reason in ("Input/output error", "open it for writing"):
        with pytest.raises(FlushFailed, match=reason):
            store.put(Message("t", b"x"))
        assert store.confirm_offset == confirm
    with pytest.raises(FlushFailed):
        store.close()


def refused(path: Path, device: Device, config: StoreConfig, count: int, number: int) -> dict[tuple[int, int], bytes]:
    """Let flush `number` of a put of `count` messages fail, close the store, and return the bodies that readers see."""
    store = MessageStore.open(path, config=config)
    device.fail(number)
    with pytest.raises(FlushFailed):
        store.put_many([Message("t", bytes(500), queue_id=0, keys="refused")] * count)
    device.fail(-1)
    expected = bodies(store)
    with pytest.raises(FlushFailed):
        store.close()
    return expected


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("config", "count", "number"),
    [(SYNC, 1, 1), (SYNC, 2, 1), (SYNC, 2, 2), *((CONFIG, 20, number) for number in range(1, 13))],
)
def test_refused_messages_do_not_come_back(
    path: Path, device: Device, config: StoreConfig, count: int, number: int, restarted: bool
) -> None:
    """The producer may have retried them. restarted: whether the machine restarted cleanly in between."""
    expected = refused(path, device, config, count, number)
    if restarted:
        another_boot(path)
    with MessageStore.open(path, read_only=True) as reader:
        assert bodies(reader) == expected
        with MessageStore.open(path) as again:
            assert bodies(again) == expected
            assert again.query("t", "refused") == []
            put(again, 10, 11)
            again.put_many([Message("t", bytes(600), queue_id=1)] * 20)
            assert bodies(reader) == bodies(again), "nor to a reader that had the replaced files open"
    check_log(path, 31)


@pytest.mark.parametrize("killed", [False, True])
def test_messages_accepted_by_a_broker_stay(path: Path, device: Device, killed: bool) -> None:
    """A broker does not read our published end, so it may keep the refused records."""
    refused(path, device, SYNC, 1, 1)
    with broker(path, killed=killed) as theirs:
        put(theirs, 10, 11)
        expected = bodies(theirs)
    with MessageStore.open(path) as again:
        assert bodies(again) == expected


def test_unflushed_name_of_a_segment_is_a_failed_flush(path: Path, device: Device) -> None:
    for number in (1, 2, 3):
        store = MessageStore.open(path)
        confirm = store.confirm_offset
        device.fail(number)
        with pytest.raises(FlushFailed):
            store.put(Message("t", bytes(3900)))
        assert store.confirm_offset == confirm
        with pytest.raises(FlushFailed):
            store.close()
        with MessageStore.open(path) as again:
            again.put(Message("t", b"again"))


def test_failure_to_open_a_directory_is_no_failed_flush(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may be out of descriptors for a moment. A later put may succeed."""
    real, number, refusing = os.open, 0, -1

    def refuse_one(name: Path, *arguments: int) -> int:
        nonlocal number, refusing
        if os.path.isdir(name):
            number += 1
            if number == refusing:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(name))
        return real(name, *arguments)

    monkeypatch.setattr(os, "open", refuse_one)
    messages = [Message("t", bytes(500), queue_id=0)] * 10
    with MessageStore.open(path) as store:
        for put_before in range(20):
            number, refusing = 0, put_before + 1
            try:
                store.put_many(messages)
                break
            except StoreUnavailable:
                assert store.max_offset("t", 0) == 5 + 10 * put_before
            refusing = -1
            store.put_many(messages)
        store.flush()
        assert put_before >= 4, "folders of the log, of the queue, and those above"
        expected = bodies(store)
    with MessageStore.open(path) as again:
        assert bodies(again) == expected
    assert len(expected) == 20 + 10 * put_before


def test_unflushed_bytes_are_written_again_after_a_failure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed write-back the kernel marks the pages clean, so a second fsync writes nothing. The test's device
    holds the bytes written since the last flush of each file, and drops them if a flush fails."""
    real_write, real_flush, broken = os.pwrite, os.fdatasync, [True]
    written: dict[int, set[int]] = {}
    on_device: dict[int, set[int]] = {}

    def pwrite(fd: int, data: bytes, position: int) -> int:
        written.setdefault(os.fstat(fd).st_ino, set()).update(range(position, position + len(data)))
        return real_write(fd, data, position)

    def flush(fd: int) -> None:
        dirty = written.pop(os.fstat(fd).st_ino, set())
        if broken[0]:
            raise OSError(errno.EIO, "Input/output error")
        on_device.setdefault(os.fstat(fd).st_ino, set()).update(dirty)
        real_flush(fd)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", flush)
    store = MessageStore.open(path)
    begin = store.confirm_offset
    put(store, 10, 20)
    end = store.confirm_offset
    with pytest.raises(FlushFailed):
        store.close()
    assert not on_device
    broken[0] = False
    MessageStore.open(path).close()
    assert end < 4096, "the log has one segment"
    (log,) = (path / "commitlog").iterdir()
    assert on_device[log.stat().st_ino] >= set(range(begin, end))
    for queue in range(2):
        (entries,) = (path / "consumequeue" / "t" / str(queue)).iterdir()
        assert on_device[entries.stat().st_ino] >= set(range(5 * 20, 10 * 20))


def test_flusher_continues_after_a_lack_of_descriptors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, flushIntervalCommitLog=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"first"))
        store.put(Message("t", b"by an open descriptor"))
        wait(lambda: PublishedEnd(tmp_path, writable=False).flushed_offset == store.confirm_offset)
        published = PublishedEnd(tmp_path, writable=False)
        open_files = [int(fd) for fd in os.listdir("/proc/self/fd")]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files) + 1, hard))
        fill = []
        try:
            with suppress(OSError):
                while True:
                    fill.append(os.open(os.devnull, os.O_RDONLY))
            store.put(Message("t", b"put while there is no descriptor left"))
            wait(lambda: published.flushed_offset == store.confirm_offset)  # closes files to free descriptors
        finally:
            for fd in fill:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "mq-flush" in [thread.name for thread in threading.enumerate()]
        store.put(Message("t", b"put afterwards"))
        wait(lambda: published.flushed_offset == store.confirm_offset)
        assert caplog.text.count("nothing is flushed") < 10


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
