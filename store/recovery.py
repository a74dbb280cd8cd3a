"""Where a log ends when no watermark of this boot says so, and making its queues agree with it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from store.commit_log import CommitLog
from store.consume_queue import ConsumeQueue
from store.dispatch import queue_entries, walk
from store.layout import COMMIT_LOG_DIR
from store.watermark import Watermark


class LogEnd:
    """The end of the log of a directory without a watermark: a RocketMQ broker's, at rest or running.

    Has the reading side of `Watermark`. The log is walked once from its last segment that begins with a record,
    and from where it ended at every later look.
    """

    def __init__(self, root: Path, log: CommitLog) -> None:
        self.path = root / COMMIT_LOG_DIR
        self._log = log
        self._end: int | None = None

    @property
    def confirm_offset(self) -> int:
        """Commit log offset (bytes) after the last whole record with a right CRC."""
        if self._end is None:
            self._end = _last_good_segment(self._log)
        for chunk in walk(self._log, self._end):
            self._end = chunk.end
        return self._end

    def close(self) -> None:
        """Nothing is held."""


def recover(
    root: Path,
    log: CommitLog,
    queue: Callable[[str, int], ConsumeQueue],
    existing_queues: Callable[[], list[tuple[str, int]]],
    begin: int | None,
) -> None:
    """Make log and queues agree, and write a clean watermark. Call as the only writer.

    begin: log offset up to which everything is known to be on the device; None walks the whole log. Records
    from there on are checked as RocketMQ's abnormal recovery does; the first bad one ends the log. What lies
    behind it is zeroed, in the queues too; entries that are missing before it are written again.
    """
    starts = log.segments.check()
    begin = (starts[0] if starts else 0) if begin is None else begin
    for name in existing_queues():
        queue(*name).truncate(queue(*name).tail(begin))
    end, store_timestamp = begin, 0
    for chunk in walk(log, begin):
        end = chunk.end
        if len(chunk.records):
            store_timestamp = max(store_timestamp, int(chunk.records.field("store_timestamp").max()))
        for topic, queue_id, queue_offsets, entries in queue_entries(chunk):
            queue(topic, queue_id).write_first(int(queue_offsets[0]), entries)
    if starts:
        log.segments.zero(end, starts[-1] + log.segments.size)
    log.segments.flush(begin, end)
    Watermark.create(root, end, store_timestamp)


def _last_good_segment(log: CommitLog) -> int:
    starts = log.segments.check()
    for start in reversed(starts):
        if any(len(chunk.records) for chunk in islice(walk(log, start), 1)):
            return start
    return starts[0] if starts else 0
