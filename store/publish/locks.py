"""The store lock: four bytes of the file `lock`. And which processes hold it.

    byte 0   exclusive: a running RocketMQ broker (its `tryLock(0, 1)`); shared: each store of ours open for writing
    byte 1   exclusive: one append, repair, opening or closing
    byte 2   exclusive: one change of consumer groups' offsets or members, also by readers
    byte 3   exclusive: the one store that delivers delayed messages, as long as it does

They are open-file-description locks if the system has them: classic record locks vanish when *any* descriptor of the
file is closed in the process. The two kinds exclude each other, so RocketMQ sees ours. Neither kind excludes threads
that share a descriptor; a `threading.RLock` does.

The kernel does not tell which process has an open-file-description lock, but it lists the locks of each descriptor. So
a process that waited in vain can name the holder, and taking a lock costs nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from store.files.atomic import open_file, write_at
from store.files.opened import Descriptor, Opened, PinnedPath
from store.format.layout import LOCK_FILE
from store.model.errors import StoreBusy, StoreLocked, StoreUnavailable, raise_translated, system_errors

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
    """Return the processes that hold a lock on `byte` of the file `path`, if this user may look into them."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return []
    return [process(pid) for pid in _processes() if any(_has_lock(each, inode, byte) for each in _descriptions(pid))]


def _processes() -> Iterator[int]:
    names = os.listdir(_PROC) if _PROC.is_dir() else []
    return map(int, filter(str.isdecimal, names))


def _descriptions(pid: int) -> Iterator[str]:
    """Yield the kernel's text on each descriptor of a process; none for a dead process, or another user's."""
    with suppress(OSError):
        for descriptor in (_PROC / str(pid) / "fdinfo").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield descriptor.read_text()


def _has_lock(description: str, inode: int, byte: int) -> bool:
    """Return whether a line is about `byte` of the file `inode`, such as `lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:131 1
    1`."""
    for line in description.splitlines():
        if line.startswith("lock:"):
            *_, file, first, last = line.split()
            if file.endswith(f":{inode}") and int(first) <= byte and (last == "EOF" or byte <= int(last)):
                return True
    return False


def process(pid: int) -> Holder:
    """Return what errors say of a process."""
    process = _PROC / str(pid)
    try:
        command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = process.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone meanwhile
        return Holder(pid, "gone", False)
    return Holder(pid, " ".join(command.split())[:_MAX_COMMAND], state in _STOPPED)


_OWNER_BYTE = 0
_APPEND_BYTE = 1
_GROUPS_BYTE = 2
DELIVERY_BYTE = 3
_ALL_BYTES = 0  # to the end, wherever that is
_IS_LINUX = sys.platform == "linux"
_HAS_OFD = _IS_LINUX and hasattr(fcntl, "F_OFD_SETLK")
_LINUX_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process; elsewhere C has them in another order
_CLASSIC = {
    fcntl.F_RDLCK: fcntl.LOCK_SH | fcntl.LOCK_NB,
    fcntl.F_WRLCK: fcntl.LOCK_EX | fcntl.LOCK_NB,
    fcntl.F_UNLCK: fcntl.LOCK_UN,  # which takes no LOCK_NB
}
_TIMEOUT_SECONDS = 30.0
# Between two looks at a lock that is held: the first are shorter than a short append, so that it is soon one's turn;
# then they grow, so that somebody's long append costs the others nothing.
_PAUSE_SECONDS = (0.00002, 0.002)
_LONGER = 1.2
_NOBODY_SEEN = (
    "a process that has let go of it just now, or that this user may not look into ('lslocks', run by root, names it)"
)


class StoreLock(Opened):
    """One `MessageStore`'s turns at one byte of the lock file.

    place: the file's place; another lock file there would not exclude this one.
    """

    def __init__(self, root: Path, timeout: float = _TIMEOUT_SECONDS, byte: int = _APPEND_BYTE) -> None:
        """timeout: how long to wait for a turn, in seconds. byte: whose turns are taken."""
        super().__init__(str(root), f"MessageStore.open({str(root)!r})")
        self._path = root / LOCK_FILE
        self._timeout = timeout
        self._byte = byte
        self._threads = threading.RLock()  # a re-entrant call is refused, and does not wait for itself
        self._holder = 0  # id of the thread that holds this
        self._file = Descriptor(self._path, open_file)
        status = os.fstat(self._file.fd)
        self.place = PinnedPath(self._path, status)
        if status.st_size == 0:
            with system_errors(self._path):
                write_at(self._file.fd, b"lock", 0)

    @contextmanager
    def held(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the byte: one thread on this host does at a time.

        timeout: seconds to wait for other processes, and for other locks of this one; by default the lock's own.
        Threads that share this lock wait for each other without a limit.

        Raises `StoreLocked` if this thread holds it already, `StoreBusy` after the timeout, `StoreClosed`,
        `StoreForked`; and `StoreReplaced` if the directory has another lock file by now.
        """
        self.must_be_open()
        with self.among_threads() as since, self.among_processes(since, timeout):
            yield

    @contextmanager
    def among_threads(self) -> Iterator[float]:
        """The first half of `held`: other threads that share this lock wait. Yields when the wait began."""
        since = time.monotonic()
        with self._threads:
            self.must_not_reenter()
            self._holder = threading.get_ident()
            try:
                yield since
            finally:
                self._holder = 0

    @contextmanager
    def among_processes(self, since: float, timeout: float | None = None) -> Iterator[None]:
        """The second half of `held`: other processes wait."""
        self.must_be_open()  # the store may have been closed while this thread waited for another
        try:
            self._acquire_byte(since, self._timeout if timeout is None else timeout)
            self.place.check()
            yield
        finally:
            if not self._is_over:
                set_lock(self._file.fd, fcntl.F_UNLCK, self._byte)

    @property
    def is_inside(self) -> bool:
        """Whether this thread holds the lock."""
        return self._holder == threading.get_ident()

    def must_not_reenter(self) -> None:
        """Raises `StoreLocked` if this thread holds the lock."""
        if self.is_inside:
            raise StoreLocked(
                f"{self._path.parent}: MessageStore is not re-entrant: a signal handler or a callback called it during "
                "another call in the same thread. Call it after that, or from another thread"
            )

    def _acquire_byte(self, since: float, timeout: float) -> None:
        pause, longest = _PAUSE_SECONDS
        while not set_lock(self._file.fd, fcntl.F_WRLCK, self._byte):
            if time.monotonic() >= since + timeout:
                raise self._busy(timeout)
            time.sleep(pause)
            pause = min(pause * _LONGER, longest)

    def _busy(self, timeout: float) -> StoreBusy:
        found = " and by ".join(map(str, holders(self._path, self._byte)))
        return StoreBusy(
            f"{self._path.parent}: no turn to write within {timeout:g} s (lockTimeoutMillis); the lock (byte "
            f"{self._byte} of {self._path.name}) is held by {found or _NOBODY_SEEN}. Nothing of this call is "
            "visible: let that go on or end it, then repeat the call"
        )

    def join(self) -> bool:
        """Become one of the writers; call it while this is held. True when there was no other.

        Raises `StoreLocked` when a RocketMQ broker holds the directory.
        """
        alone = self._is_alone()
        if not set_lock(self._file.fd, fcntl.F_RDLCK, _OWNER_BYTE):
            raise StoreLocked(
                f"{self._path.parent}: locked by a running RocketMQ broker (byte 0 of {self._path.name}); "
                "stop the broker, or open the directory with read_only=True"
            )
        return alone

    def is_last(self) -> bool:
        """Return whether no other writer is left. Call it while this is held, so that none can join."""
        alone = self._is_alone()
        return set_lock(self._file.fd, fcntl.F_RDLCK, _OWNER_BYTE) and alone

    def _is_alone(self) -> bool:
        """Return whether no other store has byte 0. If that can only be tried, it is this one's alone afterwards."""
        if _IS_LINUX:  # or who consumes took a writer that joins or leaves for a broker
            return not is_held(self._file.fd, _OWNER_BYTE, shared=True)
        return set_lock(self._file.fd, fcntl.F_WRLCK, _OWNER_BYTE)

    def refuse_broker(self) -> None:
        """Raises `StoreLocked` if a RocketMQ broker runs here: it keeps the files' content in memory."""
        if is_held(self._file.fd, _OWNER_BYTE):
            raise StoreLocked(
                f"{self._path.parent}: a RocketMQ broker runs here, and keeps the offsets of consumer groups itself, "
                "and their members; consume and commit through the broker, or stop it"
            )

    def leave(self) -> None:
        """Give up all bytes at once, while this is held: the next holder does not find this writer."""
        self._is_over = True
        set_lock(self._file.fd, fcntl.F_UNLCK, 0, _ALL_BYTES)

    def close(self) -> None:
        """Give up all bytes, after the call of another thread. Threads that wait for the lock get `StoreClosed`."""
        if self.is_forked:  # the thread that holds it may be missing
            return
        with self._threads:
            self._is_over = True
            self._file.close()


class Turn(Opened):
    """One byte of a lock file, held until `close` or the process's end."""

    def __init__(self, path: Path, byte: int = 0) -> None:
        super().__init__(f"a turn at {path}", "what took it")
        self._byte = byte
        self._threads = threading.Lock()  # or a descriptor that is another file's by now could be locked
        self._file = Descriptor(path, open_file)

    def take(self) -> bool:
        """Try to take it, and return whether this has it. Raises `StoreClosed`, `StoreForked`."""
        self.must_be_open()  # before the lock of the threads: in a forked child its holder may be missing
        with self._threads:
            self.must_be_open()
            return set_lock(self._file.fd, fcntl.F_WRLCK, self._byte)

    def close(self) -> None:
        """Give it back."""
        if not self._is_over:
            with self._threads:
                self._is_over = True
                self._file.close()


def is_held(fd: int, byte: int, *, shared: bool = False) -> bool:
    """Return whether another descriptor has an exclusive record lock on one byte, or a `shared` one; takes none.

    Raises `StoreUnavailable` on systems without that call.
    """
    if not _IS_LINUX:
        raise StoreUnavailable(
            f"byte {byte} of a lock file: whether anybody holds it cannot be asked on {sys.platform}, so groups and a "
            "RocketMQ broker could overwrite each other's offsets; use consumer groups on Linux, or through a broker"
        )
    kind = fcntl.F_WRLCK if shared else fcntl.F_RDLCK  # that it would stand in the way of
    command = fcntl.F_OFD_GETLK if _HAS_OFD else fcntl.F_GETLK
    with system_errors("a lock file"):
        found = fcntl.fcntl(fd, command, _LINUX_FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    return bool(_LINUX_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def set_lock(fd: int, kind: int, byte: int, count: int = 1) -> bool:
    """Set a record lock on `count` bytes from `byte` on. Return False if another holder excludes it."""
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
    """Change offsets or members of consumer groups: one thread on this host does at a time.

    timeout: seconds to wait. Raises `StoreLocked` if a broker runs, or starts concurrently: it may have read its files
    before, and would write them again. And as `StoreLock.held`.
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

    Raises `StoreLocked`, which names the others, and as `StoreLock.held`.
    """
    with closing(StoreLock(root)) as lock, lock.held():
        if not lock.join():
            others = [found for found in holders(root / LOCK_FILE, _OWNER_BYTE) if found.pid != os.getpid()]
            who = " and ".join(map(str, others)) or "this one, or " + _NOBODY_SEEN
            raise StoreLocked(f"{root}: other processes write here; close them before {what}: {who}")
        yield
