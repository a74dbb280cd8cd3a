"""`DeliveryProgress`: which delayed messages are delivered, according to RocketMQ's files and to the log.

    delayOffset.json  {"offsetTable": {delay level: next queue offset in SCHEDULE_TOPIC},
                       "delivered": {"to": log offset, "until": ms, "timers": queue offset in TIMER_TOPIC}}
    timercheck        TIMER_CHECK

These files cover deliveries before log offset `to`. They are written after a flush up to `to`, so they are never ahead
of the log. "delivered" is not RocketMQ's; a broker drops it.

From `to` on, the log shows which messages are delivered. The deliverer puts a mark into each message that it delivers:
-1 minus the log offset of the delayed record. The mark is in the field `prepared_transaction_offset`. Brokers write no
negative number there, so the mark is unambiguous. Because message and mark are one record, a crash never leads to a
second delivery.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.delays.levels import Levels
from store.delays.timers import DeliveredTimers, Timers
from store.disk.admin_files import next_version, number, offset_table, read_json, write_json
from store.disk.atomic import read_file, write_file
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.consume_queues import ConsumeQueues
from store.disk.dispatch import walk
from store.disk.queue_ends import QueueEnds
from store.disk.topic_table import has_queues
from store.format.delayed import WAITING_TOPICS
from store.format.layout import (
    DELAY_OFFSETS_FILE,
    SCHEDULE_TOPIC,
    TIMER_CHECK,
    TIMER_CHECK_FILE,
    TIMER_CHECK_FILE_BYTES,
    TIMER_PRECISION_MS,
    TIMER_TOPIC,
)
from store.model.errors import CorruptStore
from store.model.integers import LONG_MAX
from store.model.log_protocol import Int64s
from store.upkeep.step_back import WHY

_OFFSETS = "offsetTable"
_DELIVERED = "delivered"


class DeliveryProgress(NamedTuple):
    """Which delayed messages are delivered.

    levels: maps each delay level to its next queue offset.
    delivered_to: the log offset `to`, None if a broker delivered last.
    """

    levels: Mapping[int, int]
    timers: DeliveredTimers
    delivered_to: int | None

    @staticmethod
    def read(root: Path) -> DeliveryProgress:
        """Read the progress from RocketMQ's files. Raises `CorruptStore`."""
        path = root / DELAY_OFFSETS_FILE
        content = read_json(path)
        levels = offset_table(path, _OFFSETS, content.get(_OFFSETS))
        own = content.get(_DELIVERED)
        if own is None:
            return DeliveryProgress(levels, _brokers(root / TIMER_CHECK_FILE), None)
        if not isinstance(own, dict):
            raise CorruptStore(
                f"{path}: {_DELIVERED} is not a JSON object. Correct the file, or restore it from a copy"
            )
        until, timers, to = (number(path, f"{_DELIVERED}[{key!r}]", own.get(key), LONG_MAX) for key in _KEYS)
        return DeliveryProgress(levels, DeliveredTimers(until, timers), to)

    def write(self, root: Path) -> None:
        path = root / DELAY_OFFSETS_FILE
        content = read_json(path)
        content[_OFFSETS] = {str(level): offset for level, offset in sorted(self.levels.items())}
        content[_DELIVERED] = dict(zip(_KEYS, (self.timers.until, self.timers.end, self.delivered_to), strict=True))
        next_version(path, content)
        write_json(path, content)


_KEYS = ("until", "timers", "to")


def _brokers(path: Path) -> DeliveredTimers:
    try:
        data = read_file(path, TIMER_CHECK_FILE_BYTES)
    except FileNotFoundError:
        return DeliveredTimers(0, 0)
    if len(data) < TIMER_CHECK.itemsize:
        raise CorruptStore(
            f"{path}: {len(data)} bytes, expected {TIMER_CHECK_FILE_BYTES}. Restore the file from a copy. Without a "
            "copy, delete it: messages that were already delivered may then be delivered again"
        )
    check = np.frombuffer(data, TIMER_CHECK, 1)[0]
    return DeliveredTimers(max(0, int(check["read_time"])), max(0, int(check["queue_offset"])))


def write_timer_check(root: Path, timers: DeliveredTimers, first_waiting: int) -> None:
    """Write the file from which a broker's timer continues.

    first_waiting: queue offset of the first message that the broker's timer log lacks.
    """
    path = root / TIMER_CHECK_FILE
    check = np.zeros(1, TIMER_CHECK)
    check["read_time"] = timers.until // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    check["queue_offset"], check["master_queue_offset"] = first_waiting, timers.end
    write_file(path, check.tobytes().ljust(TIMER_CHECK_FILE_BYTES, b"\0"))


FIELD = "prepared_transaction_offset"


def delivery_marks(physical_offsets: Int64s) -> Int64s:
    """Return the values of `FIELD` that mark deliveries of the records at these log offsets, shape (n,)."""
    return ~physical_offsets


def delivered_in(log: CommitLog, begin: int, end: int) -> Int64s:
    """Return the log offsets of the delayed records that the log's messages in [begin, end) deliver.

    begin and end are record boundaries.
    """
    found = [np.empty(0, np.int64)]
    for chunk in walk(log, max(begin, log.min_offset()), until=end, check_crc=False):
        marks = chunk.records.field(FIELD)
        found.append(~marks[marks < 0])
    return np.concatenate(found)


_AT_ONCE = 1 << 16
_logger = logging.getLogger("store")


def delays_step_back(root: Path, log: CommitLog, queues: ConsumeQueues, end: int) -> None:
    """Lower the progress to a log that ends at `end`, see `step_back`.

    Call it as the only writer, under the store lock, before any append. queues: may have entries up to `end`, or fewer.
    """
    try:
        said = DeliveryProgress.read(root)
    except CorruptStore:  # raised again when the deliverer reads it
        return
    why = f"has more delivered messages than the log; {WHY}"
    if said.delivered_to is not None and said.delivered_to > end:
        true = _proven(log, queues, end)
    else:
        true = _within(said, queues, end)
        if not read_json(root / DELAY_OFFSETS_FILE) and any(has_queues(root, topic) for topic in WAITING_TOPICS):
            true, why = (
                _proven(log, queues, end)._replace(timers=true.timers),
                "is lost: the log says which messages are delivered",
            )
    if true != said:
        true.write(root)
        _logger.warning("%s %s", root / DELAY_OFFSETS_FILE, why)


def _within(said: DeliveryProgress, queues: ConsumeQueues, end: int) -> DeliveryProgress:
    levels = {level: queues.at_most(SCHEDULE_TOPIC, level - 1, end, at) for level, at in said.levels.items()}
    timers = said.timers._replace(end=queues.at_most(TIMER_TOPIC, 0, end, said.timers.end))
    if (levels, timers) == (said.levels, said.timers):
        return said
    return DeliveryProgress(levels, timers, end if said.delivered_to is None else said.delivered_to)


def _proven(log: CommitLog, queues: ConsumeQueues, end: int) -> DeliveryProgress:
    delivered = np.sort(delivered_in(log, 0, end))
    levels = [
        (queue_id + 1, queues.of(topic, queue_id)) for topic, queue_id in queues.existing() if topic == SCHEDULE_TOPIC
    ]
    offsets = {level: _after_last_delivered(queue, log.min_offset(), end, delivered) for level, queue in levels}
    return DeliveryProgress(offsets, DeliveredTimers(0, 0), log.min_offset())


def _after_last_delivered(queue: ConsumeQueue, log_begin: int, end: int, delivered: Int64s) -> int:
    last = queue.max_offset(end)
    first = queue.min_offset(log_begin, last)
    while last > first:
        start = max(first, last - _AT_ONCE)
        found = np.flatnonzero(
            np.isin(queue.entries_or_zeros(start, last)["physical_offset"].astype(np.int64), delivered)
        )
        if len(found):
            return start + int(found[-1]) + 1
        last = start
    return first


def oldest_waiting(
    root: Path, log: CommitLog, queues: ConsumeQueues, confirm_offset: int, *, is_brokers: bool = False
) -> int | None:
    """Return the log offset of the first record that is not delivered yet, None if all are.

    is_brokers: a broker writes the store, so queues may lag behind the log.
    """
    progress, delivered = DeliveryProgress.read(root), np.empty(0, np.int64)
    ends = QueueEnds(confirm_offset, {})
    if not is_brokers and any(map(queues.topics.queue_count, WAITING_TOPICS)):
        ends = QueueEnds.known(root, log, confirm_offset)
        confirm_offset = ends.at  # another process may have recorded later ends
    if progress.delivered_to is not None and progress.delivered_to <= confirm_offset:
        delivered = delivered_in(log, progress.delivered_to, confirm_offset)
    levels = Levels(log, queues, progress.levels, confirm_offset, delivered, ends.of)
    by_level = levels.oldest(log.min_offset(), delivered)
    timers = Timers(log, queues, progress.timers, delivered, ends.of)
    timers.look(confirm_offset)
    waiting = timers.waiting.physical_offsets.tolist()
    return min([*([] if by_level is None else [by_level]), *waiting], default=None)
