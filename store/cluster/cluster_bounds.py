"""`ClusterBounds`: the bounds of queues, and the brokers that are missing."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence

from store.cluster.address import ANSWER_SECONDS
from store.cluster.broker_refusals import is_temporary
from store.cluster.brokers import Brokers
from store.cluster.held_pulls import EndPulls
from store.cluster.route_table import Broker
from store.model.errors import BrokerMissing, RemotingError
from store.model.log_protocol import Bounds, LogLook, MissingBroker, Queue

_logger = logging.getLogger("store")
_AGAIN_SECONDS = 1.0
_MISSING_SECONDS = 0.5  # timeout for a missing broker, because the others wait for it
_KNOWN_SECONDS = 60.0  # then retention may have moved the begin


class ClusterBounds:
    """The bounds of queues. Thread-safe.

    A broker that does not answer a request is missing until it answers again and name servers list it, because tasks
    find it only then. While a pull is held at a queue's end, the end is known, so the broker is not asked.
    """

    def __init__(self, brokers: Brokers, end_pulls: EndPulls) -> None:
        self._brokers = brokers
        self._end_pulls = end_pulls
        self._known: dict[Queue, tuple[float, Bounds]] = {}  # `time.monotonic()` of the request
        self.missing: dict[str, MissingBroker] = {}
        self._from_slaves: set[Queue] = set()
        self._asked: dict[str, float] = {}  # `time.monotonic()` of the last request to a missing broker

    def look(self, queues: Iterable[Queue]) -> LogLook:
        """Return the bounds from the brokers that answer, and the missing brokers."""
        queues, now = list(queues), time.monotonic()
        found = {queue: known for queue in queues if (known := self._unchanged(queue, now)) is not None}
        where = self._brokers.routes.readable(queue for queue in queues if queue not in found)
        resting = {name for name, asked in self._asked.items() if now - asked < _AGAIN_SECONDS}
        failed: dict[str, RemotingError] = {}
        left = {queue: broker for queue, broker in where.items() if broker.name not in resting}
        for attempt in range(2 * max((len(broker.addresses) for broker in left.values()), default=0) or 1):
            answered, failed = self._ask(left, attempt)
            found |= answered
            of_slaves = {queue for queue in answered if left[queue].next(attempt).is_slave}
            self._from_slaves = (self._from_slaves - answered.keys()) | of_slaves
            self._known |= {queue: (now, bounds) for queue, bounds in answered.items() if queue not in of_slaves}
            left = {queue: broker for queue, broker in left.items() if broker.name in failed and queue not in answered}
            if not left:
                break
        silent = {name: str(error) for name, error in failed.items()}
        one_each = {queue.broker: queue for queue in where}
        back = one_each.keys() & self.missing.keys() - silent.keys() - resting
        unlisted = self._brokers.routes.unlisted() | {
            name for name in back if not self._brokers.routes.lists(one_each[name])
        }
        silent |= dict.fromkeys(unlisted, "no name server lists it") | silent
        for name in back - unlisted:
            self._note_returned(name)
        for name, why in silent.items():
            self._note_missing(name, why, now)
        asked = {broker.name for broker in where.values()} | silent.keys()
        missing = {name: self.missing[name] for name in sorted(asked & self.missing.keys())}
        there = {queue: found[queue] for queue in queues if queue in found and queue.broker not in missing}
        return LogLook(there, missing)

    def complete(self, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        """Return the bounds when the brokers of all `queues` have answered. Raises `BrokerMissing`.

        Does not wait for other brokers, because a task needs only those of its queues.
        """
        own = {queue.broker for queue in queues}
        deadline = time.monotonic() + self._brokers.address.broker_timeout
        while own & (looked := self.look(queues)).missing.keys():
            if time.monotonic() >= deadline:
                missing = [each for name, each in looked.missing.items() if name in own]
                raise BrokerMissing.of(self._brokers.address, missing)
            time.sleep(_AGAIN_SECONDS)
        return looked.bounds

    def is_from_master(self, queue: Queue) -> bool:
        """Return whether the last bounds are from the master. A slave may have fewer messages."""
        return queue not in self._from_slaves

    def _unchanged(self, queue: Queue, now: float) -> Bounds | None:
        asked, bounds = self._known.get(queue, (-math.inf, Bounds(0, 0)))
        is_fresh = now - asked < _KNOWN_SECONDS
        return bounds if is_fresh and self._end_pulls.is_held(queue, bounds.max_offset) else None

    def _ask(self, where: Mapping[Queue, Broker], attempt: int) -> tuple[dict[Queue, Bounds], dict[str, RemotingError]]:
        """Return the bounds, and the temporary errors by the broker's name."""
        parts: dict[tuple[str, Broker], list[Queue]] = {}
        for queue, broker in where.items():
            parts.setdefault((queue.topic, broker.next(attempt)), []).append(queue)
        asked = [
            (
                broker,
                queues,
                self._brokers.begin_stats(
                    broker, topic, _MISSING_SECONDS if broker.name in self.missing else ANSWER_SECONDS
                ),
            )
            for (topic, broker), queues in parts.items()
        ]
        found: dict[Queue, Bounds] = {}
        failed: dict[str, RemotingError] = {}
        for broker, queues, answer in asked:
            try:
                found |= self._brokers.take_stats(answer, broker, queues)
            except RemotingError as error:
                if not is_temporary(error):
                    raise
                failed[broker.name] = error
        return found, failed

    def _note_missing(self, name: str, why: str, now: float) -> None:
        self._asked[name] = now
        if name not in self.missing:
            self.missing[name] = MissingBroker(name, time.time(), why)
            _logger.warning(
                "%s: %s. The other brokers are read. The messages of this broker are read when it is back",
                self._brokers.address,
                self.missing[name],
            )

    def _note_returned(self, name: str) -> None:
        self._asked.pop(name, None)
        if (was := self.missing.pop(name, None)) is not None:
            seconds = time.time() - was.since
            _logger.warning("%s: broker %s is back after %.0f s", self._brokers.address, name, seconds)
