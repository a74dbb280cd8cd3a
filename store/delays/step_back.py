"""What is said to be delivered of more log than there is, steps back to what the log proves.

See `upkeep.step_back`. What our own file says of a longer log says nothing of this one: what is delivered there, waits
here. The log tells, for each message that was delivered names the one that had waited. It does, too, where the file is
lost.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from store.delays.delivered import delivered_behind
from store.delays.progress import Progress
from store.delays.timers import Known
from store.files.admin_files import read_json
from store.format.delayed import WAITING_TOPICS
from store.format.layout import DELAY_OFFSETS_FILE, SCHEDULE_TOPIC, TIMER_TOPIC
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue
from store.log.consume_queues import ConsumeQueues
from store.model.errors import CorruptStore
from store.model.log_protocol import Int64s
from store.upkeep.step_back import WHY

_AT_ONCE = 1 << 16  # queue entries
_logger = logging.getLogger("store")


def delays_step_back(root: Path, log: CommitLog, queues: ConsumeQueues, end: int) -> None:
    """The log ends at log offset `end`; `queues` expect what they had then, or less. Call as the only writer, under
    the store lock, before anything is appended.
    """
    try:
        said = Progress.read(root)
    except CorruptStore:  # whoever needs it is told
        return
    why = f"says of more than the log has what is delivered; {WHY}"
    if said.delivered_to is not None and said.delivered_to > end:
        true = _proven(log, queues, end)
    else:
        true = _within(said, queues, end)
        if not read_json(root / DELAY_OFFSETS_FILE) and any(map(queues.topics.has_queues, WAITING_TOPICS)):
            true, why = (
                _proven(log, queues, end)._replace(timers=true.timers),
                "is lost: what is delivered is what the log says",
            )
    if true != said:
        true.write(root)
        _logger.warning("%s %s", root / DELAY_OFFSETS_FILE, why)


def _within(said: Progress, queues: ConsumeQueues, end: int) -> Progress:
    """As it was said, of messages that are there."""
    levels = {level: queues.at_most(SCHEDULE_TOPIC, level - 1, end, at) for level, at in said.levels.items()}
    timers = said.timers._replace(end=queues.at_most(TIMER_TOPIC, 0, end, said.timers.end))
    if (levels, timers) == (said.levels, said.timers):
        return said
    return Progress(levels, timers, end if said.delivered_to is None else said.delivered_to)


def _proven(log: CommitLog, queues: ConsumeQueues, end: int) -> Progress:
    """What the log says: levels go on behind the last that is delivered, each of the timers tells for itself."""
    delivered = np.sort(delivered_behind(log, 0, end))
    levels = [
        (queue_id + 1, queues.of(topic, queue_id)) for topic, queue_id in queues.existing() if topic == SCHEDULE_TOPIC
    ]
    offsets = {level: _behind_last(queue, log.min_offset(), end, delivered) for level, queue in levels}
    return Progress(offsets, Known(0, 0), log.min_offset())


def _behind_last(queue: ConsumeQueue, log_begin: int, end: int, delivered: Int64s) -> int:
    """Queue offset behind the last of these that is in the queue; where it begins without one. Delivered: ascending."""
    last = queue.max_offset(end)
    first = queue.min_offset(log_begin, last)
    while last > first:
        start = max(first, last - _AT_ONCE)
        found = np.flatnonzero(np.isin(queue.entries_left(start, last)["physical_offset"].astype(np.int64), delivered))
        if len(found):
            return start + int(found[-1]) + 1
        last = start
    return first
