"""`Timers`: messages that are due at a given time (TimerMessageStore).

TIMER_TOPIC is ordered by put, and only properties have the due times. So all waiting messages are kept in memory, 32
bytes each, in sorted runs that are merged as they grow.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.disk.atomic import make_directory, open_file, sync_directory
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues, Ends
from store.disk.queue_files import Entries
from store.disk.queues_in_log import first_remaining, resume_after_lost
from store.format.arrays import Bytes, constant, numbers, pc
from store.format.delayed import timer_slots
from store.format.layout import (
    PROPERTY_DELIVER_AT,
    PROPERTY_TIMER_OUT,
    TIMER_BLANK,
    TIMER_LOG_DIR,
    TIMER_LOG_FILE_BYTES,
    TIMER_MAGIC,
    TIMER_MAGIC_BLANK,
    TIMER_MAGIC_ROLL,
    TIMER_PRECISION_MS,
    TIMER_ROLL_WINDOW_MS,
    TIMER_TOPIC,
    TIMER_UNIT,
    TIMER_WHEEL_FILE,
    segment_name,
)
from store.format.properties import PropertyColumns
from store.format.record_view import RecordView
from store.model.errors import OffsetLost, system_errors
from store.model.log_protocol import Int64s

# Limits of a step for each queue: 20 ms, for which appends wait, and memory.
_MOST, _MOST_BYTES = 4096, 8 << 20


class Due(NamedTuple):
    """Delayed messages. times: ms since 1970. Each field int64, shape (n,)."""

    times: Int64s
    physical_offsets: Int64s
    sizes: Int64s

    def __len__(self) -> int:
        return len(self.times)

    @staticmethod
    def in_order(parts: Sequence[Due]) -> Due:
        """Join messages in the order of their due times. Messages with equal times stay in the order of their puts."""
        columns = [np.concatenate([np.empty(0, np.int64), *column]) for column in zip(*parts, strict=True)]
        times, physical_offsets, sizes = columns or [np.empty(0, np.int64)] * 3
        order = np.lexsort((physical_offsets, times))
        return Due(times[order], physical_offsets[order], sizes[order])

    @staticmethod
    def at_once(sizes: Int64s) -> int:
        """Return how many messages of these sizes one step takes from a queue."""
        ends = np.cumsum(sizes[:_MOST])
        return min(len(ends), max(1, int(np.searchsorted(ends, _MOST_BYTES, side="right"))))

    def without(self, physical_offsets: Int64s, before: int) -> Due:
        """Return the messages that are neither at one of these log offsets nor before `before`."""
        at = self.physical_offsets
        is_before = (at >= 0) & (at < before) & (self.sizes > 0)  # keep a damaged entry: its loss is logged
        left = ~np.isin(at, physical_offsets) & ~is_before
        return Due(self.times[left], self.physical_offsets[left], self.sizes[left])


_AT_ONCE = 1 << 14
_logger = logging.getLogger("store")


class WaitingMessages(NamedTuple):
    """Messages that are not delivered yet, in the order of their due times (ms). Each field int64, shape (n,)."""

    times: Int64s
    queue_offsets: Int64s
    physical_offsets: Int64s
    sizes: Int64s

    def __len__(self) -> int:
        return len(self.times)

    @staticmethod
    def sorted(parts: Sequence[WaitingMessages]) -> WaitingMessages:
        columns = [np.concatenate([np.empty(0, np.int64), *column]) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return WaitingMessages(*(column[order] for column in columns))

    def rows(self, rows: slice | npt.NDArray[np.bool_] | Int64s) -> WaitingMessages:
        return WaitingMessages(*(column[rows] for column in self))


class DeliveredTimers(NamedTuple):
    """Delivered messages: all before queue offset `end` that were due at `until` (ms) or earlier."""

    until: int
    end: int


class Timers:
    def __init__(
        self, log: CommitLog, queues: ConsumeQueues, known: DeliveredTimers, delivered: Int64s, ends: Ends
    ) -> None:
        """Start after the delivered messages. delivered: log offsets of those that `known` does not cover."""
        self._log = log
        self._queue = queues.of(TIMER_TOPIC, 0)
        self._known = known
        self._delivered = delivered
        self._latest = known.until  # latest due time of delivered messages
        self._noted_length = ends.get((TIMER_TOPIC, 0), 0)
        self._end = 0  # queue offset up to which entries are known
        self._runs: list[WaitingMessages] = []

    def look(self, confirm_offset: int) -> None:
        """Read the new entries. A lost record is logged and skipped, unless it is before the log's begin."""
        end = self._queue.known_end(max(self._noted_length, self._end), confirm_offset)
        count, lost = _AT_ONCE, 0
        while self._end < end:
            first, log_begin = first_remaining(self._log, self._queue, self._end), self._log.min_offset()
            stop = min(end, first + count)
            try:
                entries = self._queue.entries(first, stop)
            except OffsetLost as error:
                self._end = resume_after_lost(self._log, self._queue, first, error)
                continue
            try:
                self._add(first, entries)
            except OffsetLost as error:
                if self._log.min_offset() > log_begin:
                    continue
                if stop - first > 1:
                    count = (stop - first) // 2
                    continue
                lost += 1
                if lost == 1:
                    _logger.error("%s, offset %d: a delayed message is lost: %s", TIMER_TOPIC, first, error)
            else:
                count = min(2 * count, _AT_ONCE)
            self._end = stop
        if lost > 1:
            _logger.error("%s: %d delayed messages are lost in this way; the first is named above", TIMER_TOPIC, lost)

    def _add(self, first: int, entries: Entries) -> None:
        offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        if (damaged := int((offsets < 0).sum())) > 0:  # not one before the log's begin
            _logger.error("%s: %d delayed messages are lost: entries of their queue are damaged", TIMER_TOPIC, damaged)
        there = offsets >= self._log.min_offset()
        if not there.any():
            return
        offsets, sizes, places = offsets[there], sizes[there], np.arange(first, first + len(entries))[there]
        times = _times(self._log, offsets, sizes)
        left = (times > self._known.until) | (places >= self._known.end)
        gone = left & np.isin(offsets, self._delivered)
        self._latest = max(self._latest, int(times[gone].max(initial=0)))
        found = WaitingMessages.sorted([WaitingMessages(times, places, offsets, sizes).rows(left & ~gone)])
        if len(found):
            self._runs.append(found)
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) > len(self._runs[-2]):
            self._runs[-2:] = [WaitingMessages.sorted(self._runs[-2:])]

    def next_time(self) -> int | None:
        return min((int(run.times[0]) for run in self._runs), default=None)

    def due(self, now: int) -> tuple[Due, list[int]]:
        """Return some messages due at `now` (ms), and how many are from each run."""
        ends = [int(np.searchsorted(run.times, now, side="right")) for run in self._runs]
        counts = [Due.at_once(run.sizes[:end]) for run, end in zip(self._runs, ends, strict=True)]
        parts = [run.rows(slice(count)) for run, count in zip(self._runs, counts, strict=True)]
        return Due.in_order([Due(part.times, part.physical_offsets, part.sizes) for part in parts]), counts

    def go_on(self, counts: Sequence[int]) -> None:
        for run, count in zip(self._runs, counts, strict=True):
            if count:
                self._latest = max(self._latest, int(run.times[count - 1]))
        runs = [run.rows(slice(count, None)) for run, count in zip(self._runs, counts, strict=True)]
        self._runs = [run for run in runs if len(run)]

    def known(self, now: int) -> DeliveredTimers:
        time = self.next_time()
        return DeliveredTimers(now if time is None else min(now, time - 1), self._end)

    def is_all(self, known: DeliveredTimers) -> bool:
        """Return whether `known` covers all delivered messages.

        If the clock was set back, a message may wait that was due earlier than a delivered one.
        """
        return known.until >= self._latest

    @property
    def waiting(self) -> WaitingMessages:
        return WaitingMessages.sorted(
            self._runs or [WaitingMessages(*[np.empty(0, np.int64)] * len(WaitingMessages._fields))]
        )

    @property
    def newest(self) -> tuple[int, int] | None:
        """Log offset and size of the newest message that was read, None without one."""
        if not self._end:
            return None
        entry = self._queue.entries(self._end - 1, self._end)[0]
        return int(entry["physical_offset"]), int(entry["size"])


def _times(log: CommitLog, offsets: Int64s, sizes: Int64s) -> Int64s:
    """Return the due times of records, ms since 1970, shape (n,). The time is 0 if a record has no valid one."""
    times, segments = np.zeros(len(offsets), np.int64), offsets // log.segments.size
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(offsets)]):
        begin = int(segments[first]) * log.segments.size
        view = log.segments.view(begin, log.segments.size)  # all of it: a damaged entry may point anywhere
        sound = _measured(view, offsets[first:last] - begin, sizes[first:last]).sound
        records = _measured(view, (offsets[first:last] - begin)[sound], sizes[first:last][sound])
        times[first:last][sound] = _due_times(PropertyColumns(records.properties))
    return times


def _measured(view: Bytes, positions: Int64s, sizes: Int64s) -> RecordView:
    records = RecordView(view, positions, sizes)
    records.measure_topics()
    return records


def _due_times(properties: PropertyColumns) -> Int64s:
    at, slots = (_numbers(properties.value(name)) for name in (PROPERTY_DELIVER_AT, PROPERTY_TIMER_OUT))
    # A message's own time counts if it is in its slot of RocketMQ's timer. Otherwise the end of the slot counts.
    own = (at > slots) & (at <= slots + TIMER_PRECISION_MS)
    times: Int64s = np.where(own, at, np.where(slots > 0, slots + TIMER_PRECISION_MS, 0))
    return times


def _numbers(texts: pa.StringArray) -> Int64s:
    digits = pc.match_substring_regex(texts.fill_null(constant("")), "^[0-9]{1,15}$")
    found: Int64s = numbers(pc.if_else(digits, texts, constant("0")).cast(pa.int64()))
    return found


_UNITS = (TIMER_LOG_FILE_BYTES - TIMER_BLANK.itemsize) // TIMER_UNIT.itemsize  # of a file


def write_timer_log(root: Path, waiting: WaitingMessages, newest: tuple[int, int], until: int, now: int) -> None:
    """Replace RocketMQ's timer log, from which a broker rebuilds its timer wheel.

    The log has one unit per waiting message. A broker continues reading TIMER_TOPIC after the message of the last unit,
    so that must be the newest message of TIMER_TOPIC. If the newest message is delivered already, its unit has a slot
    in the past.

    newest: log offset and size of TIMER_TOPIC's newest message. until: messages due by then are delivered.
    until, now: ms.
    """
    units = _units(waiting, newest, until // TIMER_PRECISION_MS * TIMER_PRECISION_MS, now)
    folder, making = root / TIMER_LOG_DIR, root / f"{TIMER_LOG_DIR}.tmp"
    shutil.rmtree(making, ignore_errors=True)
    make_directory(making)
    for number, first in enumerate(range(0, len(units), _UNITS)):
        blank = np.zeros(1, TIMER_BLANK)
        blank["length"] = TIMER_LOG_FILE_BYTES - _UNITS * TIMER_UNIT.itemsize
        blank["magic"] = TIMER_MAGIC_BLANK
        path = making / segment_name(number * TIMER_LOG_FILE_BYTES)
        with system_errors(path), open(open_file(path), "wb") as file:
            file.write(units[first : first + _UNITS].tobytes())
            if first + _UNITS < len(units):
                file.write(blank.tobytes())
            file.truncate(TIMER_LOG_FILE_BYTES)
    with system_errors(folder):
        (root / TIMER_WHEEL_FILE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    sync_directory(root)


def _units(waiting: WaitingMessages, newest: tuple[int, int], read_time: int, now: int) -> npt.NDArray[np.void]:
    waiting = waiting.rows(np.argsort(waiting.queue_offsets))
    written = now // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    slots = timer_slots(waiting.times)
    units = np.zeros(len(waiting) + 1, TIMER_UNIT)
    alike = {"unit_size": TIMER_UNIT.itemsize, "magic": TIMER_MAGIC, "written": written, "previous": -1}
    for name, value in alike.items():
        units[name] = value
    own = units[:-1]
    beyond = slots - written - TIMER_ROLL_WINDOW_MS
    own["magic"][beyond >= 0] |= TIMER_MAGIC_ROLL
    soon = np.where(beyond < TIMER_ROLL_WINDOW_MS // 3, TIMER_ROLL_WINDOW_MS // 2, TIMER_ROLL_WINDOW_MS)
    slots = np.where(beyond >= 0, written + soon, slots)
    own["delay"] = slots - written
    own["physical_offset"], own["size"] = waiting.physical_offsets, waiting.sizes
    files, places = np.divmod(np.arange(len(own)), _UNITS)
    positions = files * TIMER_LOG_FILE_BYTES + places * TIMER_UNIT.itemsize
    order = np.argsort(slots, kind="stable")
    same = np.diff(slots[order]) == 0
    own["previous"][order[1:]] = np.where(same, positions[order[:-1]], -1)
    if len(own) and own["physical_offset"][-1] == newest[0]:
        return own
    units[-1]["physical_offset"], units[-1]["size"] = newest
    units[-1]["delay"] = read_time - TIMER_PRECISION_MS - written
    return units
