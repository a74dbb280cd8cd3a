"""The store lock: two bytes of the file `lock`.

| byte | who | how |
|---|---|---|
| 0 | a running RocketMQ broker | exclusive (its `tryLock(0, 1)`) |
| 0 | every store of ours that is open for writing | shared |
| 1 | one append, repair, opening or closing | exclusive |

Open-file-description locks where the system has them: classic record locks vanish when *any* descriptor of the
file is closed in the process. The two kinds exclude each other, so RocketMQ still sees ours. Neither kind
excludes threads that share a descriptor; a `threading.RLock` does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from store.atomic import open_file
from store.errors import StoreLocked
from store.layout import LOCK_FILE

_OWNER_BYTE = 0
_APPEND_BYTE = 1
Result = TypeVar("Result")
_HAS_OFD = hasattr(fcntl, "F_OFD_SETLK")


class _ThisThread(threading.local):
    is_inside = False


class StoreLock:
    """The lock file of one store directory, as one writing `MessageStore` holds it."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._fd = open_file(self._path)
        self._threads = threading.RLock()  # it knows whose it is
        self._this_thread = _ThisThread()
        if os.fstat(self._fd).st_size == 0:
            os.pwrite(self._fd, b"lock", 0)

    def exclusively(self, work: Callable[[], Result]) -> Result:
        """What `work` answers, called while holding byte 1: at most one appender on this host. Waits for its turn.

        Whatever is raised wherever, by a signal's handler too, the lock is free afterwards. That is why this is no
        context manager: an exception can come between a `with` and the first line of what leaves it. Two `finally`,
        for one may be interrupted; leaving twice does nothing.

        Raises `StoreLocked` when this thread is in here already.
        """
        if self._this_thread.is_inside:
            raise StoreLocked(
                f"{self._path.parent}: called by what interrupted another verb of this store in the same thread (a "
                "signal's handler?), which cannot end meanwhile; call it from another thread, or later"
            )
        try:
            try:
                self._this_thread.is_inside = True
                self._threads.acquire()
                _lock(self._fd, fcntl.F_WRLCK, _APPEND_BYTE, wait=True)
                return work()
            finally:
                self._leave()
        finally:
            self._leave()

    def _leave(self) -> None:
        if not self._this_thread.is_inside:
            return
        if self._threads.acquire(blocking=False):  # so it is ours or was free: no other thread is inside
            _lock(self._fd, fcntl.F_UNLCK, _APPEND_BYTE, wait=False)
            with suppress(RuntimeError):  # released as often as it was acquired
                while True:
                    self._threads.release()
        self._this_thread.is_inside = False

    def join(self) -> bool:
        """Become one of the writers; call inside `exclusively`. True when there was no other.

        Raises `StoreLocked` when a RocketMQ broker holds the directory.
        """
        alone = _lock(self._fd, fcntl.F_WRLCK, _OWNER_BYTE, wait=False)
        if not _lock(self._fd, fcntl.F_RDLCK, _OWNER_BYTE, wait=False):
            raise StoreLocked(
                f"{self._path.parent}: locked by a running RocketMQ broker (byte 0 of {self._path.name}); "
                "stop the broker, or open the directory with read_only=True"
            )
        return alone

    def is_last(self) -> bool:
        """True when no other writer is left; call inside `exclusively`, so that none can join meanwhile."""
        alone = _lock(self._fd, fcntl.F_WRLCK, _OWNER_BYTE, wait=False)
        return _lock(self._fd, fcntl.F_RDLCK, _OWNER_BYTE, wait=False) and alone  # one may join before we have left

    def close(self) -> None:
        """Leave; the kernel drops the locks with the descriptor."""
        os.close(self._fd)


def _lock(fd: int, kind: int, byte: int, *, wait: bool) -> bool:
    """Set a one-byte record lock; False when another holder is in the way and `wait` is False."""
    try:
        if _HAS_OFD:
            command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
            fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))
        else:
            kinds = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}
            fcntl.lockf(fd, kinds[kind] | (0 if wait else fcntl.LOCK_NB), 1, byte)
    except OSError as error:
        if not wait and error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True
