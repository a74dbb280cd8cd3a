"""Who is named as the holder of a lock that could not be had."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreBusy, StoreConfig
from store.publish.lock_holders import holders

HURRIED = StoreConfig(lockTimeoutMillis=200)
# Any user who may read the file may lock it, also for reading only.
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
def test_the_holder_is_named(stranger: tuple[MessageStore, subprocess.Popen[bytes]], stopped: bool) -> None:
    store, process = stranger
    if stopped:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    state = f", which is stopped: 'kill -CONT {process.pid}' lets it go on" if stopped else ""
    with pytest.raises(StoreBusy) as raised:
        store.put(Message("t", b"x"))
    text = str(raised.value)
    assert f"{store.path}: no turn to write within 0.2 s (lockTimeoutMillis)" in text
    assert f"held by process {process.pid} ({sys.executable} -c" in text
    assert f"){state}. Nothing of this call is visible: let that go on or end it, then repeat the call" in text
    assert not [holder for holder in holders(store.path / "lock", 7) if holder.pid != process.pid]
    process.send_signal(signal.SIGCONT)
    process.communicate(b"")
    assert store.put(Message("t", b"x")).queue_offset == 0


def test_opening_waits_no_longer(stranger: tuple[MessageStore, subprocess.Popen[bytes]]) -> None:
    store, process = stranger
    with pytest.raises(StoreBusy, match=rf"held by process {process.pid} "):
        MessageStore.open(store.path, config=HURRIED)


def test_a_thread_that_holds_it(tmp_path: Path) -> None:
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
        with pytest.raises(StoreBusy, match=r"held by this process, in another thread or by another store\. Noth"):
            other.put(Message("t", b"x"))
        leave.set()
        thread.join()
        assert [it.put(Message("t", b"x")).queue_offset for it in (store, other)] == [0, 1]


def test_a_lock_of_another_byte_or_file_is_none(tmp_path: Path) -> None:
    for name in ("lock", "other"):
        (tmp_path / name).write_bytes(b"lock")
    with (tmp_path / "lock").open("r+b") as lock, (tmp_path / "other").open("r+b") as other:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
        fcntl.lockf(other, fcntl.LOCK_EX, 1, 1)
        assert holders(tmp_path / "lock", 1) == []
        assert [holder.pid for holder in holders(tmp_path / "lock", 0)] == [os.getpid()]
    assert holders(tmp_path / "none", 0) == []
