"""Base classes of handles: each belongs to one process and to one directory.

A forked child inherits its parent's descriptors. Locks on them would not exclude one process from the other, and would
outlive the parent. So the child closes them right after the fork, and its handles raise `StoreForked`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from threading import Condition
from typing import NoReturn
from weakref import WeakSet

from store.model.errors import (
    StoreClosed,
    StoreError,
    StoreForked,
    StoreNotOpen,
    StoreReplaced,
    raise_translated,
    system_errors,
)

_all: WeakSet[Opened] = WeakSet()


class Opened:
    """A handle that cannot be copied or pickled, and that is closed in forked children."""

    _is_over = False

    def __init__(self, what: str, opener: str) -> None:
        """what: the handle's name in errors. opener: the call that opens another one."""
        self._what = what
        self._opener = opener
        self._process = os.getpid()
        _all.add(self)

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._process

    def must_be_open(self) -> None:
        """Raise `StoreClosed` or `StoreForked` if the handle cannot be used."""
        if self._is_over:
            raise self._not_open()

    def _not_open(self) -> StoreNotOpen:
        if self.is_forked:
            return StoreForked(
                f"{self._what}: opened in process {self._process}, which forked this process ({os.getpid()}). Open "
                f"another one in this process with {self._opener}"
            )
        return StoreClosed(f"{self._what}: was closed. Open a new one with {self._opener}")

    def __reduce__(self) -> NoReturn:
        raise StoreNotOpen(
            f"{self._what}: cannot be copied or pickled, because it belongs to the process that opened it. Pass the "
            f"path, and open another one there with {self._opener}"
        )


def shown(handle: Opened, details: Callable[[], str]) -> str:
    """Return the `repr` of a handle, with `details` if it is open. Never raises."""
    try:
        if handle.is_forked:
            state = f"opened in process {handle._process}"
        else:
            state = "closed" if handle._is_over else f"open, {details()}"
        return f"<{handle._opener}: {state}>"
    except StoreError as error:
        return f"<{handle._opener}: open, {type(error).__name__}>"
    except AttributeError:
        return f"<{type(handle).__name__}: its constructor has not returned>"


class Descriptor(Opened):
    """An open file or folder. fd: -1 after it was closed, and in a forked child."""

    fd = -1

    def __init__(self, path: Path, open_: Callable[[Path], int]) -> None:
        super().__init__(str(path), "the call that opened it")
        with system_errors(path):
            self.fd = open_(path)

    def close(self) -> None:
        if self.fd >= 0:
            fcntl.flock(self.fd, fcntl.LOCK_UN)  # a new forked child that has not closed it yet would keep the lock
        self.close_only()

    def close_only(self) -> None:
        """Close without unlocking: a process that inherited the descriptor keeps its locks."""
        self._is_over = True
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close_only()


def _after_fork_in_child() -> None:
    for each in list(_all):
        each._is_over = True
        if isinstance(each, Descriptor):
            each.close_only()


os.register_at_fork(after_in_child=_after_fork_in_child)


class PinnedPath:
    """Detects that a path no longer names the opened file or directory."""

    def __init__(self, path: Path, status: os.stat_result | None = None) -> None:
        self.path = path
        with system_errors(path):
            status = status or os.stat(path)
        self._identity = status.st_dev, status.st_ino

    def check(self) -> None:
        """Raise `StoreReplaced` if the path names another file, or none."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise self._replaced("was deleted or moved away") from error
            raise_translated(self.path, error)
            raise
        if (status.st_dev, status.st_ino) != self._identity:
            raise self._replaced("was replaced by another one")

    def _replaced(self, what: str) -> StoreReplaced:
        return StoreReplaced(
            f"{self.path}: {what} while the store was open, so this store neither writes nor reads any more. Close "
            "it. Restore the directory, or find its new place, and open that"
        )


def is_owned(condition: Condition) -> bool:
    """Return whether the calling thread holds the condition's lock."""
    try:
        # raises an error without the lock
        condition.notify(0)
    except RuntimeError:
        return False
    return True
