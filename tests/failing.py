"""Simulate a device whose flush fails."""

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
    """Replace the system's flushes. Flush number `fails` raises an error; its pages still count as clean."""

    def __init__(self) -> None:
        self.flushes = 0
        self.fails = -1
        self.fails_in = ""
        self.code = errno.EIO
        self.failed = ""
        self.is_interrupted = False
        # a lookup, because at a call the interpreter would check for signals here
        self._interrupt = defaultdict[int, None](_thread.interrupt_main)
        self._flush = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def take(self, name: str, fd: int) -> None:
        self.flushes += 1
        if self.flushes == self.fails or (self.fails_in and self.fails_in in os.readlink(f"/proc/self/fd/{fd}")):
            self.fails_in = ""
            self.failed = os.readlink(f"/proc/self/fd/{fd}")
            error = OSError(self.code, os.strerror(self.code))
            if self.is_interrupted:
                self._interrupt[0]
            raise error
        self._flush[name](fd)

    def fail(self, number: int) -> None:
        self.flushes, self.fails, self.failed = 0, number, ""

    def fail_in(self, folder: str) -> None:
        self.fails_in = folder


def put(store: MessageStore, first: int, last: int) -> None:
    store.put_many([Message("t", f"{n}".encode(), queue_id=n % 2, keys=f"k{n}") for n in range(first, last)])
