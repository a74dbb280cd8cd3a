from __future__ import annotations

import logging
import time
from collections.abc import Collection, Container, Iterable, Mapping

from pyspark_mq.errors import OptionError, SubscriptionError
from pyspark_mq.offsets.limits import StartOrEnd
from pyspark_mq.offsets.losses import Loss, LossCase, loss_before, report_loss, report_missing
from pyspark_mq.offsets.stream_offsets import BatchStart
from pyspark_mq.options.source import SourceOptions
from store.model.errors import BrokerMissing
from store.model.log_protocol import Bounds, Fingerprints, Log, MissingBroker, Positions, Queue, QueueRange
from store.read.conditions import is_never_true
from store.read.sql_filter import SqlFilter

_logger = logging.getLogger("pyspark_mq")
_OLDEST_SECONDS = 60.0  # longest delay until new queues and brokers of a known topic are seen
_AFTER_FOREIGN_ARRIVAL_SECONDS = 0.005
_AGAIN_SECONDS = 1.0


def ends(bounds: Mapping[Queue, Bounds]) -> Positions:
    return {queue: bound.max_offset for queue, bound in bounds.items()}


def check_before_planning(options: SourceOptions) -> None:
    """Raise `SubscriptionError` if a named topic is missing, unless `failOnDataLoss` is false.

    If it is false, planning later reports missing topics of the checkpoint as losses.
    """
    with options.address.open() as log:
        if options.fail_on_data_loss:
            options.subscription.require(log.topics())


class Queues:
    """The subscribed queues of a query. Their bounds are not cached, because other processes append to the log."""

    def __init__(self, log: Log, options: SourceOptions) -> None:
        self._log = log
        self._options = options
        self._missing = ""  # the last warning of a missing topic
        self._told: set[str] = set()

    def bounds(self) -> dict[Queue, Bounds]:
        """Return the bounds of the subscribed queues, sorted, without those of missing brokers."""
        return self._log.look(self._options.subscription.select(self._topics())).bounds

    def _topics(self) -> Mapping[str, tuple[Queue, ...]]:
        return self._log.topics(self._options.subscription.lists, _OLDEST_SECONDS)

    def bounds_of_all(self) -> dict[Queue, Bounds]:
        """Return the bounds of all subscribed queues, for a query that begins.

        Raises `SubscriptionError` for a missing topic or queue, and `BrokerMissing` unless the query skips missing
        brokers.
        """
        if not self._options.skips_missing_brokers:
            self._await_brokers()
        topics = self._topics()
        self._options.subscription.require(topics)
        self._warn(topics)
        queues = self._options.subscription.select(topics)
        if self._options.skips_missing_brokers:
            looked = self._log.look(queues)
            self._must_have((queue for queue in queues if queue.broker not in looked.missing), looked.bounds)
            return looked.bounds
        bounds = self._log.bounds(queues)
        self._must_have(queues, bounds)
        return bounds

    def _await_brokers(self) -> None:
        """Wait until name servers list all brokers that the query names.

        Only then topics show all their queues.
        """
        while missing := self._log.look(()).missing:
            self._give_up(missing)
            time.sleep(_AGAIN_SECONDS)

    def _must_have(self, queues: Iterable[Queue], there: Container[Queue]) -> None:
        for queue in queues:
            if queue not in there:
                report_loss(self._options.fail_on_data_loss, Loss(QueueRange(queue, 0, 0), LossCase.GONE))

    def _warn(self, topics: Collection[str]) -> None:
        doubts = [self._options.subscription.doubt(topics or self._log.topics())]
        if isinstance(found := self._options.message_filter, SqlFilter) and is_never_true(found.condition):
            doubts.append(f"subExpression {found.expression!r} can match no message. See 'Filters' in docs/source.md")
        for doubt in doubts:
            if doubt is not None and doubt not in self._told:
                self._told.add(doubt)
                _logger.warning("%s", doubt)

    def bounds_from(self, seen: Positions) -> dict[Queue, Bounds]:
        """Return the bounds of the subscribed queues, for a query that continues from `seen`.

        Leaves out a deleted queue of `seen`, which is a loss. A queue of a missing broker ends at its offset in `seen`.
        Raises `SubscriptionError`, and `BrokerMissing` if the broker is missing for longer than `brokerTimeout`.
        """
        topics = self._topics()
        try:
            self._options.subscription.require(topics, seen)
        except SubscriptionError as error:
            if self._missing != str(error):
                report_missing(self._options.fail_on_data_loss, error)
                self._missing = str(error)
        queues = self._options.subscription.select(topics, seen)
        looked = self._log.look(queues)
        self._give_up(looked.missing)
        kept = {queue: Bounds(at, at) for queue, at in seen.items() if queue.broker in looked.missing}
        found = {**kept, **looked.bounds}
        return {queue: found[queue] for queue in queues if queue in found}

    def _give_up(self, missing: Mapping[str, MissingBroker]) -> None:
        if self._options.skips_missing_brokers:
            return
        longest = time.time() - self._options.broker_timeout_seconds
        if late := [broker for broker in missing.values() if broker.since <= longest]:
            raise BrokerMissing.of(self._options.address, late)

    def last(self, ends: Positions, batch: BatchStart) -> Fingerprints:
        """Return the fingerprint of the message before each end.

        Takes it from `batch` for a queue in which the batch reads nothing, and from the log for the other queues.
        """
        kept = {queue: was for queue, was in batch.last.items() if ends.get(queue) == batch.begin[queue]}
        return kept | self._log.fingerprints({queue: end for queue, end in ends.items() if queue not in kept})

    def resolve(self, option: str, limit: StartOrEnd, bounds: Mapping[Queue, Bounds]) -> Positions:
        """Return an offset within the bounds for each queue, from `limit`. Raises `OptionError`.

        option: the option that gave `limit`, for errors.
        """
        found = limit.resolve(self._log, bounds)
        self._must_have(bounds, found)
        positions = {queue: found.get(queue, first) for queue, (first, _) in bounds.items()}
        for queue, offset in positions.items():
            first, end = bounds[queue]
            positions[queue] = min(max(offset, first), end)
            if offset > end:
                ahead = f"{option} says {offset} for {queue}, which ends at {end}"
                advice = "If the topic was recreated, give -1 for the next message, or -2 for the first"
                report_missing(self._options.fail_on_data_loss, OptionError(f"{ahead}. {advice}"))
            elif loss := loss_before(queue, offset, bounds[queue]):
                report_loss(self._options.fail_on_data_loss, loss, option)
        return positions

    def hold(self, seconds: float, known: Positions, seen: Positions, least: int = 1) -> dict[Queue, Bounds]:
        """Wait up to `seconds` until there are `least` messages after `seen`, or other queues than in `seen`.

        Return `bounds_from(known)`, as read last.
        """
        deadline = time.monotonic() + seconds
        pause = 0.0
        while True:
            bounds = self.bounds_from(known)
            left = deadline - time.monotonic()
            if left <= 0 or has_news(seen, bounds, least):
                return bounds
            # Messages of other topics also end the wait. The pause prevents a busy loop.
            if pause:  # sleeping for 0 seconds would still be a wake-up
                time.sleep(min(left, pause))
            pause = _AFTER_FOREIGN_ARRIVAL_SECONDS
            self._log.wait(ends(bounds), left)


def replaced_queues(log: Log, positions: Positions, last: Fingerprints) -> list[Queue]:
    """Return the queues in which the message before the position is not the one of the fingerprint in `last`.

    Without a fingerprint, the message was not readable when the position was recorded. If it is readable now, the queue
    counts as replaced.
    """
    deleted = {queue: position for queue, position in positions.items() if queue not in last}
    return [*log.replaced(positions, last), *log.fingerprints(deleted)]


def positions_in_same_queues(log: Log, positions: Positions, last: Fingerprints) -> Positions:
    others, there = replaced_queues(log, positions, last), log.look(positions).bounds
    return {
        queue: positions[queue]
        for queue in there
        if queue not in others and positions[queue] <= there[queue].max_offset
    }


def has_deleted_queue(log: Log, ends: Positions) -> bool:
    """Return whether a queue is deleted or ends before its offset in `ends`. Ignores queues of missing brokers."""
    there, missing = log.look(queue for queue, end in ends.items() if end > 0)
    reached = {queue: end for queue, end in ends.items() if end > 0 and queue.broker not in missing}
    return any(queue not in there or end > there[queue].max_offset for queue, end in reached.items())


def has_news(seen: Positions, bounds: Mapping[Queue, Bounds], least: int = 1) -> bool:
    """Return whether `least` messages follow `seen`, queues were added or deleted, or a queue became shorter."""
    now = ends(bounds)
    if now.keys() != seen.keys() or any(now[queue] < offset for queue, offset in seen.items()):
        return True
    return sum(now.values()) - sum(seen.values()) >= least
