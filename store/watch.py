"""Waiting for a publication: the kernel tells of it, as `watermark` describes; or one looks now and then."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

if sys.platform == "linux":
    import inotify_simple

POLL_SECONDS = 0.02  # where the system cannot notify
_EVENTS_AT_ONCE = 4096  # bytes; what is left over ends the next wait


class Published(Protocol):
    """The end of a log, as `Watch` waits for it to move. rest_seconds: for how long it may do so without a look."""

    path: Path

    @property
    def rest_seconds(self) -> float: ...


class Watch:
    """Sleeps until one of the watched watermark files is published, or `interrupt` is called.

    One thread waits; any thread may interrupt it. inotify instances are few per user (128 by default): a process
    needs one `Watch` for each thread that waits, whatever the number of readers. Without one (other systems, none
    left, `notified=False` where there is no file yet) it polls every `POLL_SECONDS`; likewise for as long as nobody
    writes the file, because a broker has the directory.
    """

    def __init__(self, *, notified: bool = True) -> None:
        self._ends: list[Published] = []
        self._notify: inotify_simple.INotify | None = None
        if sys.platform == "linux" and notified:
            try:
                self._notify = inotify_simple.INotify(nonblocking=True)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOSYS):
                    raise
                warnings.warn(
                    f"no inotify instance left ({error.strerror}): polling every {POLL_SECONDS * 1000:.0f} ms; "
                    "raise fs.inotify.max_user_instances",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self._interrupted, self._interrupt = os.pipe()
        os.set_blocking(self._interrupted, False)
        os.set_blocking(self._interrupt, False)
        self._poll = select.poll()
        self._poll.register(self._interrupted, select.POLLIN)
        if self._notify is not None:
            self._poll.register(self._notify.fileno(), select.POLLIN)

    @staticmethod
    def of(end: Published) -> Watch:
        """One that watches `end`; it polls where that has no file."""
        watch = Watch(notified=end.path.exists())
        watch.add(end)
        return watch

    @property
    def polls(self) -> bool:
        """Whether it only ends a wait now and then, for nobody tells it of a publication."""
        return self._rest_seconds <= POLL_SECONDS

    @property
    def _rest_seconds(self) -> float:
        return POLL_SECONDS if self._notify is None else min((end.rest_seconds for end in self._ends), default=math.inf)

    def add(self, end: Published) -> None:
        """Watch one more file. Read its confirm offset *after* this call, or a publication may be missed."""
        self._ends.append(end)
        if self._notify is not None:
            self._notify.add_watch(end.path, inotify_simple.flags.MODIFY)

    def wait(self, timeout: float) -> None:
        """Return at the next publication, interruption, or after `timeout` seconds, whichever is first.

        Now and then earlier, where only a look at the confirm offset tells.
        """
        timeout = min(timeout, self._rest_seconds)
        for fd, _ in self._poll.poll(max(0, math.ceil(timeout * 1000))):
            os.read(fd, _EVENTS_AT_ONCE)  # that there are some is all they say

    def interrupt(self) -> None:
        """End the wait that is under way, or else the next one, at once."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of interruptions already
            os.write(self._interrupt, b"!")

    def close(self) -> None:
        """Give the inotify instance back."""
        if self._notify is not None:
            self._notify.close()
        os.close(self._interrupted)
        os.close(self._interrupt)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Watches:
    """One `Watch` of the same end for each thread that waits at a time, kept for the next one."""

    def __init__(self, end: Published) -> None:
        self._end = end
        self._unused: list[Watch] = []
        self._closed = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self) -> Iterator[Watch]:
        """A watch that nobody else waits with."""
        with self._lock:
            watch = self._unused.pop() if self._unused else None
        watch = watch or Watch.of(self._end)
        try:
            yield watch
        finally:
            with self._lock:
                if self._closed:
                    watch.close()
                else:
                    self._unused.append(watch)

    def close(self) -> None:
        """Give their inotify instances back; those in use, when their wait ends."""
        with self._lock:
            self._closed = True
            while self._unused:
                self._unused.pop().close()
