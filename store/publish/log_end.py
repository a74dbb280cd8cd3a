"""Where the log ends for readers: by our published end; or by the log itself, where nobody publishes.

That is a RocketMQ broker's directory, at rest or running, also one that it took over from us; and one after a crash.
"""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import suppress
from itertools import islice
from pathlib import Path

from store.errors import CorruptRecord, OffsetLost
from store.files.opened import Place
from store.format.layout import ABORT_FILE, CQ_PRE_BLANK_SIZE, LIGHT_PREFIX, PUBLISHED_END_FILE
from store.format.stored_message import decode_record
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue
from store.log.dispatch import SIZE_BYTES, walk
from store.publish.published_end import PublishedEnd, published_end_of
from store.publish.watch import POLL_SECONDS

_LOOKED_AT = 64 << 10  # bytes behind the log's end
LOOK_SECONDS = 1.0  # a published end that has not moved for so long may be one that a broker passed by


class LogEnd:
    """What tells readers how far the log goes; has the reading side of `PublishedEnd`.

    The published end counts until somebody appended behind it who does not know it. From then on the log is walked:
    once from its last segment that begins with a record, and from where it ended at every later look. Once a writer of
    ours has recovered the directory, its published end counts again. Both are noticed while this is open.
    """

    def __init__(self, root: Path, log: CommitLog) -> None:
        """Raises `CorruptStore` for a file that is none."""
        self.path = root / PUBLISHED_END_FILE
        self.by_log = False
        self._root = root
        self._place = Place(root)
        self._log = log
        self._published_end: PublishedEnd | None = None
        self._overtaken: tuple[int, int, int] | None = None  # the numbers of a published end that does not count
        self._seen = 0  # confirm offset of the published end while it counted
        self._end = 0  # of the log, as far as it was walked
        self._flushed = 0  # up to here log and queues were on the device when the machine went down
        self._next_look = 0.0  # time.monotonic()
        # Of all threads one moves this on: answers never step back. And a signal's handler may read amid it.
        self._looking = threading.RLock()
        with self._looking:
            self._look()

    @property
    def confirm_offset(self) -> int:
        """Commit log offset (bytes) after the last message that readers may see; it never steps back.

        Raises `StoreReplaced` within `LOOK_SECONDS`, `CorruptStore`.
        """
        published = self._published_end
        if published is not None and not self.by_log:
            confirm_offset = published.confirm_offset
            if confirm_offset > self._seen:  # a writer of ours is at work
                self._seen, self._next_look = confirm_offset, time.monotonic() + LOOK_SECONDS
                return confirm_offset
            if confirm_offset == self._seen and time.monotonic() < self._next_look:
                return confirm_offset
        with self._looking:
            return self._look()

    @property
    def times_from(self) -> int | None:
        """As of `PublishedEnd`; None, not known, where that does not count."""
        return self._published_end.times_from if self._published_end is not None and not self.by_log else None

    @property
    def keys_from(self) -> int | None:
        """As of `PublishedEnd`; None, not known, where that does not count."""
        return self._published_end.keys_from if self._published_end is not None and not self.by_log else None

    @property
    def log_begin(self) -> int | None:
        """As of `PublishedEnd`; None, not known, where that does not count."""
        return self._published_end.log_begin if self._published_end is not None and not self.by_log else None

    @property
    def has_lost(self) -> bool:
        """As of `PublishedEnd`."""
        return self._published_end is not None and self._published_end.has_lost

    @property
    def rest_seconds(self) -> float:
        """How long one may sleep who waits for a publication: nobody tells of a broker's, or that one took over."""
        return POLL_SECONDS if self.by_log else LOOK_SECONDS

    @property
    def is_at_rest(self) -> bool:
        """Whether the published end says that no append is under way, nor one that died to be undone."""
        published = self._published_end
        return published is not None and not self.by_log and published.announced_end <= published.confirm_offset

    def is_message(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int) -> bool:
        """Whether a queue entry below the confirm offset counts."""
        if not self.by_log or physical_offset + size <= self._flushed:
            return True
        return is_message(self._log, topic, queue_id, queue_offset, physical_offset, size)

    def close(self) -> None:
        """Drop the published end, if there is one."""
        self._published_end = None

    def _look(self) -> int:
        """Decide which of the two counts; returns the confirm offset. Call with `_looking`."""
        self._place.check()
        self._next_look = time.monotonic() + LOOK_SECONDS
        if self._published_end is None or self._published_end.is_replaced:
            self._published_end = published_end_of(self._root)
        published = self._published_end
        if published is not None and (numbers := published.numbers) != self._overtaken:
            counts = _counts(self._root, self._log, published)
            if published.numbers != numbers:  # a writer of ours is at work, and what was seen may be its append
                return max(self._end, published.confirm_offset) if self.by_log else published.confirm_offset
            self._overtaken = None if counts else numbers
            if counts:
                self.by_log, self._seen = False, numbers[0]
                return self._seen
        # Where the machine went down: what lies before was on the device, of what lies behind sectors may be lost.
        flushed = None if published is None or published.same_boot else published.flushed_offset
        is_new = not self.by_log or self._is_deleted(self._end)
        if is_new:
            self.by_log, self._flushed = True, flushed or 0
            start = last_segment(self._log)
            self._end = max(self._seen, start if flushed is None else min(start, max(flushed, self._log.min_offset())))
        until = None if published is None else refused_from(self._root, self._log, published)
        self._follow(flushed, until)
        if is_new:
            self._warn_of_what_is_left()
        if flushed is not None and self._end < flushed:  # damage, and no end: whoever reads it is told
            self._end = flushed
            self._follow(flushed, until)
        return self._end

    def _follow(self, flushed: int | None, until: int | None) -> None:
        for chunk in walk(self._log, self._end, until=until, torn_from=flushed):
            self._end = chunk.end

    def _warn_of_what_is_left(self) -> None:
        """Warns where the log ends with what is no record, though its broker left in good order."""
        segments = self._log.segments
        if is_left(self._log, self._end) and not (self._root / ABORT_FILE).exists():
            warnings.warn(
                f"{segments.directory}: no sound record at log offset {self._end}, where what can be read ends, though "
                "whoever wrote last left in good order. One that died may have left it; if none did, messages are "
                "missing: restore the segment from a copy",
                RuntimeWarning,
                stacklevel=2,
            )

    def _is_deleted(self, at: int) -> bool:
        """Whether retention was faster."""
        return not self._log.segments.exists(at) and at < self._log.min_offset()


def is_message(log: CommitLog, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int) -> bool:
    """Whether a queue entry is what its record says.

    RocketMQ leaves entries of records that it truncated; the log grows over them before the queue does.
    """
    if topic.startswith(LIGHT_PREFIX):  # its records name the queue they were sent to
        return True
    try:
        if log.segments.read(physical_offset, SIZE_BYTES) != size.to_bytes(SIZE_BYTES, "big"):
            return False
        if not log.can_be_record(physical_offset, size):
            return False
        record = decode_record(log.segments.read(physical_offset, size), topic, check_crc=False)
    except OffsetLost:  # deleted by retention: its time has been
        return True
    except CorruptRecord:
        return False
    return (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset)


def life_begin(log: CommitLog, queue: ConsumeQueue) -> int:
    """Log offset of the first record that a queue has, 0 without a sound entry.

    Records before it that name the queue are of a topic that was deleted: it was created again.
    """
    try:
        first = queue.first()
        offset, size, _ = queue.entries(first, first + 1)[0].item()
    except OffsetLost:
        return 0
    # Damage may lead where no segment is; and where retention took one, it took all before.
    is_entry = offset > 0 and 0 < size < CQ_PRE_BLANK_SIZE and log.segments.exists(offset)
    return offset if is_entry and is_message(log, queue.topic, queue.queue_id, first, offset, size) else 0


def _counts(root: Path, log: CommitLog, published: PublishedEnd) -> bool:
    """Whether readers may believe a published end that stayed as it is meanwhile."""
    on_device = published.flushed_offset >= published.written_end
    abort = (root / ABORT_FILE).exists()
    # By itself: what is open of an append that is undone may be deleted, and made anew.
    looked_at = CommitLog(root, log.segments.size, writable=False)
    return (published.same_boot or on_device) and not was_overtaken(looked_at, published, abort=abort)


def was_overtaken(log: CommitLog, published: PublishedEnd, *, abort: bool) -> bool:
    """Whether a RocketMQ broker had the directory since the last writer of ours.

    Call under the store lock; or else it is true only if `published.numbers` are the same after it as before.
    abort: whether the file is there. Where a writer died, a broker goes on behind its last whole record, maybe below
    the announced end; the records of one append have the published end's time, a broker's have a later one. And who
    leaves in good order, without `abort`, cleans up what one of ours announced: a broker does so by keeping it. Nor is
    it the log's own that ends before the log begins, for retention keeps the last segment, or before bytes that nobody
    announced, though they are no record: it was put back. A broker that was killed may have left a part of one.
    """
    if not abort and published.announced_end > published.confirm_offset:
        return True
    for chunk in walk(log, published.confirm_offset):
        times = chunk.records.field("store_timestamp")
        if chunk.end > published.announced_end or (times != published.store_timestamp).any():
            return True
    if not log.segments.exists(published.confirm_offset) and published.confirm_offset < log.min_offset():
        return True
    return not abort and is_left(log, published.written_end)


def refused_from(root: Path, log: CommitLog, published: PublishedEnd) -> int | None:
    """Log offset behind which is what an append left that `FlushFailed` was raised for, also after a restart of the
    machine; None where there is none, or it may be what a broker appended. Call as `was_overtaken`.
    """
    if published.has_failed and not was_overtaken(log, published, abort=(root / ABORT_FILE).exists()):
        return published.confirm_offset
    return None


def is_left(log: CommitLog, end: int) -> bool:
    """Whether something lies behind the log's end: bytes that are not zero."""
    with suppress(OffsetLost):
        return bool(log.segments.read(end, _LOOKED_AT).strip(b"\0"))
    return False


def last_segment(log: CommitLog, stored_by: int | None = None) -> int:
    """Start of the last segment that begins with a record, stored by `stored_by` (ms) if given; else of the first."""
    starts = log.segments.check()
    for start in reversed(starts):
        for chunk in islice(walk(log, start), 1):
            times = chunk.records.field("store_timestamp")
            if len(times) and (stored_by is None or times[0] <= stored_by):
                return start
    return starts[0] if starts else 0
