from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from store.append.placing import AppendResult
from store.append.published_end import PublishedEnd
from store.delays.delivery_progress import FIELD, DeliveryProgress, delivered_in, delivery_marks, write_timer_check
from store.delays.levels import Levels
from store.delays.timers import Due, Timers, write_timer_log
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues
from store.disk.queue_ends import QueueEnds
from store.disk.topics import Topics
from store.format.arrays import arrow, numbers
from store.format.delayed import WAITING_TOPICS, real_places
from store.format.layout import MAX_QUEUES, SCHEDULE_DELAYS_MS
from store.format.record_copies import CopyDestinations, RecordCopies
from store.format.records import EncodedRecords, Encoding
from store.model.errors import CorruptRecord, OffsetLost
from store.model.log_protocol import Int64s
from store.read.query import copies_at

_logger = logging.getLogger("store")

_LEVELS_SECONDS = SCHEDULE_DELAYS_MS[0] / 1000 / 5  # all levels wait longer


class DelayedAppend(Protocol):
    """`Appender.append`."""

    def __call__(self, pieces: Iterable[EncodedRecords], *, unless: Callable[[], bool]) -> AppendResult | None: ...


class Delivery:
    """Delivers the delayed messages of one store in bounded steps.

    The caller must hold the delivery lock, and call `begin` first.

    Each message with a sound record and an existing topic is delivered exactly once, even if this process or the
    machine dies (see `delivery_progress`).
    """

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        queues: ConsumeQueues,
        published: PublishedEnd,
        encoding: Encoding,
        append: DelayedAppend,
    ) -> None:
        """Read the progress, and write nothing."""
        self._root = root
        self._log = log
        self._published_end = published
        self._encoding = encoding
        self._append = append
        self._topics = Topics(root)
        progress = DeliveryProgress.read(root)
        ends = QueueEnds.known(root, log, published.confirm_offset, progress.delivered_to or 0)
        confirm = ends.at
        self._delivered = np.empty(0, np.int64)
        self._is_told = progress.delivered_to is not None and progress.delivered_to <= confirm
        if progress.delivered_to is not None and self._is_told:
            self._delivered = delivered_in(log, progress.delivered_to, confirm)
        else:
            is_known = progress.levels  # otherwise the file is lost or new
            begin = confirm if is_known else _first_waiting(queues, confirm)
            self._delivered = delivered_in(log, begin, confirm)
            progress = progress._replace(delivered_to=min(begin, published.flushed_offset))
        # Retention deletes delivered messages and their marks. A broker's retention deletes waiting messages, too.
        self._expired = log.min_offset() if self._is_told else 0
        self._levels = Levels(log, queues, progress.levels, confirm, self._delivered, ends.of)
        self._timers = Timers(log, queues, progress.timers, self._delivered, ends.of)
        self._look_at = 0.0  # time.monotonic()
        self._moved = len(self._delivered) > 0  # since the progress was recorded
        self._progress = progress
        self._noted: int | None = None  # the log must be flushed up to here before `_progress` is written

    def begin(self) -> None:
        """Write the log offset from which deliveries are recorded in the log alone."""
        if not self._is_told:
            self._progress.write(self._root)

    def look(self) -> float:
        """Read the new messages. Return the `time.monotonic()` by which to call this again."""
        confirm = self._published_end.confirm_offset
        self._timers.look(confirm)
        if time.monotonic() < self._look_at:
            return self._look_at
        self._levels.look(confirm)
        self._look_at = time.monotonic() + _LEVELS_SECONDS
        return math.inf

    def next_time(self) -> int | None:
        times = self._levels.next_time(), self._timers.next_time()
        return min((time for time in times if time is not None), default=None)

    def step(self, now: int) -> bool:
        """Deliver some messages due at `now` (ms) in one append. Return whether more are due."""
        (by_level, levels), (by_time, timers) = self._levels.due(now), self._timers.due(now)
        due = Due.in_order([by_level, by_time])
        left = due.without(self._delivered, self._expired)
        while len(left) and not self._append_all(left):
            pass
        self._levels.go_on(levels)
        self._timers.go_on(timers)
        self._moved |= len(due) > 0
        time = self.next_time()
        return time is not None and time <= now

    @property
    def is_saved(self) -> bool:
        return self._noted is None and not self._moved

    def save(self, now: int) -> None:
        """Write the progress that the last call took, if the log is flushed up to it. Then take the current progress
        for the next call.
        """
        if self._noted is not None and self._published_end.flushed_offset >= self._noted:
            self._progress.write(self._root)
            self._noted = None
        if self._noted is None and self._moved:
            known, confirm = self._timers.known(now), self._published_end.confirm_offset
            _, before, delivered_to = self._progress
            if self._timers.is_all(known):
                before, delivered_to = known, confirm
            # Otherwise the delivery marks in the log count from the offset that was saved before.
            self._progress = DeliveryProgress(self._levels.offsets, before, delivered_to)
            self._noted, self._moved = confirm, False

    def write_broker_files(self, now: int) -> None:
        """Write the files from which a broker continues. Call it after `save`."""
        if self._noted is None:
            self._progress.write(self._root)  # again: a user may have deleted it
        if (newest := self._timers.newest) is not None:
            waiting, known = self._timers.waiting, self._timers.known(now)
            write_timer_check(self._root, known, int(waiting.queue_offsets.min(initial=known.end)))
            write_timer_log(self._root, waiting, newest, known.until, now)

    def _append_all(self, due: Due) -> bool:
        deletions = self._published_end.deletions  # if a topic is deleted concurrently, append nothing
        pieces = [records for copies, offsets in self._sound(due) for records in self._records(copies, offsets)]
        return not pieces or self._append(pieces, unless=lambda: self._published_end.deletions != deletions) is not None

    def _sound(self, due: Due) -> Iterator[tuple[RecordCopies, Int64s]]:
        try:
            yield copies_at(self._log, due.physical_offsets, due.sizes), due.physical_offsets
        except (CorruptRecord, OffsetLost):
            for row in range(len(due)):
                offsets = due.physical_offsets[row : row + 1]
                try:
                    yield copies_at(self._log, offsets, due.sizes[row : row + 1]), offsets
                except (CorruptRecord, OffsetLost):
                    _logger.exception("%s: a delayed message is lost", self._root)

    def _records(self, copies: RecordCopies, offsets: Int64s) -> list[EncodedRecords]:
        topics, queue_ids, known = real_places(copies)
        encoded = topics.dictionary_encode()
        each, which = encoded.dictionary.to_pylist(), numbers(encoded.indices)
        counts = np.array([self._queue_count(topic) for topic in each], np.int64)
        known &= (counts > 0)[which] & (queue_ids < MAX_QUEUES)
        # The topic may have been recreated with fewer queues.
        queue_ids = queue_ids % np.maximum(counts, 1)[which]
        if not known.all():
            names = ", ".join(sorted(set(topics.filter(arrow(~known)).to_pylist())))
            _logger.error(
                "%s: %d delayed messages are lost, because their topics were deleted: %s",
                *(self._root, (~known).sum(), names),
            )
        rows = np.flatnonzero(known)
        if not len(rows):
            return []
        copies, offsets = copies.take(rows), offsets[rows]
        places = CopyDestinations(topics.take(arrow(rows)), queue_ids[rows], fields={FIELD: delivery_marks(offsets)})
        made = list(copies.records(places, self._encoding))
        fits = np.concatenate([records.sizes for records in made]) <= self._log.max_record_bytes
        if fits.all():
            return made
        _logger.error(
            "%s: %d delayed messages are lost, because they do not fit a commit log segment with the names of their "
            "topics",
            *(self._root, (~fits).sum()),
        )
        return self._records(copies.take(np.flatnonzero(fits)), offsets[fits])

    def _queue_count(self, topic: str) -> int:
        return 0 if topic in WAITING_TOPICS else self._topics.queue_count(topic)


def _first_waiting(queues: ConsumeQueues, end: int) -> int:
    """Return the log offset of the first delayed message ever put, `end` if there was none, 0 if unknown."""
    waited = [queues.of(*name) for name in queues.existing() if name[0] in WAITING_TOPICS]
    first = [int(queue.entries_or_zeros(0, 1)["physical_offset"][0]) for queue in waited if queue.has_files]
    return min([end, *first])  # a running append may be after `end`
