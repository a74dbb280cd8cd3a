"""Look at other processes; one that ends during a look is no error."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import PATIENCE


def tree(pid: int) -> list[int]:
    """Return the live processes of the session that `pid` leads, including orphans."""
    pids = []
    for each in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(each) == pid and psutil.Process(each).status() != psutil.STATUS_ZOMBIE:
                pids.append(each)
    return pids


@contextmanager
def child_process(*command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with its output as a pipe, and kill it at the end, also of a test that fails."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    kill(tree(pid))


def java(pid: int) -> int:
    """Return the JVM of the session that `pid` leads: Spark's driver and, here, executor. It is the oldest "java": a
    process just forked by it has this name until it runs its own program."""
    found = []
    for each in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(each)
            if Path(process.exe()).name == "java":
                found.append((process.create_time(), each))
    return min(found)[1]


def open_files(pid: int) -> list[str]:
    targets = []
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                targets.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return targets


def seen(look: Callable[[], list[int]], patience: float = PATIENCE) -> list[int]:
    """Return the processes that `look` finds, once it finds any. They may exist for only milliseconds, so look
    often."""
    begin = time.monotonic()
    while not (found := look()):
        assert (taken := time.monotonic() - begin) < patience, f"no process was found within {taken:.0f} s"
        time.sleep(0.005)
    return found
