"""The oldest message that waits: retention keeps it, and all behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from store.delays.delivered import delivered_behind
from store.delays.levels import Levels
from store.delays.progress import Progress
from store.delays.timers import Timers
from store.format.delayed import WAITING_TOPICS
from store.log.commit_log import CommitLog
from store.log.consume_queues import ConsumeQueues
from store.log.queue_ends import QueueEnds


def oldest_waiting(
    root: Path, log: CommitLog, queues: ConsumeQueues, confirm_offset: int, *, is_brokers: bool = False
) -> int | None:
    """Log offset of the first record before `confirm_offset` that is to be delivered still, due or not; None without.

    As files and log say it, whoever delivers. is_brokers: its queues may follow the log later. Raises `CorruptStore`
    where nobody can tell, `CorruptSegment` where a queue has not what the log says that it had.
    """
    progress, delivered = Progress.read(root), np.empty(0, np.int64)
    ends = QueueEnds(confirm_offset, {})
    if not is_brokers and any(map(queues.topics.queue_count, WAITING_TOPICS)):
        ends = QueueEnds.known(root, log, confirm_offset)
        confirm_offset = ends.at  # others may have noted more
    if progress.delivered_to is not None and progress.delivered_to <= confirm_offset:
        delivered = delivered_behind(log, progress.delivered_to, confirm_offset)
    levels = Levels(log, queues, progress.levels, confirm_offset, delivered, ends.of)
    by_level = levels.oldest(log.min_offset(), delivered)
    timers = Timers(log, queues, progress.timers, delivered, ends.of)
    timers.look(confirm_offset)
    waiting = timers.waiting.physical_offsets.tolist()
    return min([*([] if by_level is None else [by_level]), *waiting], default=None)
