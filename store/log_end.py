"""The end of a log that no watermark vouches for: a RocketMQ broker's, at rest or running, or one after a crash."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from store.commit_log import CommitLog
from store.dispatch import SIZE_BYTES, walk
from store.errors import CorruptRecord, OffsetLost
from store.layout import COMMIT_LOG_DIR, LIGHT_PREFIX
from store.message import decode_record
from store.watermark import Watermark


class LogEnd:
    """Has the reading side of `Watermark`.

    The log is walked once from its last segment that begins with a record, and from where it ended at every later
    look. Once a writer of ours has recovered the directory, its watermark counts.
    """

    def __init__(self, root: Path, log: CommitLog) -> None:
        self.path = root / COMMIT_LOG_DIR
        self._root = root
        self._log = log
        self._end: int | None = None
        self._watermark: Watermark | None = None

    @property
    def confirm_offset(self) -> int:
        """Commit log offset (bytes) after the last whole record with a right CRC."""
        self._watermark = self._watermark or usable_watermark(self._root, self._log)
        if self._watermark is not None:
            return self._watermark.confirm_offset
        if self._end is None or (not self._log.segments.exists(self._end) and self._end < self._log.min_offset()):
            self._end = last_segment(self._log)  # at first, or when retention was faster
        for chunk in walk(self._log, self._end):
            self._end = chunk.end
        return self._end

    def is_message(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int) -> bool:
        """Whether a queue entry is what its record says.

        RocketMQ leaves entries of records that it truncated; the log grows over them before the queue does.
        """
        if topic.startswith(LIGHT_PREFIX):  # its records name the queue they were sent to
            return True
        try:
            if self._log.segments.read(physical_offset, SIZE_BYTES) != size.to_bytes(SIZE_BYTES, "big"):
                return False
            record = decode_record(self._log.segments.read(physical_offset, size), topic, check_crc=False)
        except OffsetLost:  # deleted by retention: its time has been
            return True
        except CorruptRecord:
            return False
        return (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset)

    def close(self) -> None:
        """Drop the watermark, if one was found."""
        if self._watermark is not None:
            self._watermark.close()


def usable_watermark(root: Path, log: CommitLog) -> Watermark | None:
    """The watermark that readers may believe, opened; None when there is none, or when it has been overtaken.

    Raises `CorruptStore` for a file that is none.
    """
    try:
        watermark = Watermark(root, writable=False)
    except FileNotFoundError:
        return None
    on_device = watermark.flushed_offset >= max(watermark.confirm_offset, watermark.announced_end)
    if (watermark.same_boot or on_device) and not goes_on(log, watermark):
        return watermark
    watermark.close()
    return None


def goes_on(log: CommitLog, watermark: Watermark) -> bool:
    """Whether somebody appended behind the watermark: a RocketMQ broker that had the directory after us."""
    return any(chunk.end > watermark.announced_end for chunk in walk(log, watermark.confirm_offset))


def was_overtaken(log: CommitLog, watermark: Watermark, *, abort: bool) -> bool:
    """Whether a RocketMQ broker had the directory since the last writer of ours. Call under the store lock.

    abort: whether the file is there. Where a writer died, a broker goes on behind its last whole record, maybe below
    the announced end; the records of one append have the watermark's time, a broker's have a later one. And who
    leaves in good order, without `abort`, cleans up what one of ours announced: a broker does so by keeping it.
    """
    if not abort and watermark.announced_end > watermark.confirm_offset:
        return True
    for chunk in walk(log, watermark.confirm_offset):
        times = chunk.records.field("store_timestamp")
        if chunk.end > watermark.announced_end or (times != watermark.store_timestamp).any():
            return True
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
