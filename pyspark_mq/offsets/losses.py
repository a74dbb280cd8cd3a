"""Lost messages that a query had to read: all cases, how they are detected, and how the query continues.

    case      detected by                                   true    with failOnDataLoss=false the query continues
    EXPIRED   a queue's first message is after the query's  fails   at the first message
              offset, in the driver or in a task
    CUT       a queue ends before the query's offset        fails   at the first message: it is another queue
    ANOTHER   the message before the query's offset or a    fails   at the first message; a task skips its range
              batch's end is not the checkpoint's
    GONE      a queue is deleted or not subscribed          fails   without it; at its first message if recreated
    UNSEEN    a task does not see the end of its range      fails   with the part that it sees
    MISSING   a named topic or queue does not exist, and    fails   without it until it is created; but a new query
              is not in the checkpoint                              and a batch query fail
    NOT_YET   an option's offset is after the queue's end   fails   with the next message

In the last two cases messages may still arrive, so they raise `SubscriptionError` and `OptionError`, not
`DataLossError`. A restored store, or a topic that a RocketMQ broker restarted at 0, is CUT if it has fewer messages
than were read, else ANOTHER. An empty range is never lost. A real-time task stops reading a queue that becomes ANOTHER,
CUT or GONE; the next batch reports the loss.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from pyspark_mq.errors import DataLossError, MqSourceError
from store.model.log_protocol import Bounds, Queue, QueueRange

_log = logging.getLogger("pyspark_mq")


class LossCase(Enum):
    """How messages were lost. In the texts, first and end are the present bounds of the queue."""

    EXPIRED = "older messages were deleted, and the queue's first message is now {first}"
    CUT = "the queue ends at {end}, so it was recreated or truncated"
    ANOTHER = (
        "the queue has other messages than the query read. The topic was recreated, the store was restored from a "
        "backup, or a machine crash lost unflushed messages. The queue now begins at {first}"
    )
    GONE = "the queue was deleted, or it is no longer subscribed"
    UNSEEN = (
        "the queue still ends at {end} on this machine. It was truncated or recreated, or this machine does not see "
        "the driver's directory"
    )


class Loss(NamedTuple):
    """Messages that a query cannot read.

    lost: their range; empty if the number of messages is unknown. there: the present bounds of the queue.
    """

    lost: QueueRange
    case: LossCase
    there: Bounds = Bounds(0, 0)

    def rest_of(self, wanted: QueueRange) -> QueueRange:
        """Return the part before the loss, if the loss begins inside of the range, else the part after it."""
        if self.lost.start > wanted.start:
            return wanted._replace(end=self.lost.start)
        return wanted._replace(start=self.lost.end)

    def __str__(self) -> str:
        what = self.lost if self.lost.length else f"{self.lost.queue} from offset {self.lost.start} on"
        first, end = self.there
        return f"{what} is lost: {self.case.value.format(first=first, end=end)}"


def loss_before(queue: Queue, position: int, there: Bounds | None, is_another: bool = False) -> Loss | None:
    """Return the loss of a query that continues at `position`, None if it can continue there.

    there: None for a deleted queue. is_another: the message before `position` is not the one that was read.
    """
    rest = QueueRange(queue, position, position)
    if there is None:
        return Loss(rest, LossCase.GONE)
    if position > there.max_offset:
        return Loss(rest._replace(start=there.max_offset), LossCase.CUT, there)
    if is_another:
        return Loss(rest, LossCase.ANOTHER, there)
    if position < there.min_offset:
        return Loss(rest._replace(end=there.min_offset), LossCase.EXPIRED, there)
    return None


def loss_in(wanted: QueueRange, there: Bounds | None, is_another: bool) -> Loss | None:
    if wanted.length <= 0:
        return None
    if there is None:
        return Loss(wanted, LossCase.GONE)
    if is_another:
        return Loss(wanted, LossCase.ANOTHER, there)
    if wanted.start < there.min_offset:
        return Loss(wanted._replace(end=min(there.min_offset, wanted.end)), LossCase.EXPIRED, there)
    if wanted.end > there.max_offset:
        return Loss(wanted._replace(start=max(wanted.start, there.max_offset)), LossCase.UNSEEN, there)
    return None


def report_loss(fail: bool, loss: Loss, option: str = "") -> None:
    """Raise `DataLossError` if `fail`, otherwise log a warning.

    option: the one that named the position; "" for a position of the checkpoint.
    """
    what = f"{option}: {loss}" if option else str(loss)
    if fail:
        raise DataLossError(
            f"{what}. To continue with the remaining messages, set failOnDataLoss to false. To start again, use a "
            "new checkpoint"
        )
    _log.warning("Data loss, ignored because failOnDataLoss is false: %s", what)


def report_missing(fail: bool, error: MqSourceError) -> None:
    if fail:
        raise error
    _log.warning("Ignored because failOnDataLoss is false: %s", error)
