"""What the log says of its queues: where each ends, and which of several records with one queue offset counts.

A RocketMQ broker restarts the queues of a recreated topic at 0, and so did earlier versions. The log then has records
with the same topic, queue and offsets: those of the newest life count. It is known by its queue offsets, which go back;
and as no checksum covers them, the queue's own entries must not say otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from store.format.layout import CQ_ENTRY, CQ_PRE_BLANK_SIZE
from store.format.record_view import Ints
from store.log.consume_queue import Entries, IsMessage
from store.log.consume_queues import ConsumeQueues, QueueName
from store.model.errors import OffsetLost

_MAX_OFFSET = (1 << 62) // CQ_ENTRY.itemsize  # a queue's file must have a place for it


class Life(NamedTuple):
    """From here on a queue's records are those that count, up to the next life."""

    start: int  # queue offset of its first record
    at: int  # log offset of that record


@dataclass(slots=True)
class QueueInLog:
    """One queue, as far as the log was walked.

    max_offset: queue offset after its last record. lives: both numbers of them ascend; none while no record was seen.
    is_cut: the first record that is seen may have any offset, for the log's beginning was deleted. is_remembered: all
    that is known is its end, and not by its files. restarted_at: log offset of the record that went back, 0 without
    one. passed_over: queue and log offsets of records that say they stand here, and do not.
    """

    max_offset: int
    is_cut: bool
    lives: list[Life] = field(default_factory=list)
    is_remembered: bool = False
    restarted_at: int = 0
    passed_over: set[tuple[int, int]] = field(default_factory=set)

    @property
    def begin(self) -> int:
        """Queue offset of the first record that counts; the end without one."""
        return self.lives[0].start if self.lives else self.max_offset

    def grow(self, start: int, at: int, count: int) -> None:
        """Take `count` consecutive records, of which the first is offset `start`, at log offset `at`."""
        if start != self.max_offset or not self.lives:
            self.lives = [*(life for life in self.lives if life.start < start), Life(start, at)]
        self.max_offset = start + count

    def counting(self, offsets: Ints, entries: Entries) -> slice:
        """Which of consecutive entries count, now that the whole log was walked."""
        if not self.lives or (int(offsets[0]), int(entries["physical_offset"][0])) in self.passed_over:
            return slice(0, 0)
        first = int(np.searchsorted(entries["physical_offset"].astype(np.int64), self.lives[0].at))
        if first == len(entries):
            return slice(first, first)
        at = int(entries["physical_offset"][first])
        end = next((life.start for life in self.lives if life.at > at), self.max_offset)
        return slice(first, max(first, int(np.searchsorted(offsets, end))))


class QueuesInLog:
    """All queues of one walk."""

    def __init__(self, queues: ConsumeQueues, is_message: IsMessage, first_byte: int) -> None:
        """is_message: whether a queue's entry is what its record says. first_byte: of the log that there is."""
        self.found: dict[QueueName, QueueInLog] = {}
        self._queues = queues
        self._is_message = is_message
        self._is_cut = first_byte > 0

    def begin(self, name: QueueName, max_offset: int) -> QueueInLog:
        """A queue that has `max_offset` entries before the walk's first record.

        Where there are none, and the log has its first byte, its first files may be lost: it begins at `Topics.begin`.
        """
        of_files = self._queues.of(*name)
        is_bare = max_offset == of_files.first()
        queue = QueueInLog(max_offset if self._is_cut or not is_bare else of_files.begin, self._is_cut and is_bare)
        self.found[name] = queue
        return queue

    def add(self, name: QueueName, offsets: Ints, entries: Entries) -> bool:
        """Take consecutive records of a queue; whether they may follow those before."""
        queue = self.found.get(name) or self.begin(name, self._queues.of(*name).first())
        start, at = int(offsets[0]), int(entries["physical_offset"][0])
        follows = start == queue.max_offset or (not queue.lives and self._begins(name, queue, start, at))
        if not 0 <= start < _MAX_OFFSET or not (follows or self._begins_life(name, queue.max_offset, start, at)):
            return False
        queue.restarted_at = queue.restarted_at if follows else at
        queue.grow(start, at, len(offsets))
        return True

    def pass_over(self, name: QueueName, offset: int, at: int) -> None:
        """Let the record at log offset `at`, which may not follow, count for nothing in this queue."""
        self.found[name].passed_over.add((offset, at))

    def warn_of_passed_over(self) -> None:
        """Warns where there are such records."""
        found = [(at, name) for name, queue in self.found.items() for _, at in queue.passed_over]
        if found:
            at, (topic, _) = min(found)
            warnings.warn(
                f"{len(found)} records of the log say that they stand in light queues, where others do, or where the "
                f"queue does not go on; there they are passed over. The first is at log offset {at}, of {topic}. As a "
                "rule a client made that up, of a broker without light queues",
                RuntimeWarning,
                stacklevel=2,
            )

    def leave_out_deleted(self, existing: Collection[QueueName]) -> None:
        """Drop queues that ended with an older life of their topic: other queues have a newer one, these no folder.

        existing: queues that have one. Call behind the last record.
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
        """Whether the record at log offset `at` is the first that is left: also where the queue says so itself, and
        entries of older ones are damaged.
        """
        return queue.is_cut or (self._is_cut and start > queue.max_offset and self._entry(name, start)[0] == at)

    def _begins_life(self, name: QueueName, max_offset: int, start: int, at: int) -> bool:
        """Whether the record at log offset `at` begins a life: it goes back, and the queue does not know better.

        The queue does where it has this record at its end: then the record's offset is damaged. And where it has a
        sound older record at this offset: it would have been deleted with its life.
        """
        if start >= max_offset or self._entry(name, max_offset)[0] == at:
            return False
        older, size = self._entry(name, start)
        is_older = 0 <= older < at and 0 < size < CQ_PRE_BLANK_SIZE
        return not (is_older and self._is_message(*name, start, older, size))

    def _entry(self, name: QueueName, index: int) -> tuple[int, int]:
        """Log offset and size in an entry of the queue, (-1, 0) without one, or for an empty one."""
        try:
            offset, size, _ = self._queues.of(*name).entries(index, index + 1)[0].item()
        except OffsetLost:
            return -1, 0
        return (offset, size) if size else (-1, 0)
