"""Which queue entries belong to a stretch of the log: a flush, or a repair, touches their files and no others."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from store.format.arrays import numbers
from store.log.commit_log import CommitLog
from store.log.consume_queues import ConsumeQueues, QueueName
from store.log.dispatch import LogChunk, walk

Ranges = dict[QueueName, tuple[int, int]]  # queue offsets [start, end) of each queue

_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1
_QUEUE_COSTS = 64 << 10  # bytes of log that are read in the time of flushing a queue that has nothing new
_MUCH = 4 << 20  # bytes of log that are read in less time than queues are listed
_NOTES = 1 << 14  # of some 400 bytes; what falls out is looked up in the log
NOTHING: Mapping[str, int] = {}


class _Note(NamedTuple):
    begin: int  # log offset (bytes)
    end: int
    ranges: Ranges


class Unflushed:
    """The appends of one process, noted; those of others are read from the log, which says the same, more slowly.

    So it does not matter when a note is missing. One that is wrong would: only what is published is noted. Any thread
    may call.
    """

    def __init__(self, log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = log
        self._queues = queues
        self._notes: deque[_Note] = deque(maxlen=_NOTES)

    def note(self, begin: int, end: int, ranges: Ranges) -> None:
        """An append of [begin, end) was published."""
        self._notes.append(_Note(begin, end, ranges))

    def take(self, begin: int, end: int, deleted: Mapping[str, int] = NOTHING) -> Ranges | None:
        """The entries of [begin, end), published, whose notes end with this. deleted: as `ranges_of` takes it.

        None where the log cannot tell, or where others put so much that flushing all queues takes less time.
        """
        notes = [note for note in self._take_notes(end) if note.end > begin]
        unknown = end - begin - sum(note.end - note.begin for note in notes)
        if unknown > _MUCH and unknown > _QUEUE_COSTS * len(self._queues.existing()):
            return None
        found: Ranges = {}
        at = begin
        for note in (*notes, _Note(end, end, {})):
            ranges = ranges_of(self._log, at, note.begin, deleted)
            if ranges is None:
                return None
            _merge(found, ranges.items())
            _merge(found, ((name, its) for name, its in note.ranges.items() if note.begin >= deleted.get(name[0], 0)))
            at = note.end
        return found

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


def ranges_of(log: CommitLog, begin: int, end: int, deleted: Mapping[str, int] = NOTHING) -> Ranges | None:
    """The queue entries of messages put in [begin, end) of the log, by the log; None when it does not have them all.

    What is put enters the queue that it names and no other (see `entering`). deleted: topics and the log offsets where
    they were deleted: what stands before went with its queues.
    """
    found: Ranges = {}
    chunks = walk(log, begin, until=end, check_crc=False)
    at = begin
    for chunk in chunks:
        _merge(found, _ranges_in(chunk, deleted))
        at = chunk.end
    return found if at >= end else None


def _ranges_in(chunk: LogChunk, deleted: Mapping[str, int]) -> Iterator[tuple[QueueName, tuple[int, int]]]:
    offsets = chunk.records.field("queue_offset")
    topics = numbers(chunk.topics.indices).astype(np.int64)
    queues = topics << _ID_BITS | chunk.records.field("queue_id")
    order = np.argsort(queues, kind="stable")  # so those of a queue ascend
    if any(at > chunk.begin for at in deleted.values()):
        begins = np.array([deleted.get(name.decode(), 0) for name in chunk.topics.dictionary.to_pylist()], np.int64)
        order = order[(chunk.offsets >= begins[topics])[order]]
    bounds = np.flatnonzero(np.diff(queues[order], prepend=-1, append=-1))
    for start, end in itertools.pairwise(bounds.tolist()):
        first, last = order[start], order[end - 1]
        topic = chunk.topics.dictionary[int(topics[first])].as_py().decode()
        yield (topic, int(queues[first]) & _ID_MASK), (int(offsets[first]), int(offsets[last]) + 1)


def _merge(found: Ranges, ranges: Iterable[tuple[QueueName, tuple[int, int]]]) -> None:
    for name, (start, end) in ranges:
        known = found.get(name, (start, end))
        found[name] = min(start, known[0]), max(end, known[1])
