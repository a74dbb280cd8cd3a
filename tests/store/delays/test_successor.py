"""Who has the turn to deliver, and is stopped, is named by those who wait."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore
from store.delays import successor
from store.delays.successor import deliverer_of
from store.publish import lock_holders
from tests.end_to_end.test_kill import ROOT
from tests.waiting import until

HOLDER = """
import sys
from store import Message, MessageStore
store = MessageStore.open(sys.argv[1])
store.create_topic("orders", 1)
store.put(Message("orders", b"first", delay_level=1))
while store.max_offset("orders", 0) == 0:
    pass
print("delivered", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It has the turn, and is stopped."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"delivered\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield process
        process.send_signal(signal.SIGCONT)
        process.communicate(b"")


def test_the_turn_is_taken_at_once_also_while_it_looks_who_has_it(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with very many descriptors: here their end is never reached."""
    looks = []

    def without_end() -> Iterator[int]:
        while True:
            looks.append(1)
            yield os.getpid()

    monkeypatch.setattr(successor, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(lock_holders, "_processes", without_end)
    closed = MessageStore.open(tmp_path)
    until(lambda: len(looks) > 1)
    closing = threading.Thread(target=closed.close, daemon=True)
    closing.start()
    until(lambda: not closing.is_alive())
    with MessageStore.open(tmp_path) as store:
        looks.clear()
        until(lambda: len(looks) > 1)
        store.put(Message("orders", b"second", delay_level=1))
        holder.kill()
        until(lambda: store.max_offset("orders", 0) == 2)


def test_it_is_named_once_something_is_late(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(successor, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(successor, "LATE_MS", 1000)
    warned = f"{tmp_path}: delayed messages are due, but it is the turn of process {holder.pid} ({sys.executable} -c"
    with caplog.at_level(logging.WARNING, "store"), MessageStore.open(tmp_path) as store:
        looks = []
        look = successor.Successor.look
        monkeypatch.setattr(successor.Successor, "look", lambda self: (look(self), looks.append(1)))
        until(lambda: len(looks) > 2)
        assert caplog.records == []  # all that was due is delivered
        store.put(Message("orders", b"second", delay_level=1))
        until(lambda: caplog.records != [])
        assert store.max_offset("orders", 0) == 1
        del looks[:]
        until(lambda: len(looks) > 2)
        (record,) = caplog.records
        assert record.message.startswith(warned)
        assert record.message.endswith(f"), which is stopped: 'kill -CONT {holder.pid}' lets it go on")
        holder.send_signal(signal.SIGCONT)
        until(lambda: store.max_offset("orders", 0) == 2)

        until(lambda: not deliverer_of(tmp_path).is_stopped)
        del looks[:]
        until(lambda: len(looks) > 2)
        holder.send_signal(signal.SIGSTOP)
        store.put(Message("orders", b"third", delay_level=1))
        until(lambda: len(caplog.records) == 2)
        holder.kill()
        until(lambda: store.max_offset("orders", 0) == 3)
        assert deliverer_of(tmp_path).pid == os.getpid()
