"""Which queue entries belong to a stretch of the log: a flush, or a repair, touches their files and no others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from store.commit_log import CommitLog
from store.dispatch import queue_entries, walk

QueueName = tuple[str, int]
Ranges = dict[QueueName, tuple[int, int]]  # queue offsets [start, end) of each queue

_NOTES = 1 << 14  # of some 400 bytes; what falls out is looked up in the log


class _Note(NamedTuple):
    begin: int  # log offset (bytes)
    end: int
    ranges: Ranges


class Unflushed:
    """The appends of one process, noted; those of others are read from the log, which says the same, more slowly.

    So it does not matter when a note is missing. One that is wrong would: only what is published is noted. Any thread
    may call.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._notes: deque[_Note] = deque(maxlen=_NOTES)

    def note(self, begin: int, end: int, ranges: Ranges) -> None:
        """An append of [begin, end) was published."""
        self._notes.append(_Note(begin, end, ranges))

    def take(self, begin: int, end: int) -> Ranges | None:
        """The entries of [begin, end), published, whose notes end with this; None where the log cannot tell."""
        found: Ranges = {}
        at = begin
        for note in self._take_notes(end):
            if note.end > at:
                if not self._read(found, at, note.begin):
                    return None
                _merge(found, note.ranges.items())
                at = note.end
        return found if self._read(found, at, end) else None

    def _take_notes(self, end: int) -> Iterable[_Note]:
        while self._notes:
            try:
                note = self._notes.popleft()
            except IndexError:  # another thread flushes, too
                return
            if note.end > end:  # it comes last, as it did
                self._notes.appendleft(note)
                return
            yield note

    def _read(self, found: Ranges, begin: int, end: int) -> bool:
        ranges = ranges_of(self._log, begin, end)
        _merge(found, (ranges or {}).items())
        return ranges is not None


def ranges_of(log: CommitLog, begin: int, end: int) -> Ranges | None:
    """The queue entries of records in [begin, end) of the log, by the log; None when it does not have them all.

    Those of a few records behind `end` may be among them.
    """
    found: Ranges = {}
    chunks = walk(log, begin, check_crc=False) if begin < end else ()
    at = begin
    for chunk in chunks:
        for topic, queue_id, offsets, _ in queue_entries(chunk):
            _merge(found, [((topic, queue_id), (int(offsets[0]), int(offsets[-1]) + 1))])
        at = chunk.end
        if at >= end:
            break
    return found if at >= end else None


def _merge(found: Ranges, ranges: Iterable[tuple[QueueName, tuple[int, int]]]) -> None:
    for name, (start, end) in ranges:
        known = found.get(name, (start, end))
        found[name] = min(start, known[0]), max(end, known[1])
