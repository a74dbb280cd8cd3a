"""Flush the log and the queues in the background, after the appends (ASYNC_FLUSH)."""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from store.append.published_end import PublishedEnd, published_end_of
from store.disk.checkpoint import write_checkpoint
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues, QueueName
from store.disk.opened import PinnedPath
from store.disk.queues_in_log import Ranges, UnflushedEntries
from store.model.errors import FlushFailed, StoreReplaced, StoreUnavailable

_logger = logging.getLogger("store")

# If two threads flush one descriptor, the kernel reports a failure to only one.
_turns: defaultdict[Path, threading.RLock] = defaultdict(threading.RLock)
os.register_at_fork(after_in_child=_turns.clear)


class Flusher:
    """Flushes new appends in the background, including those of other processes, which may have died.

    Syncs log *and* queues up to the published end's flushed offset, where recovery begins after a crash of the machine.
    A failed flush ends this for good, see `FlushFailed`.
    """

    def __init__(
        self,
        published: PublishedEnd,
        log: CommitLog,
        queues: ConsumeQueues,
        unflushed: UnflushedEntries,
        note: Callable[[int, int, Ranges], None],
        place: PinnedPath,
    ) -> None:
        """note: called after a flush with begin, end (log offsets) and queue entries.
        log: with its own descriptors, see `CommitLog.opened_again`.
        """
        self._published_end = published
        self._root = published.path.parent
        self._log = log
        self._queues = queues
        self._unflushed = unflushed
        self._flushed_to: dict[QueueName, int] = {}
        self._note = note
        self._interval = threading.TIMEOUT_MAX
        self._place = place
        self._after_flush: Callable[[], None] = _nothing
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()  # for concurrent first appends

    def start(self, interval: float, after_flush: Callable[[], None]) -> None:
        """Start to flush after appends.

        interval: seconds between two flushes. after_flush: called now, and after each flush.
        """
        after_flush()
        self._interval, self._after_flush = interval, after_flush
        self.appending()

    def appending(self) -> None:
        """Start the background thread, unless it runs."""
        if self._is_running:
            return
        with self._starting:
            if not self._is_running:
                thread = threading.Thread(target=self._run, name="mq-flush", daemon=True)
                thread.start()
                self._thread = thread  # after `start`, because `end` joins it

    @property
    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End the background thread, and flush once more. Raises `FlushFailed`."""
        self.end()
        self.flush()

    def end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._log.segments.forget()

    def flush(self) -> None:
        """Sync everything published so far. Raises `FlushFailed`, also in all later calls."""
        with _turns[self._root]:
            self._published_end.check_device()
            with self._published_end.recording_failure():
                flushed = self._flush_published()
        if flushed is not None:
            self._note(*flushed)

    def _flush_published(self) -> tuple[int, int, Ranges] | None:
        self._place.check()  # or this would write the checkpoint into another store
        store_timestamp = self._published_end.store_timestamp
        begin, end = self._published_end.flushed_offset, self._published_end.confirm_offset
        if end <= begin:
            return None
        self._log.segments.flush(begin, end)
        ranges = self._entries(begin, end)
        for name, entries in ranges.items():
            self._queues.of(*name).flush(*entries)
        self._published_end.mark_flushed(end)
        self._flushed_to.update({name: end_of for name, (_, end_of) in ranges.items()})
        self._published_end.flush()
        # It may belong to an announced append after `end`. RocketMQ starts its recovery 3 s earlier anyway.
        write_checkpoint(self._root, store_timestamp)
        return begin, end, ranges

    def _entries(self, begin: int, end: int) -> Ranges:
        ranges = self._unflushed.take(begin, end, self._queues.topics.deletions())
        if ranges is None:
            ranges = {}
            for name in self._queues.existing():
                queue = self._queues.of(*name)
                if (stop := queue.max_offset(end)) > queue.begin:  # a failed append may leave an empty folder
                    ranges[name] = self._flushed_to.get(name) or queue.first(), stop
        return ranges

    def _run(self) -> None:
        logged = ""
        while not self._stop.wait(self._interval):
            try:
                self.flush()
                self._log.segments.close_deleted()
                self._after_flush()
                logged = ""
            except (FlushFailed, StoreReplaced):
                _logger.exception("%s: this process appends and flushes no more messages here", self._root)
                return
            except Exception as error:
                if logged != (logged := repr(error)):
                    _logger.exception("%s: flushing failed; trying again every %g s", self._root, self._interval)


@contextmanager
def flushing(root: Path) -> Iterator[None]:
    """A context in which to flush a log that the caller has not opened for writing. Raises `FlushFailed`.

    A failure is recorded for all processes that use the store, if this user may write there.
    """
    try:
        published = PublishedEnd(root, writable=True)
    except StoreUnavailable:  # a broker's directory, or another user's
        yield
        return
    with closing(published), _turns[root]:
        with published.recording_failure():
            yield
        published.check_device()


def flush_log(root: Path) -> None:
    """Flush the log up to the published end, but not the queues, which recovery rebuilds. Raises `FlushFailed`."""
    published = published_end_of(root)
    if published is None:  # a broker's directory
        return

    with closing(published), flushing(root):
        begin, end = published.flushed_offset, published.confirm_offset
        if begin < end:
            CommitLog(root, None, writable=False).segments.flush(begin, end)


def _nothing() -> None:
    pass
