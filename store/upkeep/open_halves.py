"""Half messages that go with old segments before anybody has ended their transactions: RocketMQ keeps them no longer.

They cannot be kept for good, for their producers may never come back. So it is said.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from store.any_log import Int64s
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import HALF_TOPIC, OP_TOPIC, TRANSACTIONS_GROUP
from store.format.op_message import offsets_ended
from store.log.commit_log import CommitLog
from store.log.consume_queues import ConsumeQueues
from store.read.query import message_at

_logger = logging.getLogger("store")
_QUEUE = 0


def warn_of_open_halves(root: Path, log: CommitLog, queues: ConsumeQueues, confirm_offset: int, until: int) -> None:
    """Warn where the log before `until`, which is about to go, has transactions that are open. Raises `CorruptStore`,
    and `CorruptRecord` where it cannot be told.
    """
    halves, first = _not_done(root, log, queues, confirm_offset, HALF_TOPIC)
    going = np.arange(first, first + int(np.searchsorted(halves, until)))
    if not len(going):
        return
    ended: set[int] = set()
    for offset in _not_done(root, log, queues, confirm_offset, OP_TOPIC)[0].tolist():
        ended.update(offsets_ended(message_at(log, offset, confirm_offset).body))
    lost = going[~np.isin(going, list(ended))]
    if len(lost):
        _logger.warning(
            "%s: %d half messages go that nobody has committed or rolled back, from offset %d of %s on: their "
            "transactions are lost; keep them longer (fileReservedTime), or let their producers' groups check",
            *(root, len(lost), lost[0], HALF_TOPIC),
        )


def _not_done(root: Path, log: CommitLog, queues: ConsumeQueues, confirm_offset: int, topic: str) -> tuple[Int64s, int]:
    """The log offsets of a topic's messages that are not known to be done with, ascending, and the queue offset of the
    first.
    """
    queue = queues.of(topic, _QUEUE)
    end = queue.max_offset(confirm_offset)
    done = ConsumerOffsets(root).offsets(TRANSACTIONS_GROUP, topic).get(_QUEUE, 0)
    first = min(end, max(done, queue.min_offset(log.min_offset(), end)))
    return queue.entries(first, end)["physical_offset"].astype(np.int64), first
