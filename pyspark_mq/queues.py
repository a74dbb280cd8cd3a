"""The subscribed queues of one open store, as the driver sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyspark_mq.errors import data_loss
from pyspark_mq.offsets import BatchStart, Bounds, QueueRange, resolve
from pyspark_mq.options import SourceOptions
from pyspark_mq.positions import Fingerprints, Positions, Queue
from store import MessageStore

_AFTER_FOREIGN_ARRIVAL_SECONDS = 0.005


def fingerprints(store: MessageStore, positions: Positions) -> Fingerprints:
    """Which message stands before each position; none where it is deleted, or the queue begins there."""
    found = {queue: store.fingerprint(*queue, position - 1) for queue, position in positions.items() if position > 0}
    return {queue: fingerprint for queue, fingerprint in found.items() if fingerprint is not None}


class Queues:
    """What there is to read. Every call asks the store anew: other processes append to it."""

    def __init__(self, store: MessageStore, options: SourceOptions) -> None:
        self._store = store
        self._options = options

    def tails(self, known: Iterable[Queue] = ()) -> Positions:
        """The next offset each subscribed queue will be given, sorted by queue.

        Raises `SubscriptionError` for a topic or queue that an option names and that neither exists nor is in
        `known` (those of a checkpoint, whose absence is data loss instead).
        """
        topics = self._store.topics()
        known_topics = dict.fromkeys((queue.topic for queue in known), 0)
        for queue in known:
            known_topics[queue.topic] = max(known_topics[queue.topic], queue.queue_id + 1)
        self._options.subscription.require({**known_topics, **topics})
        selected = self._options.subscription.select(topics)
        return {queue: self._store.max_offset(*queue) for queue in selected}

    def bounds(self, tails: Positions) -> dict[Queue, Bounds]:
        """What each queue of `tails` has, up to there: retention may have gone further meanwhile."""
        return {queue: Bounds(min(self._store.min_offset(*queue), tail), tail) for queue, tail in tails.items()}

    def strange(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        """The queues of `positions` in which another message stands before the position than `last` says."""
        return [
            queue
            for queue, was in last.items()
            if positions.get(queue, 0) > 0 and not self._store.can_have(*queue, positions[queue] - 1, was)
        ]

    def last(self, ends: Positions, batch: BatchStart) -> Fingerprints:
        """Which message stands before each of `ends`: where nothing is read, `batch` may know."""
        kept = {queue: was for queue, was in batch.last.items() if ends.get(queue) == batch.begin[queue]}
        return kept | fingerprints(self._store, {queue: end for queue, end in ends.items() if queue not in kept})

    def resolve(self, option: str, limit: int | Positions, bounds: dict[Queue, Bounds]) -> Positions:
        """`limit`, the value of `option`, as one existing offset for each queue of `bounds`.

        Raises what `offsets.resolve` does; an offset outside of its queue is data loss.
        """
        positions = resolve(option, limit, bounds)
        for queue, offset in positions.items():
            first, end = bounds[queue]
            positions[queue] = min(max(offset, first), end)
            if offset != positions[queue]:
                why = f"{option} says {offset}, and the queue has only [{first}, {end})"
                lost = QueueRange(*queue, *sorted((offset, positions[queue])))
                data_loss(self._options.fail_on_data_loss, f"{lost} is lost: {why}")
        return positions

    def hold(self, seconds: float, current: Callable[[], Positions], seen: Positions) -> Positions:
        """Wait until `current()` is no longer `seen`, at most `seconds`; returns what it is then."""
        deadline = time.monotonic() + seconds
        pause = 0.0
        while True:
            confirm_offset = self._store.confirm_offset  # before the look, so that no arrival is missed
            tails = current()
            left = deadline - time.monotonic()
            if tails != seen or left <= 0:
                return tails
            # What woke us was for other topics: a steady stream there must not make this a spinning loop.
            if pause:  # even to sleep for no time is a wake-up
                time.sleep(min(left, pause))
            pause = _AFTER_FOREIGN_ARRIVAL_SECONDS
            if self._store.wait(confirm_offset, left) == confirm_offset:
                return tails
