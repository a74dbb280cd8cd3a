"""Delay levels: SCHEDULE_TOPIC has a queue for each, whose entries say until when their messages wait
(ScheduleMessageService).

All messages of a level wait equally long, so a queue is in the order in which its messages are due.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from store.any_log import Int64s
from store.delays.due import Due
from store.errors import OffsetLost
from store.format.delayed import LEVELS
from store.format.layout import SCHEDULE_TOPIC
from store.log.consume_queue import ConsumeQueue
from store.log.consume_queues import ConsumeQueues

_logger = logging.getLogger("store")
_LOOK = 4096  # entries that are read at once


@dataclass
class _Level:
    """How far one level is. next: queue offset of the first message that waits. time: when that is due, if known."""

    queue: ConsumeQueue
    next: int
    end: int = 0
    time: int | None = None


class Levels:
    """The levels of one store, for the one who delivers what waits there."""

    def __init__(self, queues: ConsumeQueues, offsets: Mapping[int, int], confirm_offset: int) -> None:
        """offsets: level to the queue offset where it goes on, as `delayOffset.json` has them.

        As in RocketMQ they are lifted to where a queue begins, and lowered to where it ends.
        """
        self._levels: dict[int, _Level] = {}
        for level in range(1, LEVELS + 1):
            queue = queues.of(SCHEDULE_TOPIC, level - 1)
            first, end = queue.first(), queue.max_offset(confirm_offset)
            self._levels[level] = _Level(queue, min(max(offsets.get(level, 0), first), end), end)

    @property
    def offsets(self) -> dict[int, int]:
        """Level to the queue offset of the first message that waits; of levels that ever had any."""
        return {number: level.next for number, level in self._levels.items() if level.end}

    def look(self, confirm_offset: int) -> None:
        """Notice what was put since."""
        for level in self._levels.values():
            level.end = level.queue.max_offset(confirm_offset)

    def next_time(self) -> int | None:
        """When the next message is due, ms since 1970; None where none waits."""
        return min((time for level in self._levels.values() if (time := _time(level)) is not None), default=None)

    def due(self, now: int) -> tuple[Due, dict[int, int]]:
        """What is due at `now` (ms), some of each level; and how far the levels are once it is delivered."""
        found, then = [], {}
        for number, level in self._levels.items():
            time = _time(level)
            if time is None or time > now:
                continue
            try:
                entries = level.queue.entries(level.next, min(level.end, level.next + _LOOK))
            except OffsetLost:
                _pass_over(level)
                continue
            times = entries["tags_code"].astype(np.int64)
            count = int(np.argmax(times > now)) if (times > now).any() else len(entries)
            count = Due.at_once(entries["size"][:count].astype(np.int64))
            some = entries[:count]
            # Where the clock was set back, later ones of a level are due earlier; they stay behind those before them.
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
        """Log offset of the first message that waits and that the log has, from `first_byte` on; None without one.

        delivered: log offsets of those that do not wait, whatever the levels say.
        """
        found = (_oldest(level, first_byte, delivered) for level in self._levels.values())
        return min((offset for offset in found if offset is not None), default=None)

    def go_on(self, then: Mapping[int, int]) -> None:
        """Levels are so far now."""
        for number, offset in then.items():
            self._levels[number].next, self._levels[number].time = offset, None


def _time(level: _Level) -> int | None:
    if level.next >= level.end:
        return None
    if level.time is None:
        try:
            level.time = int(level.queue.entries(level.next, level.next + 1)["tags_code"][0])
        except OffsetLost:
            _pass_over(level)
            return _time(level)
    return level.time


def _oldest(level: _Level, first_byte: int, delivered: Int64s) -> int | None:
    for start in range(level.next, level.end, _LOOK):
        entries = level.queue.entries_left(start, min(level.end, start + _LOOK))
        offsets = entries["physical_offset"].astype(np.int64)
        left = offsets[(entries["size"] > 0) & (offsets >= first_byte) & ~np.isin(offsets, delivered)]
        if len(left):
            return int(left[0])
    return None


def _pass_over(level: _Level) -> None:
    """What retention took, though it waited."""
    first = max(level.next, level.queue.first())
    what = "messages [%d, %d) were deleted before they were delivered; keep them longer (fileReservedTime)"
    if first > level.next:
        _logger.warning(f"%s, queue %d: {what}", level.queue.topic, level.queue.queue_id, level.next, first)
    level.next, level.time = first, None
