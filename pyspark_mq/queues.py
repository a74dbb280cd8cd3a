"""The subscribed queues of one open log, as the driver sees them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from pyspark_mq.errors import OptionError, data_loss
from pyspark_mq.limits import Limit
from pyspark_mq.offsets import BatchStart
from pyspark_mq.options import SourceOptions
from store.any_log import Bounds, Fingerprints, Log, Positions, Queue, QueueRange

_logger = logging.getLogger("pyspark_mq")
_AFTER_FOREIGN_ARRIVAL_SECONDS = 0.005


def ends(bounds: Mapping[Queue, Bounds]) -> Positions:
    """The offset that each queue will give next."""
    return {queue: bound.max_offset for queue, bound in bounds.items()}


class Queues:
    """What there is to read. Every call asks the log anew: other processes append to it."""

    def __init__(self, log: Log, options: SourceOptions) -> None:
        self._log = log
        self._options = options

    def bounds(self, known: Collection[Queue] = ()) -> dict[Queue, Bounds]:
        """What each subscribed queue has, sorted by queue.

        Raises `SubscriptionError` for a topic or queue that an option names and that neither exists nor is in
        `known` (those of a checkpoint, whose absence is data loss instead).
        """
        topics = self._log.topics()
        self._options.subscription.require(topics, known)
        return self._log.bounds(self._options.subscription.select(topics))

    def last(self, ends: Positions, batch: BatchStart) -> Fingerprints:
        """Which message stands before each of `ends`: where nothing is read, `batch` may know."""
        kept = {queue: was for queue, was in batch.last.items() if ends.get(queue) == batch.begin[queue]}
        return kept | self._log.fingerprints({queue: end for queue, end in ends.items() if queue not in kept})

    def resolve(self, option: str, limit: Limit, bounds: Mapping[Queue, Bounds]) -> Positions:
        """`limit`, the value of `option`, as one existing offset for each queue of `bounds`.

        Raises `OptionError`, also for an offset that its queue has not yet; a deleted one is data loss.
        """
        positions = limit.resolve(self._log, bounds)
        for queue, offset in positions.items():
            first, end = bounds[queue]
            positions[queue] = min(max(offset, first), end)
            if offset > end:
                self._not_yet(f"{option} says {offset} for {queue}, and its next message will be {end}")
            elif offset < first:
                lost = QueueRange(*queue, offset, first)
                why = f"{option} says {offset}, and the queue has only [{first}, {end})"
                data_loss(self._options.fail_on_data_loss, f"{lost} is lost: {why}")
        return positions

    def _not_yet(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise OptionError(f"{what}. Was the topic created anew? Give -1 for what comes next, or -2 for the first")
        _logger.warning("%s; going on from there, because failOnDataLoss is false", what)

    def hold(
        self, seconds: float, seen: Positions, known: Collection[Queue] = (), least: int = 1
    ) -> dict[Queue, Bounds]:
        """`bounds` once there are `least` messages behind `seen`, or other queues; after `seconds` at the latest."""
        deadline = time.monotonic() + seconds
        pause = 0.0
        while True:
            bounds = self.bounds(known)
            left = deadline - time.monotonic()
            if left <= 0 or is_enough(seen, bounds, least):
                return bounds
            # What woke us was for other topics: a steady stream there must not make this a spinning loop.
            if pause:  # even to sleep for no time is a wake-up
                time.sleep(min(left, pause))
            pause = _AFTER_FOREIGN_ARRIVAL_SECONDS
            self._log.wait(ends(bounds), left)


def is_enough(seen: Positions, bounds: Mapping[Queue, Bounds], least: int = 1) -> bool:
    """Whether there are `least` messages behind `seen`; or other queues than these, or less in one. Pure."""
    now = ends(bounds)
    if now.keys() != seen.keys() or any(now[queue] < offset for queue, offset in seen.items()):
        return True
    return sum(now.values()) - sum(seen.values()) >= least
