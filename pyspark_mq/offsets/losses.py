"""Missing messages that a query counts on: every case, how it is noticed, and how the query goes on.

    case      noticed                                       true    with failOnDataLoss=false the query goes on
    EXPIRED   a queue's first message is behind the         ends    at the first message
              query's offset: in the driver, or in a
              task that retention overtook
    CUT       a queue ends before the query's offset        ends    at the first message: it is another queue
    ANOTHER   another message stands before the query's     ends    at the first message; a task, which does not
              offset, or before a batch's end, than the             know the batch after it, without its range
              fingerprint in the checkpoint says
    GONE      a queue that the checkpoint has is not there  ends    without it, and with the first message if it
              or not subscribed; or a task's is gone, or            comes back
              one of a new query while that is planned
    UNSEEN    a task does not see the end of its range      ends    with the part that it sees
    MISSING   a topic or queue that an option names is not  ends    without it until it is there; but a new query
              there, and the checkpoint does not have it            ends, and one that reads a batch
    NOT_YET   an option's offset is behind the queue's end  ends    with the next message

The last two may still come: `SubscriptionError` and `OptionError` instead of `DataLossError`. A recreated topic
is EXPIRED, if anything is lost. A store that was put back from a backup, and a topic that a RocketMQ broker restarted
at 0, is CUT if it has fewer messages than were read, else ANOTHER. An empty range is never missing.
Trigger.AvailableNow is no case of its own: it ends with the messages present when it began. A real-time task reads no
more of a queue that becomes ANOTHER, CUT or GONE: with failOnDataLoss=false the next batch goes on as the table says.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from pyspark_mq.errors import DataLossError, MqSourceError
from store.model.log_protocol import Bounds, Queue, QueueRange

_log = logging.getLogger("pyspark_mq")


class Case(Enum):
    """Why messages are lost, as the user reads it. first, end: what the queue has now."""

    EXPIRED = "the queue's first message is {first}, older ones were deleted"
    CUT = "the queue ends at {end}, it was recreated or cut"
    ANOTHER = (
        "other messages stand there than were seen; the topic was recreated, the store put back from a backup, or "
        "unflushed messages lost with their machine. The queue now begins at {first}"
    )
    GONE = "the queue is gone, or no longer subscribed"
    UNSEEN = (
        "the queue still ends at {end}; it was cut or recreated, or this machine does not see the directory that "
        "the driver sees"
    )


class Loss(NamedTuple):
    """Messages that a query counts on and its queue does not have.

    lost: an empty range if the number is unknown. there: the bounds of the queue now.
    """

    lost: QueueRange
    case: Case
    there: Bounds = Bounds(0, 0)

    def left_of(self, wanted: QueueRange) -> QueueRange:
        """Return the part of a range that is not lost: its end, or its begin."""
        if self.lost.start > wanted.start:
            return wanted._replace(end=self.lost.start)
        return wanted._replace(start=self.lost.end)

    def __str__(self) -> str:
        what = self.lost if self.lost.length else f"{self.lost.queue} from {self.lost.start} on"
        first, end = self.there
        return f"{what} is lost: {self.case.value.format(first=first, end=end)}"


def loss_before(queue: Queue, position: int, there: Bounds | None, is_another: bool = False) -> Loss | None:
    """Return the loss to a query that goes on at `position`, or None.

    there: None for a deleted queue. is_another: another message stands before `position` than the one that was read.
    """
    rest = QueueRange(queue, position, position)
    if there is None:
        return Loss(rest, Case.GONE)
    if position > there.max_offset:
        return Loss(rest._replace(start=there.max_offset), Case.CUT, there)
    if is_another:
        return Loss(rest, Case.ANOTHER, there)
    if position < there.min_offset:
        return Loss(rest._replace(end=there.min_offset), Case.EXPIRED, there)
    return None


def loss_in(wanted: QueueRange, there: Bounds | None, is_another: bool) -> Loss | None:
    """Return the loss in a range that was planned for a task, or None."""
    if wanted.length <= 0:
        return None
    if there is None:
        return Loss(wanted, Case.GONE)
    if is_another:
        return Loss(wanted, Case.ANOTHER, there)
    if wanted.start < there.min_offset:
        return Loss(wanted._replace(end=min(there.min_offset, wanted.end)), Case.EXPIRED, there)
    if wanted.end > there.max_offset:
        return Loss(wanted._replace(start=max(wanted.start, there.max_offset)), Case.UNSEEN, there)
    return None


def report_loss(fail: bool, loss: Loss, option: str = "") -> None:
    """Raise `DataLossError` if `fail`, which is the option `failOnDataLoss`; otherwise warn.

    The caller then goes on as the table says. option: which one counts on the messages, if it is not the checkpoint.
    """
    what = f"{option}: {loss}" if option else str(loss)
    if fail:
        raise DataLossError(
            f"{what}. To go on with the messages that are left set the option failOnDataLoss to false; "
            "to start afresh use a new checkpoint"
        )
    _log.warning("Data loss, going on because failOnDataLoss is false: %s", what)


def report_missing(fail: bool, error: MqSourceError) -> None:
    """Raise `error` if `fail`, otherwise warn: the topic, queue or message may still come."""
    if fail:
        raise error
    _log.warning("Going on because failOnDataLoss is false: %s", error)
