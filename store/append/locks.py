"""The store lock: record locks on four bytes of the file `lock`.

    byte 0   exclusive: a running RocketMQ broker (its `tryLock(0, 1)`); shared: each store of ours open for writing
    byte 1   exclusive: one append, repair, opening or closing
    byte 2   exclusive: one change of consumer groups' offsets or members, also by readers
    byte 3   exclusive: the one store that delivers delayed messages

The locks are open-file-description locks if the system has them. Classic record locks have a fault: a process loses
them when it closes *any* descriptor of the file. The two kinds exclude each other, so RocketMQ notices ours. Neither
excludes threads that share a descriptor; a `threading.RLock` does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from store.disk.atomic import open_file, write_at
from store.disk.opened import Descriptor, Opened, PinnedPath
from store.format.layout import LOCK_FILE
from store.model.errors import StoreBusy, StoreLocked, StoreUnavailable, raise_translated, system_errors

_PROC = Path("/proc")
_STOPPED = "Tt"  # process states: stopped by a signal, by a debugger
_MAX_COMMAND = 80  # characters


class Holder(NamedTuple):
    pid: int
    command: str
    is_stopped: bool

    def __str__(self) -> str:
        if self.pid == os.getpid():
            return "this process, in another thread or another MessageStore"
        stopped = f", which is stopped (continue it: kill -CONT {self.pid})" if self.is_stopped else ""
        return f"process {self.pid} ({self.command}){stopped}"


def holders(path: Path, byte: int) -> list[Holder]:
    """Return the processes that hold a lock on `byte` of a file, if this user may look into them."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return []
    return [process(pid) for pid in _processes() if any(_has_lock(each, inode, byte) for each in _descriptions(pid))]


def _processes() -> Iterator[int]:
    names = os.listdir(_PROC) if _PROC.is_dir() else []
    return map(int, filter(str.isdecimal, names))


def _descriptions(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in (_PROC / str(pid) / "fdinfo").iterdir():
            with suppress(OSError):  # closed concurrently
                yield descriptor.read_text()


def _has_lock(description: str, inode: int, byte: int) -> bool:
    for line in description.splitlines():
        if line.startswith("lock:"):
            # such as "lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:131 1 1"
            *_, file, first, last = line.split()
            if file.endswith(f":{inode}") and int(first) <= byte and (last == "EOF" or byte <= int(last)):
                return True
    return False


def process(pid: int) -> Holder:
    process = _PROC / str(pid)
    try:
        command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = process.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # ended concurrently
        return Holder(pid, "gone", False)
    return Holder(pid, " ".join(command.split())[:_MAX_COMMAND], state in _STOPPED)


_OWNER_BYTE = 0
_APPEND_BYTE = 1
_GROUPS_BYTE = 2
DELIVERY_BYTE = 3
_ALL_BYTES = 0  # `fcntl` takes 0 as "to the end"
_IS_LINUX = sys.platform == "linux"
_HAS_OFD = _IS_LINUX and hasattr(fcntl, "F_OFD_SETLK")
_LINUX_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process: Linux's order
_CLASSIC = {
    fcntl.F_RDLCK: fcntl.LOCK_SH | fcntl.LOCK_NB,
    fcntl.F_WRLCK: fcntl.LOCK_EX | fcntl.LOCK_NB,
    fcntl.F_UNLCK: fcntl.LOCK_UN,  # takes no LOCK_NB
}
_TIMEOUT_SECONDS = 30.0
# Pauses between two attempts grow, so that a long wait takes no CPU time.
_PAUSE_SECONDS = (0.00002, 0.002)
_LONGER = 1.2
_NOBODY_SEEN = "a process that this user cannot see, or that has released it since"


class StoreLock(Opened):
    """A lock on one byte of the lock file, for one `MessageStore`.

    place: detects that the lock file was replaced: then this lock does not exclude locks on the new file.
    threads: excludes threads that share this object; `held` acquires it first.
    """

    def __init__(self, root: Path, timeout: float = _TIMEOUT_SECONDS, byte: int = _APPEND_BYTE) -> None:
        """timeout: seconds."""
        super().__init__(str(root), f"MessageStore.open({str(root)!r})")
        self._path = root / LOCK_FILE
        self._timeout = timeout
        self._byte = byte
        self.threads = threading.RLock()  # RLock: a re-entrant call must raise, not deadlock
        self._holder = 0  # thread id
        self._file = Descriptor(self._path, open_file)
        status = os.fstat(self._file.fd)
        self.place = PinnedPath(self._path, status)
        if status.st_size == 0:
            with system_errors(self._path):
                write_at(self._file.fd, b"lock", 0)

    @contextmanager
    def held(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock, against all other threads and processes on this host.

        timeout: seconds to wait for processes and other `StoreLock` objects. Threads that share this object wait
        without a limit.

        Raises `StoreLocked` if this thread already holds the lock, and `StoreBusy` after the timeout.
        """
        self.must_be_open()
        since = time.monotonic()
        with self.threads:
            yield from self.holding(since, timeout)

    def holding(self, since: float, timeout: float | None = None) -> Generator[None]:
        """Hold the lock against other processes, from `next` to `close`. The caller must hold `threads`.

        since: `time.monotonic()` when the caller began to wait.
        """
        self.must_not_reenter()
        self.must_be_open()  # may have been closed during the wait for another thread
        try:
            self._holder = threading.get_ident()
            self._acquire_byte(since, self._timeout if timeout is None else timeout)
            self.place.check()
            yield
        finally:
            self._holder = 0
            if not self._is_over:
                set_lock(self._file.fd, fcntl.F_UNLCK, self._byte)

    @property
    def is_inside(self) -> bool:
        return self._holder == threading.get_ident()

    def must_not_reenter(self) -> None:
        if self.is_inside:
            raise StoreLocked(
                f"{self._path.parent}: MessageStore is not re-entrant: a signal handler or a callback called it during "
                "another call in the same thread. Make the second call later, or in another thread"
            )

    def _acquire_byte(self, since: float, timeout: float) -> None:
        pause, longest = _PAUSE_SECONDS
        while not set_lock(self._file.fd, fcntl.F_WRLCK, self._byte):
            if time.monotonic() >= since + timeout:
                raise self._busy(timeout)
            time.sleep(pause)
            pause = min(pause * _LONGER, longest)

    def _busy(self, timeout: float) -> StoreBusy:
        unseen = f"{_NOBODY_SEEN} (sudo lslocks shows it: file {self._path.name}, byte {self._byte})"
        found = " and by ".join(map(str, holders(self._path, self._byte))) or unseen
        return StoreBusy(
            f"{self._path.parent}: the store's lock was not free within {timeout:g} s (lockTimeoutMillis). It is held "
            f"by {found}. This call changed nothing. Wait until that process is done, or stop it, then repeat the call"
        )

    def join(self) -> bool:
        """Register as a writer. Return whether there is no other writer. The caller must hold the lock.

        Raises `StoreLocked` if a RocketMQ broker owns the directory.
        """
        alone = self._is_alone()
        if not set_lock(self._file.fd, fcntl.F_RDLCK, _OWNER_BYTE):
            raise StoreLocked(
                f"{self._path.parent}: locked by a running RocketMQ broker (byte 0 of the file {self._path.name}). "
                "Stop the broker, or open the directory with read_only=True"
            )
        return alone

    def is_last(self) -> bool:
        """Return whether no other writer is left. The caller must hold the lock, so that none can join."""
        alone = self._is_alone()
        return set_lock(self._file.fd, fcntl.F_RDLCK, _OWNER_BYTE) and alone

    def _is_alone(self) -> bool:
        if _IS_LINUX:  # do not acquire it, or a consumer takes this writer for a broker
            return not is_held(self._file.fd, _OWNER_BYTE, shared=True)
        # Other systems cannot tell whether a lock is held, so acquire it.
        return set_lock(self._file.fd, fcntl.F_WRLCK, _OWNER_BYTE)

    def refuse_broker(self) -> None:
        if is_held(self._file.fd, _OWNER_BYTE):
            raise StoreLocked(
                f"{self._path.parent}: a RocketMQ broker runs here, and keeps the members and offsets of groups in "
                "its memory. Consume and commit through the broker, or stop it"
            )

    def leave(self) -> None:
        """Unregister as a writer. The caller must hold the lock, so that its next holder does not find this one."""
        self._is_over = True
        set_lock(self._file.fd, fcntl.F_UNLCK, 0, _ALL_BYTES)

    def close(self) -> None:
        """Close the lock, after the call of another thread. Threads that wait for the lock get `StoreClosed`."""
        if self.is_forked:  # the child lacks the thread that has the lock
            return
        with self.threads:
            self._is_over = True
            self._file.close()


class ByteLock(Opened):
    """A lock on one byte of a file, from `take` to `close` or the end of the process."""

    def __init__(self, path: Path, byte: int = 0) -> None:
        super().__init__(f"a lock on {path}", "the code that acquired it")
        self._byte = byte
        self._threads = threading.Lock()  # `close` waits for `take`: the descriptor may be reused
        self._file = Descriptor(path, open_file)

    def take(self) -> bool:
        """Try to acquire the lock, without waiting. Raises `StoreClosed`, `StoreForked`."""
        self.must_be_open()  # before `_threads`, which a thread that a forked child lacks may have
        with self._threads:
            self.must_be_open()
            return set_lock(self._file.fd, fcntl.F_WRLCK, self._byte)

    def close(self) -> None:
        if not self._is_over:
            with self._threads:
                self._is_over = True
                self._file.close()


def is_held(fd: int, byte: int, *, shared: bool = False) -> bool:
    """Return whether another descriptor holds an exclusive lock on a byte, or with `shared` any lock."""
    if not _IS_LINUX:
        raise StoreUnavailable(
            f"Consumer groups of a directory work on Linux only: {sys.platform} cannot tell who locks byte {byte} of "
            "the lock file, so groups and a RocketMQ broker could overwrite each other's offsets. Use Linux, or "
            "consume through a broker"
        )
    kind = fcntl.F_WRLCK if shared else fcntl.F_RDLCK  # which the locks in question exclude
    command = fcntl.F_OFD_GETLK if _HAS_OFD else fcntl.F_GETLK
    with system_errors("a lock file"):
        found = fcntl.fcntl(fd, command, _LINUX_FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    return bool(_LINUX_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def set_lock(fd: int, kind: int, byte: int, count: int = 1) -> bool:
    """Set a record lock. Return False if another process or descriptor holds a lock that excludes it."""
    try:
        if _HAS_OFD:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LINUX_FLOCK.pack(kind, os.SEEK_SET, byte, count, 0))
        else:
            fcntl.lockf(fd, _CLASSIC[kind], count, byte)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise_translated("a lock file", error)
        raise
    return True


@contextmanager
def among_groups(root: Path, timeout: float) -> Iterator[None]:
    """A context in which to change offsets or members of consumer groups. timeout: seconds.

    Raises `StoreLocked` if a broker runs, or starts in the meantime, because it would overwrite the changes.
    """
    with closing(StoreLock(root, timeout, _GROUPS_BYTE)) as lock:
        lock.refuse_broker()
        with lock.held():
            lock.refuse_broker()
            yield
            lock.refuse_broker()


@contextmanager
def alone(root: Path, what: str) -> Iterator[None]:
    """Hold the append lock as the only writer of a directory. what: the purpose, for errors.

    Raises `StoreLocked` if there are other writers.
    """
    with closing(StoreLock(root)) as lock, lock.held():
        if not lock.join():
            others = [found for found in holders(root / LOCK_FILE, _OWNER_BYTE) if found.pid != os.getpid()]
            who = " and ".join(map(str, others)) or "this process, or " + _NOBODY_SEEN
            raise StoreLocked(f"{root}: the store is open for writing in {who}. Close the store there before {what}")
        yield
