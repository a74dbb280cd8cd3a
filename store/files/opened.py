"""What is open belongs to the process that opened it, until that closes it; and to the directory that it was opened in.

A process made by `fork` gets its parent's descriptors. Locks taken by them would be held by both and exclude neither,
and a child that outlives its parent would keep them. So a child lets go of all that is `Opened` right after the fork,
before any other code runs there, and whoever uses such a thing in it is told.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from weakref import WeakSet, finalize

from store.errors import StoreClosed, StoreForked, StoreLocked, StoreNotOpen, StoreReplaced, StoreUnavailable
from store.system_errors import system_errors

# Hold it from opening a descriptor until its `Opened` knows it: no process is forked meanwhile.
opening = threading.RLock()
_all: WeakSet[Opened] = WeakSet()


def must_not_be_opening() -> None:
    """Raises `StoreLocked` in a signal's handler amid the opening of something: other threads cannot end meanwhile."""
    if opening._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
        raise StoreLocked(
            "called by what interrupted the opening of a file in the same thread (a signal's handler?), which cannot "
            "end meanwhile; call it from another thread, or later"
        )


class Opened:
    """Something open, and the process that it belongs to. Not to be copied or pickled."""

    _is_over = False

    def __init__(self, what: str, anew: str) -> None:
        """what: it, for errors, with its path. anew: how to make another."""
        self._what = what
        self._anew = anew
        self._process = os.getpid()
        with opening:
            _all.add(self)

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the one that it belongs to."""
        return os.getpid() != self._process

    def must_be_open(self) -> None:
        """Raises `StoreClosed`, `StoreForked`."""
        if self._is_over:
            raise self._not_open()

    def _not_open(self) -> StoreNotOpen:
        """Why this is of no use any more."""
        if self.is_forked:
            return StoreForked(
                f"{self._what}: opened in process {self._process}, and this is process {os.getpid()}, forked from it; "
                f"make one for this process with {self._anew}"
            )
        return StoreClosed(f"{self._what}: was closed; make a new one with {self._anew}")

    def _let_go(self) -> None:
        """In a forked child: close the parent's descriptors. Write nothing, and wait for no lock."""

    def __reduce__(self) -> NoReturn:
        raise StoreNotOpen(
            f"{self._what}: cannot be copied or pickled, for it belongs to the process that opened it; "
            f"hand its path on, and make one there with {self._anew}"
        )


class Descriptor(Opened):
    """A file or folder, opened to be locked (`flock`): a child that is forked meanwhile holds no lock of it.

    fd: to be locked, until `close`.
    """

    def __init__(self, path: Path, open_: Callable[[Path], int]) -> None:
        with opening, system_errors(path):
            self.fd = open_(path)
            self._closes = finalize(self, os.close, self.fd)
            self._closes.atexit = False
            super().__init__(str(path), "the verb that opened it")

    def close(self) -> None:
        if self._closes.alive:
            fcntl.flock(self.fd, fcntl.LOCK_UN)  # first, for a child that was forked just now has it, too
            self._closes()

    def _let_go(self) -> None:
        self._closes()


def _after_fork() -> None:
    for each in list(_all):
        each._is_over = True
        each._let_go()
    opening.release()


os.register_at_fork(before=opening.acquire, after_in_parent=opening.release, after_in_child=_after_fork)


class Place:
    """A path that has to go on naming the file or directory that it named when something was opened there."""

    def __init__(self, path: Path, status: os.stat_result | None = None) -> None:
        """status: of what was opened, if it was."""
        self.path = path
        with system_errors(path):
            status = status or os.stat(path)
        self._identity = status.st_dev, status.st_ino

    def check(self) -> None:
        """Raises `StoreReplaced`."""
        try:
            with system_errors(self.path):
                status = os.stat(self.path)
        except StoreUnavailable as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            raise self._replaced("was deleted or moved away") from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise self._replaced("is another one now")

    def _replaced(self, what: str) -> StoreReplaced:
        return StoreReplaced(
            f"{self.path}: {what} since the store was opened; nothing more is written or read here. "
            "Close the store, put the directory back or see which one is meant, and open that"
        )
