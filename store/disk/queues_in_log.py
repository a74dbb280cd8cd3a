"""Derive the state of the queues from the log.

A RocketMQ broker restarts the queues of a recreated topic at 0. Then the log has several records with the same topic,
queue and queue offset, and only the recreated topic's records count. A *life* of a queue is the time from one restart
to the next. A life begins where queue offsets decrease. No checksum covers queue offsets, so the queue's own entries
must confirm it.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue, IsMessage
from store.disk.consume_queues import ConsumeQueues, QueueName
from store.disk.dispatch import LogChunk, light_entries, walk
from store.disk.queue_files import MAKE_ANEW, Entries
from store.format.arrays import numbers
from store.format.entering import in_own_queue
from store.format.layout import CONSUME_QUEUE_DIR, CQ_ENTRY, CQ_PRE_BLANK_SIZE, LIGHT_PREFIX
from store.format.record_view import Ints
from store.model.errors import CorruptSegment, OffsetLost
from store.model.integers import LONG_MAX

Ranges = dict[QueueName, tuple[int, int]]  # queue offsets [start, end) of each queue

_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1
_QUEUE_COSTS = 64 << 10  # bytes of log that are read in the time to flush a queue without new entries
_MUCH = 4 << 20  # bytes of log that are read faster than queues are listed
_NOTES = 1 << 14  # of 400 bytes; older appends are read from the log
NOTHING: Mapping[str, int] = {}
_MAX_OFFSET = (1 << 62) // CQ_ENTRY.itemsize  # its byte position must fit


class Life(NamedTuple):
    """The first record of a life."""

    start: int  # queue offset
    at: int  # log offset


@dataclass(slots=True)
class QueueInLog:
    """The state of one queue after a part of the log was read.

    lives: ascending; empty before the first record.
    is_cut: the log's beginning was deleted, so the first record may have any queue offset.
    is_remembered: only the end is known, and not from the queue's files.
    restarted_at: log offset of the record whose queue offset decreased, 0 if there is none.
    passed_over: queue and log offsets of records that name this queue wrongly.
    """

    max_offset: int
    is_cut: bool
    lives: list[Life] = field(default_factory=list)
    is_remembered: bool = False
    restarted_at: int = 0
    passed_over: set[tuple[int, int]] = field(default_factory=set)

    @property
    def begin(self) -> int:
        """Queue offset of the first record that counts, `max_offset` if there is none."""
        return self.lives[0].start if self.lives else self.max_offset

    def grow(self, start: int, at: int, count: int) -> None:
        """Add consecutive records. start, at: queue and log offset of the first."""
        if start != self.max_offset or not self.lives:
            self.lives = [*(life for life in self.lives if life.start < start), Life(start, at)]
        self.max_offset = start + count

    def counting(self, offsets: Ints, entries: Entries) -> slice:
        """Return which of consecutive entries count. Call this after the log was read."""
        if not self.lives or (int(offsets[0]), int(entries["physical_offset"][0])) in self.passed_over:
            return slice(0, 0)
        first = int(np.searchsorted(entries["physical_offset"].astype(np.int64), self.lives[0].at))
        if first == len(entries):
            return slice(first, first)
        at = int(entries["physical_offset"][first])
        end = next((life.start for life in self.lives if life.at > at), self.max_offset)
        return slice(first, max(first, int(np.searchsorted(offsets, end))))


class QueuesInLog:
    def __init__(self, queues: ConsumeQueues, is_message: IsMessage, first_byte: int) -> None:
        """first_byte: first log offset that retention has not deleted."""
        self.found: dict[QueueName, QueueInLog] = {}
        self._queues = queues
        self._is_message = is_message
        self._is_cut = first_byte > 0

    def begin(self, name: QueueName, max_offset: int) -> QueueInLog:
        """Add a queue that has `max_offset` entries before the first record of the walk.

        If it has none, and the log has its first byte, the first files of the queue may be lost. Then the queue begins
        at `Topics.begin`.
        """
        of_files = self._queues.of(*name)
        is_bare = max_offset == of_files.first()
        queue = QueueInLog(max_offset if self._is_cut or not is_bare else of_files.begin, self._is_cut and is_bare)
        self.found[name] = queue
        return queue

    def add(self, name: QueueName, offsets: Ints, entries: Entries) -> bool:
        """Add consecutive records, if they can follow the records before. Return whether they can."""
        queue = self.found.get(name) or self.begin(name, self._queues.of(*name).first())
        start, at = int(offsets[0]), int(entries["physical_offset"][0])
        follows = start == queue.max_offset or (not queue.lives and self._begins(name, queue, start, at))
        if not 0 <= start < _MAX_OFFSET or not (follows or self._begins_life(name, queue.max_offset, start, at)):
            return False
        queue.restarted_at = queue.restarted_at if follows else at
        queue.grow(start, at, len(offsets))
        return True

    def pass_over(self, name: QueueName, offset: int, at: int) -> None:
        self.found[name].passed_over.add((offset, at))

    def warn_of_passed_over(self) -> None:
        found = [(at, name) for name, queue in self.found.items() for _, at in queue.passed_over]
        if found:
            at, (topic, _) = min(found)
            warnings.warn(
                f"{len(found)} records name a place in a light queue that is taken, or that does not follow the "
                f"queue's last entry. The light queue leaves them out. The first is at log offset {at}, of {topic}. "
                "Clients of brokers without light queues can send such messages",
                RuntimeWarning,
                stacklevel=2,
            )

    def leave_out_deleted(self, existing: Collection[QueueName]) -> None:
        """Drop the queues that have no folder and whose topic was recreated later, because a broker deleted them.

        Call this after the last record.
        """
        restarts: dict[str, int] = {}
        for (topic, _), queue in self.found.items():
            if queue.restarted_at:
                restarts[topic] = min(restarts.get(topic, queue.restarted_at), queue.restarted_at)
        for name in self.found.keys() - set(existing):
            lives = self.found[name].lives
            if lives and lives[-1].at < restarts.get(name[0], 0):
                del self.found[name]

    def _begins(self, name: QueueName, queue: QueueInLog, start: int, at: int) -> bool:
        """Return whether this record is the queue's first that retention has not deleted.

        If the queue's own entry names this record, the record is the first, and entries before it are damaged.
        """
        return queue.is_cut or (self._is_cut and start > queue.max_offset and self._entry(name, start)[0] == at)

    def _begins_life(self, name: QueueName, max_offset: int, start: int, at: int) -> bool:
        """Return whether the record at log offset `at` begins a life: its queue offset is lower, and the queue's
        entries confirm it.

        The record's queue offset is damaged if the queue's last entry is for this record. It is also damaged if the
        queue has a valid older entry at this offset, because a restart would have deleted that entry.
        """
        if start >= max_offset or self._entry(name, max_offset)[0] == at:
            return False
        older, size = self._entry(name, start)
        is_older = 0 <= older < at and 0 < size < CQ_PRE_BLANK_SIZE
        return not (is_older and self._is_message(*name, start, older, size))

    def _entry(self, name: QueueName, index: int) -> tuple[int, int]:
        try:
            offset, size, _ = self._queues.of(*name).entries(index, index + 1)[0].item()
        except OffsetLost:
            return -1, 0
        return (offset, size) if size else (-1, 0)


class FirstEntry(NamedTuple):
    """The first entry of a queue that counts. at, size: log offset and size of its record."""

    offset: int
    at: int
    size: int

    @staticmethod
    def of(queue: ConsumeQueue) -> FirstEntry:
        """Read the first entry of a queue. Raises `OffsetLost` if retention deletes it concurrently."""
        first = queue.first()
        at, size, _ = queue.entries(first, first + 1)[0].item()
        return FirstEntry(first, at, size)


def first_remaining(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """Return `offset`, or the queue's first offset if retention deleted the entries before that.

    Raises `CorruptSegment` if the log still has records of those entries, or if damage hides whether it has.
    """
    while (first := queue.first()) > offset:
        with suppress(OffsetLost):  # retention deleted the file: try again
            if must_have_first_file(log, {(queue.topic, queue.queue_id): FirstEntry.of(queue)}):
                return first
            raise CorruptSegment(
                f"{queue}: its first entry is {first}. Whether earlier entries are lost is unknown, because the log is "
                "damaged before that entry's record. Find the damage: pyspark-mq verify"
            )
    return offset


def resume_after_lost(log: CommitLog, queue: ConsumeQueue, offset: int, lost: OffsetLost) -> int:
    """Return the queue's first offset, to resume after a read from `offset` raised `lost`. Raises `CorruptSegment`."""
    first = first_remaining(log, queue, offset)
    if first == offset:
        raise CorruptSegment(f"{queue}: a file of the queue is lost: {lost}. To do without it: {MAKE_ANEW}") from lost
    return first


def must_have_first_file(
    log: CommitLog, begins: Mapping[QueueName, FirstEntry], deleted: Mapping[str, int] = NOTHING, most: int = LONG_MAX
) -> bool:
    """Check by the log that the first files of these queues are not lost.

    Returns True if the log has no older message of these queues, False if damage or `most` prevents the check.

    deleted: see `Topics.deletions`. most: limit of the bytes to read. Raises `CorruptSegment` if the log has an older
    message of a queue.
    """
    while True:
        at = first = log.min_offset()  # read after the queues' files: retention deletes segments before these
        late = {
            name: begin for name, begin in begins.items() if begin.offset and begin.at > first and not _is_blank(begin)
        }
        end = max((begin.at for begin in late.values()), default=first)
        for chunk in walk(log, first, until=min(end, first + most), check_crc=False):
            for name, begin in late.items():
                _must_have_no_older(log, chunk, name, begin, deleted.get(name[0], 0))
            at = chunk.end
        if at >= end or log.min_offset() == first:  # else retention deleted a segment: try again
            return at >= end


def _is_blank(begin: FirstEntry) -> bool:
    return begin.size == CQ_PRE_BLANK_SIZE


def _must_have_no_older(log: CommitLog, chunk: LogChunk, name: QueueName, begin: FirstEntry, deleted: int) -> None:
    (topic, queue_id), older = name, list[int]()
    if topic in chunk.topic_names:
        offsets = chunk.records.field("queue_offset")
        rows = (chunk.topic_ids == chunk.topic_names.index(topic)) & (chunk.records.field("queue_id") == queue_id)
        rows &= (offsets < begin.offset) & (chunk.offsets >= deleted) & in_own_queue(chunk.records.field("sys_flag"))
        older += offsets[rows].tolist()
    if topic.startswith(LIGHT_PREFIX):
        entering = (piece for piece in light_entries(chunk) if piece[:2] == name)
        older += [
            int(at[0]) for _, _, at, entry in entering if at < begin.offset and entry["physical_offset"] >= deleted
        ]
    if older:
        folder = log.segments.directory.parent / CONSUME_QUEUE_DIR / topic / str(queue_id)
        raise CorruptSegment(
            f"{folder}: entries before {begin.offset} are lost or damaged, because the log has the message of offset "
            f"{older[0]}. {MAKE_ANEW}"
        )


class _Note(NamedTuple):
    begin: int  # log offset (bytes)
    end: int
    ranges: Ranges


class UnflushedEntries:
    """The queue entries of this process's recent appends, so that a flush need not read them from the log.

    Only published appends may be noted: any other note would lose entries. Thread-safe.
    """

    def __init__(self, log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = log
        self._queues = queues
        self._notes: deque[_Note] = deque(maxlen=_NOTES)

    def note(self, begin: int, end: int, ranges: Ranges) -> None:
        self._notes.append(_Note(begin, end, ranges))

    def take(self, begin: int, end: int, deleted: Mapping[str, int] = NOTHING) -> Ranges | None:
        """Return the entries of the published range [begin, end) of the log, and drop their notes.

        Return None if the log is damaged, or if flushing all queues is faster.
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
            except IndexError:  # another thread took the last note
                return
            if note.end > end:
                self._notes.appendleft(note)
                return
            yield note


def ranges_of(log: CommitLog, begin: int, end: int, deleted: Mapping[str, int] = NOTHING) -> Ranges | None:
    """Return the queue entries of the messages in [begin, end) of the log, None if the log is damaged.

    A message of this project is only in the queue that its record names (see `entering`).
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
    order = np.argsort(queues, kind="stable")  # keeps the offsets of each queue ascending
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
