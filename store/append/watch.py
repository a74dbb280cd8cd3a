"""Wait for a publication, by the kernel's notification (see `published_end`) or by polling."""

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
from weakref import WeakSet, finalize

from store.disk.opened import Opened
from store.model.errors import StoreClosed, system_errors

if sys.platform == "linux":
    import inotify_simple

POLL_SECONDS = 0.02  # without notifications
# A signal just before a wait does not end it: Python calls the handler after the wait.
_LONGEST_WAIT_SECONDS = 1.0
if sys.platform == "linux":
    # CLOSE_WRITE: the system closes the files of a killed process.
    _IN_A_FOLDER = inotify_simple.masks.MOVE | (
        inotify_simple.flags.CREATE
        | inotify_simple.flags.DELETE
        | inotify_simple.flags.MODIFY
        | inotify_simple.flags.CLOSE_WRITE
    )
_EVENTS_AT_ONCE = 4096  # bytes; remaining events end the next wait


class Published(Protocol):
    """What a `Watch` waits for. rest_seconds: how long it may wait before its caller has to check for changes."""

    path: Path

    @property
    def rest_seconds(self) -> float: ...


class Watch(Opened):
    """Waits until a writer publishes in one of the watched files, or until a thread calls `interrupt`.

    A user has few inotify instances (128 by default), so use one `Watch` per waiting thread for any number of readers.

    A watch polls every `POLL_SECONDS` if inotify is not available or the user's limits of it are reached, and in a
    RocketMQ broker's directory.
    """

    def __init__(self, *, notified: bool = True) -> None:
        super().__init__("a watch", "MessageStore.watch()")
        self._ends: list[Published] = []
        self._ears: _WatchDescriptors | None = _WatchDescriptors(notified=notified)

    @staticmethod
    def of(end: Published) -> Watch:
        """Return a watch of one end. It polls if `end` has no file yet."""
        watch = Watch(notified=end.path.exists())
        watch.add(end)
        return watch

    @property
    def polls(self) -> bool:
        return self._rest_seconds(self._open_descriptors()) <= POLL_SECONDS

    def _rest_seconds(self, ears: _WatchDescriptors) -> float:
        return POLL_SECONDS if ears.has_to_poll else min((end.rest_seconds for end in self._ends), default=math.inf)

    def add(self, end: Published) -> None:
        """Watch one more file.

        Read its confirm offset *after* this call; otherwise a publication may be missed.
        """
        ears = self._open_descriptors()
        self._what = f"a watch of {end.path.parent}"
        self._ends.append(end)
        ears.watch_path(end.path)

    def wait(self, timeout: float) -> None:
        """Return at the next publication or interruption, or after `timeout` seconds.

        May return earlier, so check the confirm offset.
        """
        ears = self._open_descriptors()
        ears.wait(min(timeout, self._rest_seconds(ears), _LONGEST_WAIT_SECONDS))

    def interrupt(self) -> None:
        """End the current wait, or else the next one."""
        self._open_descriptors().interrupt()

    def close(self) -> None:
        """Close the watch, and end a current wait."""
        if not self._is_over:
            self._is_over = True
            ears, self._ears = self._ears, None
            if ears is not None:
                ears.interrupt()

    def _open_descriptors(self) -> _WatchDescriptors:
        ears = self._ears
        if self._is_over or ears is None:
            raise self._not_open()
        return ears

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _WatchDescriptors:
    """The descriptors of a watch.

    They are closed after their last use, because a thread may wait during `Watch.close`.
    """

    def __init__(self, *, notified: bool) -> None:
        self.notify: inotify_simple.INotify | None = None
        if sys.platform == "linux" and notified:
            try:
                self.notify = inotify_simple.INotify(nonblocking=True)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOSYS):
                    raise
                _warn_of_polling("fs.inotify.max_user_instances", error)
        self.has_to_poll = self.notify is None  # for one or more of the files
        with system_errors("a watch"):
            self._interrupted, self._interrupt = os.pipe()
        finalize(self, _close, self.notify, self._interrupted, self._interrupt).atexit = False
        os.set_blocking(self._interrupted, False)
        os.set_blocking(self._interrupt, False)
        self._poll = select.poll()
        self._poll.register(self._interrupted, select.POLLIN)
        if self.notify is not None:
            self._poll.register(self.notify.fileno(), select.POLLIN)

    def watch_path(self, path: Path) -> None:
        if self.notify is None:
            return
        try:
            self.notify.add_watch(path, _IN_A_FOLDER if path.is_dir() else inotify_simple.flags.MODIFY)
        except OSError as error:
            if error.errno != errno.ENOSPC:  # the user's limit of watches
                raise
            _warn_of_polling("fs.inotify.max_user_watches", error)
            self.has_to_poll = True
            self.interrupt()  # so that the waiting thread begins to poll

    def wait(self, timeout: float) -> None:
        for fd, _ in self._poll.poll(max(0, math.ceil(timeout * 1000))):
            os.read(fd, _EVENTS_AT_ONCE)

    def interrupt(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of interruptions
            os.write(self._interrupt, b"!")


def _warn_of_polling(limit: str, error: OSError) -> None:
    warnings.warn(
        f"The system limit {limit} is reached ({error.strerror}), so readers poll every {POLL_SECONDS * 1000:.0f} "
        f"ms. Raise {limit} to be notified instead",
        RuntimeWarning,
        stacklevel=5,
    )


def _close(notify: inotify_simple.INotify | None, *pipe: int) -> None:
    if notify is not None:
        notify.close()
    for fd in pipe:
        os.close(fd)


class Watches:
    """A pool of watches of one end, one per waiting thread."""

    def __init__(self, end: Published) -> None:
        self._end = end
        self._unused: list[Watch] = []
        self._all: WeakSet[Watch] = WeakSet()
        self._closed = False
        self._lock = threading.RLock()  # re-entrant: a signal handler may call `close`

    def new(self) -> Watch:
        """Return a watch that does not belong to the pool. The caller must close it."""
        watch = Watch.of(self._end)
        with self._lock:
            self._all.add(watch)
            if self._closed:
                watch.interrupt()
        return watch

    @contextlib.contextmanager
    def one(self) -> Iterator[Watch]:
        with self._lock:
            watch = self._unused.pop() if self._unused else None
        watch = watch or self.new()
        try:
            yield watch
        finally:
            with self._lock:
                if self._closed:
                    watch.close()
                else:
                    self._unused.append(watch)

    def close(self) -> None:
        """End all waits, including those in watches from `new`."""
        with self._lock:
            self._closed = True
            while self._unused:
                self._unused.pop().close()
            for watch in list(self._all):
                with contextlib.suppress(StoreClosed):
                    watch.interrupt()
