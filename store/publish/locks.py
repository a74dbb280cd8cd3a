"""The store lock: four bytes of the file `lock`.

| byte | who | how |
|---|---|---|
| 0 | a running RocketMQ broker | exclusive (its `tryLock(0, 1)`) |
| 0 | every store of ours that is open for writing | shared |
| 1 | one append, repair, opening or closing | exclusive |
| 2 | one change of consumer groups' offsets or members, by whoever reads, too | exclusive |
| 3 | the one store that delivers delayed messages, for as long as it does | exclusive |

Open-file-description locks where the system has them: classic record locks vanish when *any* descriptor of the
file is closed in the process. The two kinds exclude each other, so RocketMQ still sees ours. Neither kind
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
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from weakref import finalize

from store.errors import StoreBusy, StoreLocked, StoreUnavailable
from store.files.atomic import open_file, write_at
from store.files.opened import Opened, Place, opening
from store.format.layout import LOCK_FILE
from store.publish.lock_holders import holders

_OWNER_BYTE = 0
_APPEND_BYTE = 1
_GROUPS_BYTE = 2
DELIVERY_BYTE = 3
_ALL_BYTES = 0  # to the end, wherever that is
Result = TypeVar("Result")
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
_LOOK_SECONDS = 0.001  # between two looks whether another thread has answered: shorter than a flush
_NOBODY_SEEN = (
    "a process that has let go of it just now, or that this user may not look into ('lslocks', run by root, names it)"
)


class _ThisThread(threading.local):
    is_inside = False


class StoreLock(Opened):
    """Turns at one byte of a store directory's lock file, as one `MessageStore` takes them.

    place: where it was; another lock file there would not exclude this one.
    """

    _fd = -1  # a child that is forked before there is one lets go of nothing
    _closes: finalize[..., StoreLock] | None = None

    def __init__(self, root: Path, timeout: float = _TIMEOUT_SECONDS, byte: int = _APPEND_BYTE) -> None:
        """timeout: how long to wait for a turn, in seconds. byte: whose turns are taken."""
        super().__init__(str(root), f"MessageStore.open({str(root)!r})")
        self._path = root / LOCK_FILE
        self._timeout = timeout
        self._byte = byte
        self._threads = threading.RLock()  # it knows whose it is
        self._this_thread = _ThisThread()
        with opening:
            self._fd = open_file(self._path)
            self._closes = finalize(self, os.close, self._fd)  # by itself where `close` was interrupted
            self._closes.atexit = False
        status = os.fstat(self._fd)
        self.place = Place(self._path, status)
        if status.st_size == 0:
            write_at(self._fd, b"lock", 0)

    def exclusively(
        self,
        work: Callable[[], Result],
        timeout: float | None = None,
        *,
        done: Callable[[], Result | None] | None = None,
    ) -> Result:
        """What `work` answers, called while holding the byte: at most one on this host does. Waits for its turn.

        timeout: seconds, if other than this lock's own. done: what another thread has answered for this one meanwhile,
        if it has: that is the answer then, and other processes are not waited for.

        Whatever is raised wherever, by a signal's handler too, the lock is free afterwards. That is why this is no
        context manager: an exception can come between a `with` and the first line of what leaves it. Two `finally`,
        for one may be interrupted; leaving twice does nothing.

        Raises `StoreLocked` when this thread is in here already, `StoreBusy` when there is no turn in time,
        `StoreClosed`, `StoreForked`; and `StoreReplaced`, for nobody else looks at a file that is not the directory's.
        """
        self.must_be_of_this_process()  # before the lock of the threads: in a child its holder may be missing
        if done is None:  # or else another thread, which goes on while this is closed, may answer yet
            self.must_be_open()
        self.must_be_outside()
        try:
            try:
                self._this_thread.is_inside = True
                timeout = self._timeout if timeout is None else timeout
                deadline = time.monotonic() + timeout
                is_ours = False
                while not is_ours:
                    is_ours = self._threads.acquire(timeout=timeout if done is None else _LOOK_SECONDS)
                    if done is not None and (answer := done()) is not None:
                        return answer
                    if not is_ours and time.monotonic() >= deadline:
                        raise self._busy(timeout)
                self._take_turn(deadline, timeout)
                self.place.check()
                return work()
            finally:
                self._leave()
        finally:
            self._leave()

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or is that of a parent process."""
        return self._is_over

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside `exclusively`: it was interrupted there, or what it does there calls this."""
        return self._this_thread.is_inside

    def must_be_outside(self) -> None:
        """Raises `StoreLocked` inside `exclusively`, for this thread."""
        if self.is_inside:
            raise StoreLocked(
                f"{self._path.parent}: called by what interrupted another verb of this store in the same thread (a "
                "signal's handler?), which cannot end meanwhile; call it from another thread, or later"
            )

    def must_be_of_this_process(self) -> None:
        """Raises `StoreForked`, also in the middle of a verb that goes on while this is closed."""
        if self._is_over and self.is_forked:  # it is over in a child; to ask who one is takes 0.5 us
            raise self._not_open()

    def _leave(self) -> None:
        if not self.is_inside:
            return
        if self._threads.acquire(blocking=False):  # so it is ours or was free: no other thread is inside
            if self._fd >= 0:  # or it was let go of
                # Who closes leaves as a whole: whoever has the next turn must not find it among the writers still.
                set_lock(self._fd, fcntl.F_UNLCK, *((0, _ALL_BYTES) if self._is_over else (self._byte,)))
            with suppress(RuntimeError):  # released as often as it was acquired
                while True:
                    self._threads.release()
        if self._is_over:
            self._let_go_if_free()
        self._this_thread.is_inside = False

    def _take_turn(self, deadline: float, timeout: float) -> None:
        """Of all processes, this one's threads being kept out. Raises as `exclusively`."""
        self.must_be_open()  # closed while this thread waited for another
        pause, longest = _PAUSE_SECONDS
        while not set_lock(self._fd, fcntl.F_WRLCK, self._byte):
            self.must_be_open()
            if time.monotonic() >= deadline:
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
        """Become one of the writers; call inside `exclusively`. True when there was no other.

        Raises `StoreLocked` when a RocketMQ broker holds the directory.
        """
        alone = self._is_alone()
        if not set_lock(self._fd, fcntl.F_RDLCK, _OWNER_BYTE):
            raise StoreLocked(
                f"{self._path.parent}: locked by a running RocketMQ broker (byte 0 of {self._path.name}); "
                "stop the broker, or open the directory with read_only=True"
            )
        return alone

    def is_last(self) -> bool:
        """True when no other writer is left; call inside `exclusively`, so that none can join meanwhile."""
        alone = self._is_alone()
        return set_lock(self._fd, fcntl.F_RDLCK, _OWNER_BYTE) and alone

    def _is_alone(self) -> bool:
        """Whether nobody else has byte 0. Where that can only be tried it is this one's alone then."""
        if _IS_LINUX:  # or who consumes took a writer that joins or leaves for a broker
            return not is_held(self._fd, _OWNER_BYTE, shared=True)
        return set_lock(self._fd, fcntl.F_WRLCK, _OWNER_BYTE)

    def refuse_broker(self) -> None:
        """Raises `StoreLocked` while a RocketMQ broker runs here, which keeps in memory what it writes to its files."""
        if is_held(self._fd, _OWNER_BYTE):
            raise StoreLocked(
                f"{self._path.parent}: a RocketMQ broker runs here, and keeps the offsets of consumer groups itself, "
                "and their members; consume and commit through the broker, or stop it"
            )

    def close(self) -> None:
        """Leave. All locks go at once: now, or when the thread leaves that is inside `exclusively`.

        An append that is under way keeps its lock so, also where it is that which calls this; and nobody waits for it.
        Whoever waits by this lock gets `StoreClosed`.
        """
        self._is_over = True
        if not self.is_inside:
            self._let_go_if_free()

    def _let_go_if_free(self) -> None:
        if self._threads.acquire(blocking=False):  # or else who has it comes here when he leaves
            try:
                self._let_go()
            finally:
                self._threads.release()

    def _let_go(self) -> None:
        self._fd = -1
        if self._closes is not None:
            self._closes()  # which does nothing the second time


class Turn(Opened):
    """One byte of a file of a store's, held for longer than a verb: until `close`, or the process's end."""

    _fd = -1
    _closes: finalize[..., Turn] | None = None

    def __init__(self, path: Path, byte: int = 0) -> None:
        super().__init__(f"a turn at {path}", "what took it")
        self._byte = byte
        self._threads = threading.RLock()  # or a descriptor that is another file's by now could be locked
        with opening:
            self._fd = open_file(path)
            self._closes = finalize(self, os.close, self._fd)
            self._closes.atexit = False

    def take(self) -> bool:
        """Whether it is this one's now; once it is, it stays so. Raises `StoreClosed`, `StoreForked`."""
        self.must_be_open()  # before the lock of the threads: in a forked child its holder may be missing
        with self._threads:
            try:
                return set_lock(self._fd, fcntl.F_WRLCK, self._byte)
            except (OSError, ValueError):  # closed meanwhile, maybe by what interrupted this
                self.must_be_open()
                raise

    def close(self) -> None:
        """Give it back."""
        self._is_over = True
        if self._fd >= 0:
            with self._threads:
                self._let_go()

    def _let_go(self) -> None:
        self._fd = -1
        if self._closes is not None:
            self._closes()


def is_held(fd: int, byte: int, *, shared: bool = False) -> bool:
    """Whether somebody else, by another descriptor, has an exclusive record lock on one byte, or a `shared` one; takes
    none.

    Raises `StoreUnavailable` where that cannot be asked.
    """
    if not _IS_LINUX:
        raise StoreUnavailable(
            f"byte {byte} of a lock file: whether anybody holds it cannot be asked on {sys.platform}, so groups and a "
            "RocketMQ broker could overwrite each other's offsets; use consumer groups on Linux, or through a broker"
        )
    kind = fcntl.F_WRLCK if shared else fcntl.F_RDLCK  # that it would stand in the way of
    command = fcntl.F_OFD_GETLK if _HAS_OFD else fcntl.F_GETLK
    found = fcntl.fcntl(fd, command, _LINUX_FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    return bool(_LINUX_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def set_lock(fd: int, kind: int, byte: int, count: int = 1) -> bool:
    """Set a record lock on `count` bytes from `byte` on; False when another holder is in the way."""
    try:
        if _HAS_OFD:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LINUX_FLOCK.pack(kind, os.SEEK_SET, byte, count, 0))
        else:
            fcntl.lockf(fd, _CLASSIC[kind], count, byte)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def among_groups(root: Path, timeout: float, work: Callable[[], Result]) -> Result:
    """What `work` answers, called while nobody else changes offsets or members of consumer groups.

    timeout: seconds to wait for the turn. Raises `StoreLocked` while a broker runs, and as `exclusively`.
    """
    with closing(StoreLock(root, timeout, _GROUPS_BYTE)) as lock:

        def work_without_broker() -> Result:
            lock.refuse_broker()
            answer = work()
            lock.refuse_broker()  # one that came meanwhile may have read its files before, and writes them again
            return answer

        lock.refuse_broker()
        return lock.exclusively(work_without_broker)


def alone(root: Path, work: Callable[[], Result], what: str) -> Result:
    """What `work` answers, called as the only writer of a directory. what: it is, for the message.

    Raises `StoreLocked`, which names the others, and as `exclusively`.
    """
    with closing(StoreLock(root)) as lock:

        def when_alone() -> Result:
            if not lock.join():
                others = [found for found in holders(root / LOCK_FILE, _OWNER_BYTE) if found.pid != os.getpid()]
                who = " and ".join(map(str, others)) or "this one, or " + _NOBODY_SEEN
                raise StoreLocked(f"{root}: other processes write here; close them before {what}: {who}")
            return work()

        return lock.exclusively(when_alone)
