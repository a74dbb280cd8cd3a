"""Other processes, looked at while they come and go: one that ends meanwhile is no error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import PATIENCE


def tree(pid: int) -> list[int]:
    """The live processes of the session that `pid` leads, also those whose parents ended."""
    pids = []
    for each in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(each) == pid and psutil.Process(each).status() != psutil.STATUS_ZOMBIE:
                pids.append(each)
    return pids


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it came to its end
            os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    kill(tree(pid))


def java(pid: int) -> int:
    """The JVM of the session that `pid` leads: Spark's driver and, here, its executor. What it has just forked is
    "java", too, until it runs its own program: the JVM is the oldest."""
    found = []
    for each in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(each)
            if Path(process.exe()).name == "java":
                found.append((process.create_time(), each))
    return min(found)[1]


def open_files(pid: int) -> list[str]:
    """What the descriptors of `pid` stand for."""
    targets = []
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it ended
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # or closed just this one
                targets.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return targets


def seen(look: Callable[[], list[int]], patience: float = PATIENCE) -> list[int]:
    """Who is found as soon as somebody is: for some milliseconds, so this looks often, however long it takes."""
    begin = time.monotonic()
    while not (found := look()):
        assert (taken := time.monotonic() - begin) < patience, f"nobody came in {taken:.0f} s"
        time.sleep(0.005)
    return found
