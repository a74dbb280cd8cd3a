"""`Levels`: messages with a delay level, in one queue of SCHEDULE_TOPIC for each level (ScheduleMessageService).

The queue entries have the due times, which ascend unless the clock was set back. Then a message is delivered only after
those before it in the queue. Messages stored while the clock was far ahead are the exception: they are due at once, as
in a broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from store.append.appender import FAR_MS
from store.delays.timers import Due
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.consume_queues import ConsumeQueues, Ends
from store.disk.queue_files import Entries
from store.disk.queues_in_log import first_remaining, resume_after_lost
from store.format.delayed import LEVELS
from store.format.layout import CQ_PRE_BLANK_SIZE, RECORD_HEADER, SCHEDULE_TOPIC, field_offset
from store.model.errors import OffsetLost
from store.model.log_protocol import Int64s

_logger = logging.getLogger("store")
_LOOK = 4096
_NONE = np.empty(0, np.int64)
_AT_ONCE = 0  # ms since 1970
_STORED, _STORED_AT = RECORD_HEADER["store_timestamp"], field_offset(RECORD_HEADER, "store_timestamp")


@dataclass
class _Level:
    """One level. next: queue offset of its first waiting message. time: when that is due (ms), None if not read yet."""

    queue: ConsumeQueue
    next: int
    end: int = 0
    time: int | None = None


class Levels:
    """The levels of one store: RocketMQ's 18, and any others that a broker created."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        offsets: Mapping[int, int],
        confirm_offset: int,
        delivered: Int64s,
        ends: Ends,
    ) -> None:
        """Start after the delivered messages.

        offsets: maps each level to its next queue offset, limited to the offsets of the queue, as in RocketMQ.
        delivered: log offsets of further messages that are delivered.
        """
        self._log = log
        self._levels: dict[int, _Level] = {}
        brokers = {queue_id + 1 for topic, queue_id in [*queues.existing(), *ends] if topic == SCHEDULE_TOPIC}
        for number in sorted(brokers.union(range(1, LEVELS + 1))):
            queue = queues.of(SCHEDULE_TOPIC, number - 1)
            level = self._levels[number] = _Level(queue, max(offsets.get(number, 0), 0))
            level.end = queue.known_end(ends.get((SCHEDULE_TOPIC, number - 1), 0), confirm_offset)
            start = min(first_remaining(log, queue, level.next), level.end)
            level.next = self._behind(queue, start, level.end, delivered) if len(delivered) else start

    @property
    def offsets(self) -> dict[int, int]:
        """The queue offset of the first waiting message, by level. Levels without messages are left out."""
        return {number: level.next for number, level in self._levels.items() if level.end}

    def look(self, confirm_offset: int) -> None:
        for level in self._levels.values():
            level.end = level.queue.known_end(level.end, confirm_offset)
            if level.time is not None and level.time > _now() + FAR_MS:
                level.time = None  # the clock may have been set back

    def next_time(self) -> int | None:
        return min((time for level in self._levels.values() if (time := self._time(level)) is not None), default=None)

    def due(self, now: int) -> tuple[Due, dict[int, int]]:
        """Return some messages due at `now` (ms), and the queue offset after them, by level."""
        found, then = [], {}
        for number, level in self._levels.items():
            time = self._time(level)
            if time is None or time > now:
                continue
            count = 1 if time == _AT_ONCE else _LOOK
            try:
                entries = level.queue.entries(level.next, min(level.end, level.next + count))
            except OffsetLost as error:
                self._pass_over(level, error)
                continue
            times = entries["tags_code"].astype(np.int64)
            times[0] = time
            count = int(np.argmax(times > now)) if (times > now).any() else len(entries)
            count = Due.at_once(entries["size"][:count].astype(np.int64))
            some = entries[:count]
            # If the clock was set back, later messages have earlier times; they keep their order.
            found.append(
                Due(
                    np.maximum.accumulate(times[:count]),
                    some["physical_offset"].astype(np.int64),
                    some["size"].astype(np.int64),
                )
            )
            then[number] = level.next + count
        return Due.in_order(found), then

    def oldest(self, first_byte: int, delivered: Int64s) -> int | None:
        """Return the log offset of the first waiting message at or after `first_byte`, None if there is none."""
        found = (self._oldest(level, first_byte, delivered) for level in self._levels.values())
        return min((offset for offset in found if offset is not None), default=None)

    def _time(self, level: _Level) -> int | None:
        if level.next >= level.end:
            return None
        if level.time is None:
            try:
                entry = level.queue.entries(level.next, level.next + 1)[0]
                if entry["size"] == CQ_PRE_BLANK_SIZE:
                    level.next = self._behind(level.queue, level.next, level.end)
                    return self._time(level)
                level.time = self._due_time(int(entry["tags_code"]), int(entry["physical_offset"]))
            except OffsetLost as error:
                self._pass_over(level, error)
                return self._time(level)
        return level.time

    def _due_time(self, said: int, physical_offset: int) -> int:
        latest = _now() + FAR_MS
        if said <= latest:
            return said
        try:
            stored = self._log.segments.read(physical_offset + _STORED_AT, _STORED.itemsize)
        except OffsetLost:
            return _AT_ONCE  # its loss is logged then, and later messages do not wait
        return _AT_ONCE if int(np.frombuffer(stored, _STORED)[0]) > latest else said

    def go_on(self, then: Mapping[int, int]) -> None:
        for number, offset in then.items():
            self._levels[number].next, self._levels[number].time = offset, None

    def _behind(self, queue: ConsumeQueue, first: int, end: int, delivered: Int64s = _NONE) -> int:
        """Return the queue offset of the first message from `first` on that is neither delivered nor a blank entry."""
        while first < end:
            entries, first = self._some(queue, first, end)
            is_over = np.isin(_offsets(entries), delivered) | (entries["size"] == CQ_PRE_BLANK_SIZE)
            count = int(np.argmin(np.append(is_over, False)))
            first += count
            if count < _LOOK:
                break
        return first

    def _oldest(self, level: _Level, first_byte: int, delivered: Int64s) -> int | None:
        start = level.next
        while start < level.end:
            entries, start = self._some(level.queue, start, level.end)
            offsets = _offsets(entries)
            left = offsets[(entries["size"] > 0) & (offsets >= first_byte) & ~np.isin(offsets, delivered)]
            if len(left):
                return int(left.min())  # they ascend, unless an entry is damaged
            start += len(entries)
        return None

    def _some(self, queue: ConsumeQueue, first: int, end: int) -> tuple[Entries, int]:
        while True:
            try:
                return queue.entries(first, min(end, first + _LOOK)), first
            except OffsetLost as error:
                first = resume_after_lost(self._log, queue, first, error)

    def _pass_over(self, level: _Level, lost: OffsetLost) -> None:
        first = resume_after_lost(self._log, level.queue, level.next, lost)
        what = "messages [%d, %d) were deleted before they were delivered. Keep messages longer: raise fileReservedTime"
        _logger.warning(f"%s, queue %d: {what}", level.queue.topic, level.queue.queue_id, level.next, first)
        level.next, level.time = first, None


def _offsets(entries: Entries) -> Int64s:
    offsets: Int64s = entries["physical_offset"].astype(np.int64)
    return offsets


def _now() -> int:
    return int(time.time() * 1000)
