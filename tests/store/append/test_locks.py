from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from store import Message, MessageStore, StoreBusy, StoreClosed, StoreConfig, StoreLocked, StoreUnavailable
from store.append import locks
from store.append.locks import ByteLock, StoreLock, among_groups, holders

# A RocketMQ broker's lock: FileChannel.tryLock(0, 1, false) is a record lock on byte 0.
BROKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Path]:
    """Yield a store's directory whose lock another process owns, as a broker does."""
    MessageStore.open(tmp_path).close()
    process = subprocess.Popen(
        [sys.executable, "-c", BROKER, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    yield tmp_path
    process.communicate(b"")


def broker_starts(path: Path) -> bool:
    command = [sys.executable, "-c", BROKER, str(path / "lock")]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def test_directory_locked_by_a_broker_is_refused(broker: Path) -> None:
    before = sorted(broker.iterdir())
    message = rf"{broker}: locked by a running RocketMQ broker .* Stop the broker, or open the .* read_only=True"
    with pytest.raises(StoreLocked, match=message):
        MessageStore.open(broker)
    assert sorted(broker.iterdir()) == before
    MessageStore.open(broker, read_only=True).close()


def test_offsets_cannot_be_committed_beside_a_broker(broker: Path) -> None:
    (broker / "consumequeue/t/0").mkdir(parents=True)
    with (
        MessageStore.open(broker, read_only=True) as reader,
        pytest.raises(StoreLocked, match=rf"{broker}: a RocketMQ broker runs here, and keeps the members and offsets"),
    ):
        reader.commit_offsets("g", "t", {0: 1})
    assert not (broker / "config/consumerOffset.json").exists()


def test_change_is_refused_if_a_broker_starts_meanwhile(tmp_path: Path) -> None:
    MessageStore.open(tmp_path).close()
    turn, command = among_groups(tmp_path, 5.0), [sys.executable, "-c", BROKER, str(tmp_path / "lock")]
    turn.__enter__()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starting:
        assert starting.stdout is not None
        assert starting.stdout.readline() == b"locked\n"
        with pytest.raises(StoreLocked, match="a RocketMQ broker runs here"):
            turn.__exit__(None, None, None)
        starting.communicate(b"")


def test_broker_cannot_lock_an_open_store(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path), MessageStore.open(tmp_path):
        assert not broker_starts(tmp_path)
    assert broker_starts(tmp_path)


def test_lock_survives_another_descriptor_of_the_file(tmp_path: Path) -> None:
    """Classic record locks vanish when any descriptor of the file is closed in the process."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        pytest.skip("no open-file-description locks here")
    lock, other = StoreLock(tmp_path), StoreLock(tmp_path)
    with lock.held():
        assert lock.join()
        os.close(os.open(tmp_path / "lock", os.O_RDWR))
        assert not other.is_last()
    other.close()
    lock.close()


def test_classic_locks_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_HAS_OFD", False)
    lock = StoreLock(tmp_path)
    with lock.held():
        assert lock.join()
        assert holders(tmp_path / "lock", 1) != []
    assert not broker_starts(tmp_path)
    assert holders(tmp_path / "lock", 1) == []
    lock.close()
    assert broker_starts(tmp_path)


def test_broker_is_detected_with_classic_locks(broker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_HAS_OFD", False)
    lock = StoreLock(broker)
    with pytest.raises(StoreLocked, match="locked by a running RocketMQ broker"), lock.held():
        lock.join()
    lock.close()


def test_other_systems_never_report_a_free_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of struct flock differs there, so the reply would be misread."""
    lock = StoreLock(tmp_path)
    monkeypatch.setattr(locks, "_IS_LINUX", False)
    monkeypatch.setattr(locks, "_HAS_OFD", False)
    with pytest.raises(StoreUnavailable, match="linux cannot tell"):
        lock.refuse_broker()
    with lock.held():
        assert lock.join()
    lock.close()


def test_lock_file_has_a_brokers_content(tmp_path: Path) -> None:
    StoreLock(tmp_path).close()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    (tmp_path / "lock").write_bytes(b"anything else")
    StoreLock(tmp_path).close()
    assert (tmp_path / "lock").read_bytes() == b"anything else"


def test_held_times_out(tmp_path: Path) -> None:
    lock, other = StoreLock(tmp_path), StoreLock(tmp_path)
    busy = pytest.raises(StoreBusy, match=r"the store's lock was not free within 0 s .* held by this process")
    with lock.held(), busy, other.held(timeout=0):
        pass
    lock.close()
    other.close()


def test_close_wakes_a_waiting_thread(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    told: list[str] = []

    def late() -> None:
        with pytest.raises(StoreClosed) as raised, lock.held():
            pass
        told.append(str(raised.value))

    thread = threading.Thread(target=late)
    with lock.held():
        thread.start()
        lock.leave()
    thread.join()
    late()
    assert told == [f"{tmp_path}: was closed. Open a new one with MessageStore.open('{tmp_path}')"] * 2
    lock.close()


def test_close_waits_for_the_thread_that_holds_the_lock(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    closing = threading.Thread(target=lock.close)
    with lock.held():
        closing.start()
        closing.join(0.05)
        assert len(holders(tmp_path / "lock", 1)) == 1
    closing.join()
    assert holders(tmp_path / "lock", 1) == []
    with pytest.raises(StoreClosed), lock.held():
        pass


def test_interrupt_releases_the_lock(tmp_path: Path) -> None:
    lock, other = StoreLock(tmp_path), StoreLock(tmp_path)
    with pytest.raises(KeyboardInterrupt), lock.held():
        raise KeyboardInterrupt
    for each in (other, lock):
        with each.held(timeout=0):
            pass
        each.close()


WITHOUT_INPUT = """
import os, sys
from pathlib import Path
from store.append.locks import StoreLock
os.close(0)
one, other = StoreLock(Path(sys.argv[1])), StoreLock(Path(sys.argv[1]))
for lock in (one, other, one):
    with lock.held(timeout=0):
        pass
"""


def test_process_without_standard_input(tmp_path: Path) -> None:
    """The first opened file has descriptor 0, which must not count as none."""
    subprocess.run([sys.executable, "-c", WITHOUT_INPUT, str(tmp_path)], check=True)


def at_each_instruction(look: Callable[[], object], work: Callable[[], object]) -> None:
    """Call `look` before each bytecode instruction of the locks module that `work` executes."""

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename != locks.__file__:
            return None
        frame.f_trace_opcodes = True
        look()
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)


def test_owner_of_the_lock_after_a_leaver_is_last(tmp_path: Path) -> None:
    leaving, other = StoreLock(tmp_path), StoreLock(tmp_path)
    for lock in (leaving, other):
        with lock.held():
            lock.join()
    closed, seen = threading.Event(), list[bool]()

    def leave() -> None:
        with leaving.held():
            leaving.leave()
            closed.set()

    def look() -> None:
        if closed.is_set() and locks.set_lock(other._file.fd, fcntl.F_WRLCK, 1):
            seen.append(other.is_last())
            locks.set_lock(other._file.fd, fcntl.F_UNLCK, 1)

    at_each_instruction(look, leave)
    assert set(seen) == {True}
    leaving.close()
    other.close()


def test_joining_or_leaving_writer_is_not_mistaken_for_a_broker(tmp_path: Path) -> None:
    lock, group = StoreLock(tmp_path), StoreLock(tmp_path, byte=2)
    at_each_instruction(group.refuse_broker, lambda: (lock.join(), lock.is_last()))
    lock.close()
    group.close()


def test_first_and_last_writer_are_detected(tmp_path: Path) -> None:
    first, second = StoreLock(tmp_path), StoreLock(tmp_path)
    assert first.join()
    assert not second.join()
    assert not first.is_last()
    second.close()
    assert first.is_last()
    third = StoreLock(tmp_path)
    assert not third.join()
    first.close()
    third.close()


def test_lock_excludes_descriptors_and_threads(tmp_path: Path) -> None:
    locks = [StoreLock(tmp_path), StoreLock(tmp_path)]
    inside: list[int] = []
    overlaps: list[int] = []

    def overlap() -> None:
        inside.append(1)
        overlaps.append(len(inside))
        time.sleep(0)
        inside.pop()

    def work(lock: StoreLock) -> None:
        for _ in range(100):
            with lock.held():
                overlap()

    threads = [threading.Thread(target=work, args=(locks[number % 2],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(overlaps) == {1}
    assert len(overlaps) == 400
    for lock in locks:
        lock.close()


OPENER = """
import sys
from store import MessageStore
for _ in range(150):
    MessageStore.open(sys.argv[1]).close()
"""


def test_concurrent_opens_and_closes(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", OPENER, str(tmp_path)], stderr=subprocess.PIPE) for _ in range(3)
    ]
    errors = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert not (tmp_path / "abort").exists()


def test_reentrant_call_is_refused(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    with pytest.raises(StoreLocked, match="MessageStore is not re-entrant"), lock.held(), lock.held():
        pass
    with lock.held():
        pass
    lock.close()


def test_close_of_a_turn_waits_for_take(tmp_path: Path) -> None:
    """Otherwise `take` could lock a reused descriptor of another file."""
    turn = ByteLock(tmp_path / "lock")
    closing, tracing = threading.Thread(target=turn.close), sys.gettrace()

    def close(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is locks.set_lock.__code__:
            closing.start()
            closing.join(0.1)

    sys.settrace(close)
    try:
        assert turn.take()
    finally:
        sys.settrace(tracing)
    closing.join()
    with pytest.raises(StoreClosed):
        turn.take()


HURRIED = StoreConfig(lockTimeoutMillis=200)
# Any user with read permission can take a shared lock on the file.
STRANGER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
kind = {"classic": fcntl.F_SETLK, "open file": fcntl.F_OFD_SETLK}[sys.argv[2]]
fcntl.fcntl(fd, kind, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["classic", "open file"])
def stranger(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[MessageStore, subprocess.Popen[bytes]]]:
    with MessageStore.open(tmp_path, config=HURRIED) as store:
        store.create_topic("t", 1)
        command = [sys.executable, "-c", STRANGER, str(tmp_path / "lock"), request.param]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield store, process
        process.send_signal(signal.SIGCONT)
        process.communicate(b"")


@pytest.mark.parametrize("stopped", [False, True])
def test_error_names_the_owner_of_the_lock(
    stranger: tuple[MessageStore, subprocess.Popen[bytes]], stopped: bool
) -> None:
    store, process = stranger
    if stopped:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    state = f", which is stopped (continue it: kill -CONT {process.pid})" if stopped else ""
    with pytest.raises(StoreBusy) as raised:
        store.put(Message("t", b"x"))
    text = str(raised.value)
    assert f"{store.path}: the store's lock was not free within 0.2 s (lockTimeoutMillis)" in text
    assert f"held by process {process.pid} ({sys.executable} -c" in text
    assert f"){state}. This call changed nothing. Wait until that process is done, or stop it, then repeat" in text
    assert not [holder for holder in holders(store.path / "lock", 7) if holder.pid != process.pid]
    process.send_signal(signal.SIGCONT)
    process.communicate(b"")
    assert store.put(Message("t", b"x")).queue_offset == 0


def test_opening_times_out(stranger: tuple[MessageStore, subprocess.Popen[bytes]]) -> None:
    store, process = stranger
    with pytest.raises(StoreBusy, match=rf"held by process {process.pid} "):
        MessageStore.open(store.path, config=HURRIED)


def test_error_names_a_thread_that_owns_the_lock(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=HURRIED) as store, MessageStore.open(tmp_path, config=HURRIED) as other:
        store.create_topic("t", 1)
        inside, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with store._writing().held():
                inside.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        try:
            with pytest.raises(
                StoreBusy, match=r"held by this process, in another thread or another MessageStore\. This"
            ):
                other.put(Message("t", b"x"))
        finally:
            leave.set()
            thread.join()
        assert [it.put(Message("t", b"x")).queue_offset for it in (store, other)] == [0, 1]


def test_locks_of_other_bytes_and_files_do_not_count(tmp_path: Path) -> None:
    for name in ("lock", "other"):
        (tmp_path / name).write_bytes(b"lock")
    with (tmp_path / "lock").open("r+b") as lock, (tmp_path / "other").open("r+b") as other:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
        fcntl.lockf(other, fcntl.LOCK_EX, 1, 1)
        assert holders(tmp_path / "lock", 1) == []
        assert [holder.pid for holder in holders(tmp_path / "lock", 0)] == [os.getpid()]
    assert holders(tmp_path / "none", 0) == []
