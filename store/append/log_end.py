"""The end of the log for readers: the published end, or the end that a reader finds by reading the log.

A RocketMQ broker publishes no end, so readers walk its log, record after record. They also walk a log of this project
after a crash of the machine, until it is recovered.
"""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import suppress
from itertools import islice
from pathlib import Path

from store.append.published_end import PublishedEnd, published_end_of
from store.append.watch import POLL_SECONDS
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.dispatch import SIZE_BYTES, walk
from store.disk.opened import PinnedPath
from store.format.layout import ABORT_FILE, CQ_PRE_BLANK_SIZE, LIGHT_PREFIX, PUBLISHED_END_FILE
from store.format.stored_message import decode_record
from store.model.errors import CorruptRecord, OffsetLost, StoreReplaced

_TAKEN_FROM_BROKER = "a pyspark-mq writer opened the directory of a RocketMQ broker"
_LOOKED_AT = 64 << 10  # bytes after the log's end
LOOK_SECONDS = 1.0  # check the owner if the published end has not moved for so long


class LogEnd:
    """The end of a directory's log, for readers.

    A broker or this project's writers own the directory; before the first write, neither does. If the owner changes,
    `confirm_offset` raises `StoreReplaced`.
    """

    def __init__(self, root: Path, log: CommitLog) -> None:
        """Raises `CorruptStore`."""
        self.path = root / PUBLISHED_END_FILE
        self._walk: _LogWalk | None = None
        self._root = root
        self._place = PinnedPath(root)
        self._log = log
        self._end = 0
        self._next_look = 0.0  # time.monotonic()
        self._looking = threading.RLock()  # one thread at a time advances the end; re-entrant for signal handlers
        with self._looking:
            self._decide()
            self._look()

    def _decide(self) -> None:
        self._published_end = published_end_of(self._root)
        self._passed_by: tuple[int, int, int] | None = None  # the `numbers` after which a broker appended
        if self._published_end is not None and self._broker_owned_since(self._published_end):
            self._passed_by = self._published_end.numbers

    @property
    def by_log(self) -> bool:
        return self._walk is not None

    @property
    def confirm_offset(self) -> int:
        """Log offset (bytes) after the last message that readers may see. It never steps back.

        Raises `CorruptStore`, and `StoreReplaced` within `LOOK_SECONDS` after the directory or its owner changed.
        """
        published = self._counting
        if published is not None:
            confirm_offset = published.confirm_offset
            if confirm_offset > self._end:  # a writer of ours appended
                self._end, self._next_look = confirm_offset, time.monotonic() + LOOK_SECONDS
                return confirm_offset
            if confirm_offset == self._end and time.monotonic() < self._next_look:
                return confirm_offset
        with self._looking:
            return self._look()

    @property
    def times_from(self) -> int | None:
        return self._counting.times_from if self._counting is not None else None

    @property
    def keys_from(self) -> int | None:
        return self._counting.keys_from if self._counting is not None else None

    @property
    def has_lost(self) -> bool:
        return self._published_end is not None and self._published_end.has_lost

    @property
    def rest_seconds(self) -> float:
        """Seconds between two checks of a `Watch`: a broker's start and appends send no notification."""
        return POLL_SECONDS if self.by_log else LOOK_SECONDS

    @property
    def is_at_rest(self) -> bool:
        """Whether no append is running or unfinished. False if readers walk the log."""
        published = self._counting
        return published is not None and published.announced_end <= published.confirm_offset

    def is_message(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int) -> bool:
        """Return whether a queue entry below the confirm offset belongs to a message."""
        walk = self._walk
        if walk is None or physical_offset + size <= walk.flushed:
            return True
        return is_message(self._log, topic, queue_id, queue_offset, physical_offset, size)

    def close(self) -> None:
        self._published_end = None

    @property
    def _counting(self) -> PublishedEnd | None:
        return None if self.by_log else self._published_end

    def _broker_owned_since(self, published: PublishedEnd) -> bool:
        numbers, abort = published.numbers, (self._root / ABORT_FILE).exists()
        # With its own files: an undone append may recreate a segment.
        looked_at = CommitLog(self._root, self._log.segments.size, writable=False)
        # If the numbers changed, the walk may have read records of our writer.
        return broker_owned_since(looked_at, published, abort=abort) and published.numbers == numbers

    def _look(self) -> int:
        """Call with `_looking`."""
        self._place.check()
        if self._published_end is None and not self._end:
            self._decide()
        self._must_be_same_owner()
        self._next_look = time.monotonic() + LOOK_SECONDS
        published = self._published_end
        is_unrecovered = (  # after a crash of the machine
            published is not None and not published.same_boot and published.flushed_offset < published.written_end
        )
        if published is None or self._passed_by is not None or is_unrecovered:
            self._walk = _LogWalk.advanced(self._walk, self._root, self._log, published)
            self._end = self._walk.end
        else:
            self._walk, self._end = None, published.confirm_offset
        return self._end

    def _must_be_same_owner(self) -> None:
        # This cannot detect that a broker recovers a log of this project after a crash of the machine.
        published = self._published_end
        if published is None:
            if self.path.exists():
                raise _changed_owner(self._root, _TAKEN_FROM_BROKER)
        elif published.is_replaced:
            raise _changed_owner(self._root, f"{PUBLISHED_END_FILE} was deleted or replaced")
        elif self._passed_by is not None:
            if published.numbers != self._passed_by:
                raise _changed_owner(self._root, _TAKEN_FROM_BROKER)
        elif not self.by_log and self._broker_owned_since(published):
            raise _changed_owner(self._root, "a RocketMQ broker appended to the log of a pyspark-mq writer")
        elif self._end > published.confirm_offset:  # in this order: other threads advance the end
            raise _changed_owner(self._root, f"{PUBLISHED_END_FILE} was replaced by an older one")


def _changed_owner(root: Path, what: str) -> StoreReplaced:
    return StoreReplaced(f"{root}: the directory changed owner: {what}. Close this store and open it again")


class _LogWalk:
    """Follows a log without a published end, from its last segment that begins with a record.

    flushed: log offset up to which the log was synced before a crash of the machine, otherwise 0.
    """

    def __init__(self, root: Path, log: CommitLog, flushed: int | None) -> None:
        self._root = root
        self._log = log
        start = last_segment(log)
        self.flushed = flushed or 0
        self.end = start if flushed is None else min(start, max(flushed, log.min_offset()))
        self._is_new = True

    @staticmethod
    def advanced(walk: _LogWalk | None, root: Path, log: CommitLog, published: PublishedEnd | None) -> _LogWalk:
        # After a crash of the machine, later sectors may be lost.
        flushed = None if published is None or published.same_boot else published.flushed_offset
        if walk is None or walk._is_deleted():
            walk = _LogWalk(root, log, flushed)
        walk._follow(flushed, None if published is None else failed_append_start(root, log, published))
        return walk

    def _follow(self, flushed: int | None, until: int | None) -> None:
        self._walk(flushed, until)
        if self._is_new:
            self._warn_of_bytes_after_end()
            self._is_new = False
        if flushed is not None and self.end < flushed:  # a damaged record, not the end: reading it raises
            self.end = flushed
            self._walk(flushed, until)

    def _walk(self, flushed: int | None, until: int | None) -> None:
        for chunk in walk(self._log, self.end, until=until, torn_from=flushed):
            self.end = chunk.end

    def _is_deleted(self) -> bool:
        return not self._log.segments.exists(self.end) and self.end < self._log.min_offset()

    def _warn_of_bytes_after_end(self) -> None:
        if has_bytes_after(self._log, self.end) and not (self._root / ABORT_FILE).exists():
            warnings.warn(
                f"{self._log.segments.directory}: the readable log ends at log offset {self.end}, but damaged bytes "
                "follow, and the last owner closed the directory. If a writer was killed, it may have left these "
                "bytes. Otherwise messages are missing: restore the segment from a copy",
                RuntimeWarning,
                stacklevel=2,
            )


def is_message(log: CommitLog, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int) -> bool:
    """Return whether a queue entry matches its record.

    After RocketMQ truncates its log, it keeps entries of the truncated records. New records are written there before
    the queue gets new entries.
    """
    if topic.startswith(LIGHT_PREFIX):  # whose records name the queue that they were sent to
        return True
    try:
        if log.segments.read(physical_offset, SIZE_BYTES) != size.to_bytes(SIZE_BYTES, "big"):
            return False
        if not log.can_be_record(physical_offset, size):
            return False
        record = decode_record(log.segments.read(physical_offset, size), topic, check_crc=False)
    except OffsetLost:  # deleted by retention, so the entry counted
        return True
    except CorruptRecord:
        return False
    return (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset)


def life_begin(log: CommitLog, queue: ConsumeQueue) -> int:
    """Return the log offset of a queue's first record, 0 if its first entry is not valid.

    Earlier records of the queue are from before its topic was recreated.
    """
    try:
        first = queue.first()
        offset, size, _ = queue.entries(first, first + 1)[0].item()
    except OffsetLost:
        return 0
    # A damaged entry may name an offset without a segment.
    is_entry = offset > 0 and 0 < size < CQ_PRE_BLANK_SIZE and log.segments.exists(offset)
    return offset if is_entry and is_message(log, queue.topic, queue.queue_id, first, offset, size) else 0


def broker_owned_since(log: CommitLog, published: PublishedEnd, *, abort: bool) -> bool:
    """Return whether a RocketMQ broker owned the directory after this project's last writer.

    Call this under the store lock, or use the result only if `published.numbers` are the same before and after.

    A broker continues after the last complete record of a dead writer, which may be before the announced end. Its
    records have a later store time. Only a broker deletes `abort` while a dead append is not undone. An end before the
    log's first segment, or before bytes that are no record, belongs to another log: an older file was restored. With
    `abort`, those bytes may be part of a killed broker's record.
    """
    if not abort and published.announced_end > published.confirm_offset:
        return True
    for chunk in walk(log, published.confirm_offset):
        times = chunk.records.field("store_timestamp")
        if chunk.end > published.announced_end or (times != published.store_timestamp).any():
            return True
    if not log.segments.exists(published.confirm_offset) and published.confirm_offset < log.min_offset():
        return True
    return not abort and has_bytes_after(log, published.written_end)


def failed_append_start(root: Path, log: CommitLog, published: PublishedEnd) -> int | None:
    """Return the log offset of the last append if it raised `FlushFailed`, otherwise None.

    Call this as `broker_owned_since`.
    """
    if published.has_failed and not broker_owned_since(log, published, abort=(root / ABORT_FILE).exists()):
        return published.confirm_offset
    return None


def has_bytes_after(log: CommitLog, end: int) -> bool:
    with suppress(OffsetLost):
        return bool(log.segments.read(end, _LOOKED_AT).strip(b"\0"))
    return False


def last_segment(log: CommitLog, stored_by: int | None = None) -> int:
    """Return the start of the last segment that begins with a record, or else the start of the first segment.

    stored_by: latest store time (ms) of that record.
    """
    starts = log.segments.check()
    for start in reversed(starts):
        for chunk in islice(walk(log, start), 1):
            times = chunk.records.field("store_timestamp")
            if len(times) and (stored_by is None or times[0] <= stored_by):
                return start
    return starts[0] if starts else 0
