"""`Rebalancer`: acquires and releases a consumer's queues as its group changes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from store.api.group_protocol import ConsumeFromWhere, Member
from store.broker.allocation import allocate
from store.broker.group_files import first_offsets
from store.client.consuming import ConsumerConfig
from store.client.process_queue import OrderlyQueue, ProcessQueue
from store.client.process_queues import ProcessQueues
from store.client.puller import Puller
from store.model.errors import StoreFull, UnknownTopic
from store.model.log_protocol import Bounds, Log, Positions, Queue

_RENEW_SECONDS = 20.0  # rocketmq.client.rebalance.lockInterval
_LEASE_SECONDS = 30.0  # rocketmq.client.rebalance.lockMaxLiveTime
_PERSIST_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LEAVING_LOOK_SECONDS = 0.01
# How long a leaving queue waits for messages in hand, before its next owner receives them a second time.
_PATIENCE_SECONDS = 1.0
_logger = logging.getLogger("store")


class Leaving(NamedTuple):
    """A queue to release, or to restart at `again_at`, as soon as it has no messages in hand.

    since: the `time.monotonic()` at which it was stopped.
    again_at: queue offset, or None to release the queue.
    """

    queue: ProcessQueue
    since: float
    again_at: int | None


class Rebalancer:
    """Acquires and releases the queues of one consumer. One thread calls `step` and `wait` in turn."""

    def __init__(
        self,
        log: Log,
        member: Member,
        queues: ProcessQueues,
        pullers: Mapping[str, Puller],
        kind: type[ProcessQueue],
        config: ConsumerConfig,
    ) -> None:
        self._log = log
        self._member = member
        self._queues = queues
        self._pullers = pullers
        self._kind = kind
        self._config = config
        self._mine: dict[Queue, ProcessQueue] = {}
        self._leaving: dict[Queue, Leaving] = {}
        self._were_missing: set[str] = set()  # topics that did not exist at first, so read from their start
        self._renewed = -math.inf
        self._persisted = time.monotonic()

    @property
    def assigned(self) -> list[Queue]:
        return sorted(self._mine)

    def begin(self) -> None:
        """Record the start offsets of a new group that begins at the end of its topics.

        The group then gets all later messages, even if the first owner of a queue dies before it commits.
        """
        if self._config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            topics = self._log.topics()
            for topic in filter(topics.__contains__, self._pullers):
                self._begin_in(topic, self._config.consume_from_where)

    def step(self) -> None:
        """Adapt to the group's current members, topics and offset resets. After `StoreBusy`, call it again."""
        now = time.monotonic()
        self.renew()
        self._restart(self._queues.forget(self._member.resets), now)
        self._leave_stopped(now)
        known = self._known()
        wanted = set(allocate(known, self._member.members(), self._member.id))
        for name in self._mine.keys() - wanted:
            self._leave(name, now)
        self._give_back(now)
        if now >= self._persisted + _PERSIST_SECONDS:
            self._persist()
            self._persisted = now
        self._take_over(wanted - self._mine.keys() - self._leaving.keys())  # last, because it fails if a broker is down
        self._log_hanging(now)

    def renew(self) -> None:
        """Renew the queue locks if due, and drop the queues that another member locked."""
        now = time.monotonic()
        if now < self._renewed + _RENEW_SECONDS:
            return
        held = self._held
        kept = self._member.lock(held)
        for queue in held.keys() - kept:
            _logger.warning(
                "%s: the lock of this queue expired and another member took it; the messages in hand are delivered "
                "twice",
                queue,
            )
            self._queues.remove(held[queue])
            self._mine.pop(queue, None)
            self._leaving.pop(queue, None)
        self._renewed = now
        self._queues.lease(now + _LEASE_SECONDS)

    def _persist(self) -> None:
        try:
            self._member.persist()
        except StoreFull as error:
            _logger.warning("%s: offsets could not be committed, and are tried again: %s", self._member.id, error)

    def wait(self) -> None:
        self._member.wait(_LEAVING_LOOK_SECONDS if self._leaving else _LOOK_SECONDS)

    @property
    def _held(self) -> dict[Queue, ProcessQueue]:
        return {**self._mine, **{name: leaving.queue for name, leaving in self._leaving.items()}}

    def _known(self) -> set[Queue]:
        topics = self._log.topics()
        self._were_missing |= self._pullers.keys() - topics.keys()
        return {queue for topic in self._pullers for queue in topics.get(topic, ())}

    def _restart(self, resets: Positions, now: float) -> None:
        for name, position in resets.items():
            leaving = self._leaving.get(name)
            if name in self._mine:
                self._leave(name, now, position)
            elif leaving is not None and leaving.again_at is not None:  # the last reset counts
                self._leaving[name] = leaving._replace(again_at=position)

    def _leave_stopped(self, now: float) -> None:
        for name, queue in list(self._mine.items()):
            if queue.is_stopped:
                if queue.redirected_to is not None:
                    with suppress(UnknownTopic):
                        self._member.reset({name: queue.redirected_to})
                        what = "%s: read up to %d, and continuing at %d: an admin tool reset the group"
                        _logger.warning(what, name, queue.pulled, queue.redirected_to)
                self._leave(name, now)  # the next step restarts the queue if it exists

    def _leave(self, queue: Queue, now: float, again_at: int | None = None) -> None:
        leaving = self._mine.pop(queue)
        self._queues.stop(leaving)
        self._leaving[queue] = Leaving(leaving, now, again_at)

    def _give_back(self, now: float) -> None:
        for name, (queue, since, again_at) in list(self._leaving.items()):
            must_wait = isinstance(queue, OrderlyQueue) or (again_at is None and now < since + _PATIENCE_SECONDS)
            if must_wait and self._queues.in_hand(queue):
                continue
            self._queues.remove(queue)
            if again_at is None:
                self._member.unlock([name])
            del self._leaving[name]
            if again_at is not None:
                self._consume([name], {name: again_at})

    def _take_over(self, wanted: Collection[Queue]) -> None:
        got = self._member.lock(sorted(wanted)) if wanted else set()
        if not got:
            return
        where = self._config.consume_from_where
        for topic in {queue.topic for queue in got}:
            is_new = topic in self._were_missing
            self._begin_in(topic, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET if is_new else where)
        self._consume(got, self._member.committed(got))

    def _begin_in(self, topic: str, where: ConsumeFromWhere) -> None:
        # For all queues at once: if only some had an offset, the others would count as queues that were added later.
        self._member.begin(
            first_offsets(self._log, topic, self._member.committed, where, self._config.consume_timestamp)
        )

    def _consume(self, got: Collection[Queue], positions: Positions) -> None:
        bounds, begins = self._log.bounds(got), dict[Queue, int]()
        for queue, position in positions.items():
            if queue in bounds:
                begin = _clamped(queue, position, bounds[queue])
                if begin < position:  # else the group ignores commits below its committed offset
                    self._member.reset({queue: begin})
                else:
                    begins[queue] = begin
        for queue, position in begins.items():
            self._mine[queue] = added = self._kind(queue, position, *self._config.queue_limits)
            self._queues.add(added, self._pullers[queue.topic].pull)
        if gone := set(got) - self._mine.keys():
            self._member.unlock(gone)

    def _log_hanging(self, now: float) -> None:
        for queue in self._held.values():
            for handful in self._queues.in_hand(queue):
                if not handful.is_logged and now > handful.since + self._config.consume_timeout:
                    handful.is_logged = True
                    _logger.warning(
                        "%s: %r: in hand for %.1f seconds; the group's offset does not advance past it",
                        queue.queue, handful.messages, now - handful.since,
                    )  # fmt: skip


def _clamped(queue: Queue, position: int, bounds: Bounds) -> int:
    if position < bounds.min_offset:
        what = "messages [%d, %d) were deleted before they were consumed"
        _logger.warning(f"%s: {what}", queue, position, bounds.min_offset)
    if position > bounds.max_offset:
        what = "the group's offset is %d, after the queue's end %d; continuing at the end"
        _logger.warning(f"%s: {what}", queue, position, bounds.max_offset)
    return min(max(position, bounds.min_offset), bounds.max_offset)
