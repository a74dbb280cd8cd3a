"""Who holds a lock: looked up when somebody waited for it in vain, so that taking one costs nothing.

The kernel does not tell the process of an open-file-description lock; but it lists the locks of each descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_STOPPED = "Tt"  # states of a process: by a signal, by a debugger
_MAX_COMMAND = 80  # characters


class Holder(NamedTuple):
    """A process that holds a lock."""

    pid: int
    command: str
    is_stopped: bool

    def __str__(self) -> str:
        if self.pid == os.getpid():
            return "this process, in another thread or by another store"
        stopped = f", which is stopped: 'kill -CONT {self.pid}' lets it go on" if self.is_stopped else ""
        return f"process {self.pid} ({self.command}){stopped}"


def holders(path: Path, byte: int) -> list[Holder]:
    """The processes that hold a lock on `byte` of the file `path`, as far as this user may look into them."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return []
    return [process(pid) for pid in _processes() if any(_has_lock(each, inode, byte) for each in _descriptions(pid))]


def _processes() -> Iterator[int]:
    names = os.listdir(_PROC) if _PROC.is_dir() else []
    return map(int, filter(str.isdecimal, names))


def _descriptions(pid: int) -> Iterator[str]:
    """What the kernel says of each descriptor of a process; nothing of one that is gone, or another user's."""
    with suppress(OSError):
        for descriptor in (_PROC / str(pid) / "fdinfo").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield descriptor.read_text()


def _has_lock(description: str, inode: int, byte: int) -> bool:
    """Whether a line is about `byte` of the file `inode`, such as `lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:131 1 1`."""
    for line in description.splitlines():
        if line.startswith("lock:"):
            *_, file, first, last = line.split()
            if file.endswith(f":{inode}") and int(first) <= byte and (last == "EOF" or byte <= int(last)):
                return True
    return False


def process(pid: int) -> Holder:
    """Return what is to be said of a process."""
    process = _PROC / str(pid)
    try:
        command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = process.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone meanwhile
        return Holder(pid, "gone", False)
    return Holder(pid, " ".join(command.split())[:_MAX_COMMAND], state in _STOPPED)
