"""The store lock: two bytes of the file `lock`.

| byte | who | how |
|---|---|---|
| 0 | a running RocketMQ broker | exclusive (its `tryLock(0, 1)`) |
| 0 | every store of ours that is open for writing | shared |
| 1 | one append, repair, opening or closing | exclusive |

Open-file-description locks where the system has them: classic record locks vanish when *any* descriptor of the
file is closed in the process. The two kinds exclude each other, so RocketMQ still sees ours. Neither kind
excludes threads that share a descriptor; a `threading.Lock` does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.atomic import open_file
from store.errors import StoreLocked
from store.layout import LOCK_FILE

_OWNER_BYTE = 0
_APPEND_BYTE = 1
_HAS_OFD = hasattr(fcntl, "F_OFD_SETLK")


class StoreLock:
    """The lock file of one store directory, as one writing `MessageStore` holds it."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._fd = open_file(self._path)
        self._threads = threading.Lock()
        if os.fstat(self._fd).st_size == 0:
            os.pwrite(self._fd, b"lock", 0)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold byte 1: at most one appender on this host. Waits for its turn."""
        with self._threads:
            _lock(self._fd, fcntl.F_WRLCK, _APPEND_BYTE, wait=True)
            try:
                yield
            finally:
                _lock(self._fd, fcntl.F_UNLCK, _APPEND_BYTE, wait=False)

    def join(self) -> bool:
        """Become one of the writers; call inside `exclusive()`. True when there was no other.

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
        """True when no other writer is left; call inside `exclusive()`, so that none can join meanwhile."""
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
