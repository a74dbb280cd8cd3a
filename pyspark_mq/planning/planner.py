from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property

from pyspark_mq.errors import MqSourceError
from pyspark_mq.offsets.losses import Loss, LossCase, report_loss
from pyspark_mq.offsets.stream_offsets import BatchStart, EpochOffset, StreamOffset, begin_batch
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.batch_limits import BatchLimits
from pyspark_mq.planning.query_group import NoGroup, group_of_query
from pyspark_mq.planning.queues import Queues, ends, has_deleted_queue, has_news, replaced_queues
from store.model.log_protocol import Bounds, Log, Positions, Queue, QueueRange


class Planner:
    """Plans micro-batches and real-time batches of one run of one query, in the process beside Spark's driver."""

    def __init__(self, options: SourceOptions) -> None:
        """Open nothing, because tasks unpickle this object. Raises `OptionError`."""
        self._options = options
        self._start = options.stream_start()
        self._start_error: MqSourceError | None = None  # of `first`; raised when the first batch is planned
        self.bounds: dict[Queue, Bounds] = {}  # of the subscribed queues, as last read
        self.confirmed: StreamOffset | EpochOffset | None = None
        """The last offset that this run planned or checked: its queues were not replaced."""

    def first(self) -> StreamOffset:
        """Return the start of a new query.

        Spark also calls this before it replays the first batch. A replay reads from the begins pinned in the batch's
        end, so an error here must not stop it. It is raised only when a batch is planned from this start.
        """
        positions: Positions = {}
        try:
            positions = self._queues.resolve("startingOffsets", self._start, self._queues.bounds_of_all())
        except MqSourceError as error:
            self._start_error = error
        return StreamOffset(positions, starts=positions, last=self._log.fingerprints(positions))

    def end_with_present_messages(self) -> None:
        """End the query after the present messages, for Trigger.AvailableNow."""
        self.limits.target = ends(self._queues.bounds())

    @property
    def member(self) -> str | None:
        return self._group.member

    def micro_batch(self, start: StreamOffset, *, once: bool) -> StreamOffset:
        """Return the end of the micro-batch after `start`, or `start` itself if nothing arrives within `holdTimeoutMs`.

        once: read all messages in one batch, without limits. Raises `DataLossError`, `SubscriptionError`,
        `QueuesTaken`, `OptionError`.
        """
        waits = not once and self.limits.target is None
        while (begin := self._begin(start, self._options.hold_timeout_seconds if waits else math.inf)) is not None:
            timeout, least = (self._options.hold_timeout_seconds, self.limits.least_messages()) if waits else (0.0, 1)
            self.bounds = self._queues.hold(timeout, begin.next, begin.next, least)
            is_news = start != self.confirmed or has_news(begin.next, self.bounds, least)
            if not is_news and not replaced_queues(self._log, begin.next, begin.last):
                break
            end = self._end(begin, lambda batch: self.limits.end_of(batch, begin.next, self.bounds, once=once))
            if end is not None and end.next is not begin.next:
                self.limits.note_batch()
                self.confirmed = end
                return end
            if end is not None:
                self.confirmed = start
                break
            if waits:  # otherwise the unchanged offset would end Trigger.AvailableNow
                break
        self._group.persist()  # Spark may end this process without calling `stop`
        return start

    def real_time_batch(self, start: StreamOffset) -> StreamOffset | None:
        """Return the begin of the next real-time batch, or None if the query has no queue. Raises as `micro_batch`."""
        begin = self._begin(start, self._options.hold_timeout_seconds)
        if begin is None:
            return None
        self.bounds = self._queues.hold(self._options.hold_timeout_seconds, begin.next, {})
        planned = self._end(begin, lambda batch: batch.begin)
        return planned if planned is not None and planned.next else None

    def require_same_queues(self, end: StreamOffset | EpochOffset) -> None:
        """Acquire the queues of a batch that runs again, and check that none was replaced after it was planned.

        Raises `DataLossError`, `QueuesTaken`.
        """
        if end == self.confirmed:
            return
        self._acquire(math.inf)
        positions = end.next if isinstance(end, StreamOffset) else end.begin
        replaced = replaced_queues(self._log, positions, end.last)
        for queue, there in self._log.bounds(replaced).items():
            lost = QueueRange(queue, positions[queue], positions[queue])
            report_loss(self._options.fail_on_data_loss, Loss(lost, LossCase.ANOTHER, there))

    def close(self) -> None:
        if "_group" in self.__dict__:
            self._group.close()
        if "_log" in self.__dict__:
            self._log.close()

    @cached_property
    def _log(self) -> Log:
        return self._options.address.open()

    @cached_property
    def limits(self) -> BatchLimits:
        return BatchLimits(self._log, self._options)

    @cached_property
    def _queues(self) -> Queues:
        return Queues(self._log, self._options)

    @cached_property
    def _group(self) -> NoGroup:
        return group_of_query(self._log, self._options)

    def _begin(self, start: StreamOffset, timeout: float) -> StreamOffset | None:
        """Report `start` to the group, and acquire the queues. Return the batch's begin, or None if another query owns
        them.

        All messages before `start` are processed, because Spark logs a batch before it asks for the next one. Spark may
        never call `commit`, so this call commits to the group. If the group of an orderly query is ahead of `start`,
        the batch is pinned to the group's offset.
        """
        if self._start_error is not None and not start.next:
            raise self._start_error
        self._group.done(start.next, start.last)
        if not self._acquire(timeout):
            return None
        further = self._group.further(start.next)
        if not further:
            return start
        known = {queue: was for queue, was in start.last.items() if queue not in further}
        last = known | self._log.fingerprints(further)
        return replace(start, next=start.next | further, starts=start.starts | further, last=last)

    def _acquire(self, timeout: float) -> bool:
        return not self._group.locks or self._group.acquire(self._queues.bounds(), timeout)

    def _end(self, start: StreamOffset, end_of: Callable[[BatchStart], Positions]) -> StreamOffset | None:
        """Return the end of the batch, chosen by `end_of`, or None if the query does not own all queues.

        A topic may be recreated during planning. So this checks for replaced queues last, and plans again if there are
        any.
        """
        replaced: list[Queue] = []
        while self._group.acquire(self.bounds, 0.0):
            batch = begin_batch(start, self.bounds, replaced)
            following = end_of(batch)
            last = self._queues.last(following, batch)
            more = [queue for queue in replaced_queues(self._log, start.next, start.last) if queue not in replaced]
            if not more and not _is_outdated(self._log, start, batch, following, last.keys()):
                for loss in batch.losses:
                    report_loss(self._options.fail_on_data_loss, loss)
                return StreamOffset(following, batch.starts, last)
            replaced += more
            self.bounds = self._queues.bounds_from(start.next)
        return None


def _is_outdated(
    log: Log, start: StreamOffset, batch: BatchStart, following: Positions, known: Collection[Queue]
) -> bool:
    """Return whether a queue changed during planning in a way that the fingerprints of `start` do not show."""
    firsts = {queue: begin for queue, begin in batch.begin.items() if queue not in start.next}
    unknown = {queue: end for queue, end in following.items() if queue not in known}
    return has_deleted_queue(log, unknown) or any(map(log.fingerprints, (firsts, unknown)))
