"""Messages that a query counts on and that are not there: every case, how it is noticed, and what becomes of the query.

    case      noticed                                       true    with failOnDataLoss=false the query goes on
    EXPIRED   a queue's first message is behind where the   ends    at the first message
              query goes on: in the driver, or in a task
              that retention overtook
    CUT       a queue ends before where the query goes on   ends    at the first message: it is another queue
    ANOTHER   another message stands before where the       ends    at the first message; a task, which does not
              query goes on, or before a batch's end, than          know the batch after it, without its range
              the fingerprint in the checkpoint says
    GONE      a queue that the checkpoint has is not there  ends    without it, and with the first message if it
              or not subscribed; or a task's is gone, or            comes back
              one of a new query while that is planned
    UNSEEN    a task does not see the end of its range      ends    with what it sees
    MISSING   a topic or queue that an option names is not  ends    without it until it is there; but a new query
              there, and the checkpoint does not have it            ends, and one that reads a batch
    NOT_YET   an option's offset is behind the queue's end  ends    with what comes next

The last two are not lost but not there yet: `SubscriptionError` and `OptionError` instead of `DataLossError`. A topic
that was recreated is EXPIRED, if anything is lost at all. A store that was put back from a backup, and a topic that a
RocketMQ broker restarted at 0, is CUT where it has fewer messages than were read, else ANOTHER. An empty range is never
missed. Trigger.AvailableNow is no case of its own: where it ends is what there was when it began, of the queues that
there are. A real-time task that holds a queue which becomes ANOTHER, CUT or GONE reads no more of it: with
failOnDataLoss=false the next batch goes on as the table has it.
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
    CUT = "the queue ends at {end}, it was created anew or cut"
    ANOTHER = (
        "other messages stand there than were seen; the topic was created anew, the store put back from a backup, or "
        "what was not flushed lost with its machine. What there is now begins at {first}"
    )
    GONE = "the queue is gone, or no longer subscribed"
    UNSEEN = (
        "the queue still ends at {end}; it was cut or created anew, or this machine does not see the directory that "
        "the driver sees"
    )


class Loss(NamedTuple):
    """Messages a query counts on that its queue does not have.

    lost: an empty range where nobody knows how many. there: what the queue has instead.
    """

    lost: QueueRange
    case: Case
    there: Bounds = Bounds(0, 0)

    def left_of(self, wanted: QueueRange) -> QueueRange:
        """What there is of a range that this was lost of: its end, or its begin."""
        if self.lost.start > wanted.start:
            return wanted._replace(end=self.lost.start)
        return wanted._replace(start=self.lost.end)

    def __str__(self) -> str:
        what = self.lost if self.lost.length else f"{self.lost.queue} from {self.lost.start} on"
        first, end = self.there
        return f"{what} is lost: {self.case.value.format(first=first, end=end)}"


def loss_before(queue: Queue, position: int, there: Bounds | None, is_another: bool = False) -> Loss | None:
    """What is lost to a query that goes on at `position`; None where it can. Pure.

    there: None for a queue that is gone. is_another: another message stands before `position` than the one that was.
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
    """What is lost of a range that was planned, and that a task is to read; None where all is there. Pure."""
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
    """The one place that decides what lost messages mean.

    fail: the option `failOnDataLoss`. option: which one counts on them, if it is not the checkpoint. Raises
    `DataLossError` when `fail`; otherwise warns, and the caller goes on as the table has it.
    """
    what = f"{option}: {loss}" if option else str(loss)
    if fail:
        raise DataLossError(
            f"{what}. To go on with what is there set the option failOnDataLoss to false; "
            "to start afresh use a new checkpoint"
        )
    _log.warning("Data loss, going on because failOnDataLoss is false: %s", what)


def report_missing(fail: bool, error: MqSourceError) -> None:
    """As `report_loss`, for what may still come: raises `error` when `fail`, otherwise warns."""
    if fail:
        raise error
    _log.warning("Going on because failOnDataLoss is false: %s", error)
