"""A device that does not take what is flushed: once is enough."""

from __future__ import annotations

import _thread
import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from store import FlushFailed, Message, MessageRefused, MessageStore, StoreConfig
from store.files.checkpoint import read_checkpoint
from store.publish.published_end import PublishedEnd
from tests.end_to_end.test_kill import ROOT, bodies, check_log
from tests.store.upkeep.crashed import another_boot
from tests.takeover import broker
from tests.waiting import PATIENCE

NEVER = 3_600_000
CONFIG = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    maxHashSlotNum=100,
    maxIndexNum=40,
    flushIntervalCommitLog=NEVER,
)
SYNC = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    flushIntervalCommitLog=NEVER,
    flushDiskType="SYNC_FLUSH",
)
PUT = """
import sys
from store import Message, MessageStore
with MessageStore.open(sys.argv[1]) as store:
    print("open", flush=True)
    sys.stdin.readline()
    store.put(Message("t", b"from another process"))
"""


class Device:
    """The system's flushes. The one with number `fails` does not succeed; the pages count as clean all the same."""

    def __init__(self) -> None:
        self.flushes = 0
        self.fails = -1
        self.fails_in = ""
        self.code = errno.EIO
        self.failed = ""
        self.is_interrupted = False
        self._interrupt = defaultdict[int, None](_thread.interrupt_main)  # called by no instruction that calls
        self._flush = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def take(self, name: str, fd: int) -> None:
        self.flushes += 1
        if self.flushes == self.fails or (self.fails_in and self.fails_in in os.readlink(f"/proc/self/fd/{fd}")):
            self.fails_in = ""
            self.failed = os.readlink(f"/proc/self/fd/{fd}")
            error = OSError(self.code, os.strerror(self.code))
            if self.is_interrupted:
                self._interrupt[0]  # what the interpreter looks at next is in the caller
            raise error
        self._flush[name](fd)

    def fail(self, number: int) -> None:
        self.flushes, self.fails, self.failed = 0, number, ""

    def fail_in(self, folder: str) -> None:
        """The next flush of a file there."""
        self.fails_in = folder


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    if sys.platform != "linux":
        pytest.skip("names of open files are read from /proc")
    device = Device()
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd, name=name: device.take(name, fd))
    return device


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", f"{n}".encode(), queue_id=n % 2, keys=f"k{n}") for n in range(10)])
    return tmp_path


def put(store: MessageStore, first: int, last: int) -> None:
    store.put_many([Message("t", f"{n}".encode(), queue_id=n % 2, keys=f"k{n}") for n in range(first, last)])


@pytest.mark.parametrize("number", range(1, 9))
def test_each_flush_may_be_the_one_that_fails(path: Path, device: Device, number: int) -> None:
    """From the log to the watermark: appends are refused from then on, whatever the device does later."""
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
        with pytest.raises(FlushFailed, match=r"close the store in all processes, and open it anew for writing"):
            verb()
    assert (path / "abort").exists()
    with MessageStore.open(path, read_only=True) as reader:
        assert len(bodies(reader)) == 50, "readers go on"
    with MessageStore.open(path) as again:
        put(again, 50, 51)
        found = bodies(again)
    assert not (path / "abort").exists()
    assert found == {(n % 2, n // 2): f"{n}".encode() for n in range(51)}
    check_log(path, 51)


def test_a_put_that_is_not_flushed_is_not_acknowledged(path: Path, device: Device) -> None:
    store = MessageStore.open(path, config=SYNC)
    confirm = store.confirm_offset
    device.fail(1)
    for reason in ("Input/output error", "open it anew for writing"):
        with pytest.raises(FlushFailed, match=reason):
            store.put(Message("t", b"x"))
        assert store.confirm_offset == confirm
    with pytest.raises(FlushFailed):
        store.close()


def refused(path: Path, device: Device, config: StoreConfig, count: int, number: int) -> dict[tuple[int, int], bytes]:
    """What readers see where flush `number` of a put of `count` messages fails; the store is closed then."""
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
def test_what_was_refused_does_not_come_back(
    path: Path, device: Device, config: StoreConfig, count: int, number: int, restarted: bool
) -> None:
    """In whole or in part, where the directory is opened anew: it may have been put again. restarted: the machine was,
    in good order.
    """
    expected = refused(path, device, config, count, number)
    if restarted:
        another_boot(path)
    with MessageStore.open(path, read_only=True) as reader:
        assert bodies(reader) == expected
    with MessageStore.open(path) as again:
        assert bodies(again) == expected
        assert again.query("t", "refused") == []
        put(again, 10, 11)
    check_log(path, 11)


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_broker_took_for_messages_stays(path: Path, device: Device, killed: bool) -> None:
    """It knows nothing of our published end."""
    refused(path, device, SYNC, 1, 1)
    with broker(path, killed=killed) as theirs:
        put(theirs, 10, 11)
        expected = bodies(theirs)
    with MessageStore.open(path) as again:
        assert bodies(again) == expected


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("config", [CONFIG, SYNC])
def test_an_interrupt_on_the_way_from_the_device(tmp_path: Path, device: Device, config: StoreConfig) -> None:
    """Wherever it comes, in Python's own library too, all are told."""
    calls, place = 0, -1

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        is_place = event in ("call", "c_return")  # where the interpreter looks for signals
        calls += bool(device.failed) and is_place and frame.f_code.co_filename != __file__
        if calls == place:
            sys.setprofile(None)
            raise Interrupted

    def fail_one(interrupted_at: int) -> None:
        nonlocal calls, place
        place = interrupted_at
        path = tmp_path / str(place)
        store = MessageStore.open(path, config=config)
        store.create_topic("t", 1)
        verb = store.flush if config is CONFIG else lambda: store.put(Message("t", b"more"))
        store.put(Message("t", b"x"))
        device.fail(1)
        calls = 0
        sys.setprofile(interrupt)
        with suppress(FlushFailed, Interrupted):
            try:
                verb()
            finally:
                sys.setprofile(None)
        assert PublishedEnd(path, writable=False).has_failed, f"place {place}"
        with pytest.raises(FlushFailed):
            store.close()

    fail_one(-1)
    places = calls
    for number in range(1, places + 1):
        fail_one(number)
    assert places > 10


@pytest.mark.parametrize(("config", "number"), [(CONFIG, 1), (SYNC, 1), (SYNC, 2)])
def test_an_interrupt_waits_for_the_device(path: Path, device: Device, config: StoreConfig, number: int) -> None:
    """It comes before anybody is told what that said, in this process or another."""
    store, body = MessageStore.open(path, config=config), bytes(3900 if number > 1 else 10)  # in a new segment
    verb = store.flush if config is CONFIG else lambda: store.put(Message("t", body))
    put(store, 10, 11)
    device.fail(number)
    device.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        verb()
    assert device.failed
    with pytest.raises(FlushFailed, match=r"commitlog.*Input/output error"):
        put(store, 11, 12)
    with pytest.raises(FlushFailed):
        store.close()


def test_a_failure_elsewhere_that_is_being_handled(
    path: Path, device: Device, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is raised meanwhile has it as its context, and is no failure of this one's."""
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


def test_a_flush_beside_it_does_not_hear_of_it_instead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells each open descriptor of a failure once: of two threads with the same one, the other is told
    nothing, and what it put would count as flushed before the first one has said what it heard.
    """
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
def test_two_flushes_by_one_descriptor(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    stores: int,
    *,
    archives: bool,
) -> None:
    """One of them hears of the failure: the other is not over before that one has said so."""
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

    def hear(verb: Callable[[], object]) -> None:
        try:
            verb()
            told.append("all is flushed")
        except FlushFailed:
            told.append("failed")

    first, second = (threading.Thread(target=hear, args=(verbs[number],)) for number in (0, -1))
    monkeypatch.setattr(os, "fdatasync", flush)
    first.start()
    assert has_heard.wait(PATIENCE)
    second.start()
    second.join(0.1)  # it came back by then
    goes_on.set()
    first.join()
    second.join()
    assert told == ["failed", "failed"]
    for store in opened:
        with pytest.raises(FlushFailed):
            store.close()


def test_what_archiving_was_told(path: Path, device: Device, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It flushes by a descriptor that others use, too, and that hears of a failure once: a store's appends, and what
    flushes behind them where a reader of the same process archives."""
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


def test_the_name_of_a_new_segment_that_is_not_flushed(path: Path, device: Device) -> None:
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


def test_other_processes_learn_of_it(path: Path, device: Device) -> None:
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


def test_what_was_behind_the_flushed_offset_is_written_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes pages whose writing failed for clean, so that another flush alone brings nothing to the device.

    The device of this test has of each file what was written since it was flushed last, and a failed flush drops that.
    """
    if sys.platform != "linux":
        pytest.skip("names of open files are read from /proc")
    real_write, real_flush, broken = os.pwrite, os.fdatasync, [True]
    written: dict[str, set[int]] = {}
    on_device: dict[str, set[int]] = {}

    def name(fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    def pwrite(fd: int, data: bytes, position: int) -> int:
        written.setdefault(name(fd), set()).update(range(position, position + len(data)))
        return real_write(fd, data, position)

    def flush(fd: int) -> None:
        dirty = written.pop(name(fd), set())
        if broken[0]:
            raise OSError(errno.EIO, "Input/output error")
        on_device.setdefault(name(fd), set()).update(dirty)
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
    assert end < 4096, "one segment"
    (log,) = (path / "commitlog").iterdir()
    assert on_device[str(log)] >= set(range(begin, end))
    for queue in range(2):
        (entries,) = (path / "consumequeue" / "t" / str(queue)).iterdir()
        assert on_device[str(entries)] >= set(range(5 * 20, 10 * 20))


def test_the_background_goes_on_after_a_moment_without_descriptors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
            wait(lambda: "Too many open files" in caplog.text)
        finally:
            for fd in fill:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "mq-flush" in [thread.name for thread in threading.enumerate()]
        store.put(Message("t", b"put afterwards"))
        wait(lambda: published.flushed_offset == store.confirm_offset)
        assert caplog.text.count("nothing is flushed") == 1


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
