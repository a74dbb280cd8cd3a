"""A device that does not take what is flushed, and stores on it."""

from __future__ import annotations

import _thread
import errno
import os
from collections import defaultdict

from store import Message, MessageStore, StoreConfig

NEVER = 3_600_000
CONFIG = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    maxHashSlotNum=100,
    maxIndexNum=40,
    flushIntervalCommitLog=NEVER,
)
SYNC = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    flushIntervalCommitLog=NEVER,
    flushDiskType="SYNC_FLUSH",
)


class Device:
    """The system's flushes. The one with number `fails` does not succeed; the pages count as clean all the same."""

    def __init__(self) -> None:
        self.flushes = 0
        self.fails = -1
        self.fails_in = ""
        self.code = errno.EIO
        self.failed = ""
        self.is_interrupted = False
        self._interrupt = defaultdict[int, None](_thread.interrupt_main)  # called by no instruction that calls
        self._flush = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def take(self, name: str, fd: int) -> None:
        self.flushes += 1
        if self.flushes == self.fails or (self.fails_in and self.fails_in in os.readlink(f"/proc/self/fd/{fd}")):
            self.fails_in = ""
            self.failed = os.readlink(f"/proc/self/fd/{fd}")
            error = OSError(self.code, os.strerror(self.code))
            if self.is_interrupted:
                self._interrupt[0]  # what the interpreter looks at next is in the caller
            raise error
        self._flush[name](fd)

    def fail(self, number: int) -> None:
        self.flushes, self.fails, self.failed = 0, number, ""

    def fail_in(self, folder: str) -> None:
        """The next flush of a file there."""
        self.fails_in = folder


def put(store: MessageStore, first: int, last: int) -> None:
    store.put_many([Message("t", f"{n}".encode(), queue_id=n % 2, keys=f"k{n}") for n in range(first, last)])
