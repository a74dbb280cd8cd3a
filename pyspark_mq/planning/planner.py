"""Plans the offsets of a query's next batch: from the offset before, what the log has, and the limits of the query.

Micro-batches and real-time batches share a planner: for both it acquires the query's queues, notices lost messages, and
tells the consumer group what is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, partial

from pyspark_mq.errors import MqSourceError, OptionError
from pyspark_mq.offsets.checkpoint import BatchStart, EpochOffset, StreamOffset, begin_batch
from pyspark_mq.offsets.losses import Case, Loss, report_loss
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.query_group import NoGroup, group_of_query
from pyspark_mq.planning.queues import Queues, are_gone, ends, is_enough, replaced_queues
from pyspark_mq.planning.shares import limit_ranges
from store.model.log_protocol import Bounds, Int64s, Log, Positions, Queue, QueueRange


class Planner:
    """Plans the batches of one run of one query, in the process beside Spark's driver."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises `OptionError`. Opens nothing: tasks unpickle this too."""
        self._options = options
        self._start = options.stream_start()
        self._start_error: MqSourceError | None = None  # why a new query cannot start
        self._target: Positions | None = None  # where Trigger.AvailableNow ends
        self._confirmed: StreamOffset | EpochOffset | None = None  # this run saw that its queues were not replaced
        self._turn: int | None = None  # of the last batch that was limited
        self._triggered = -math.inf  # when the last batch was planned, time.monotonic(); the first one comes at once
        self.bounds: dict[Queue, Bounds] = {}  # as last seen

    def first(self) -> StreamOffset:
        """Return where a new query starts. Spark may ask again: the pin in the first end offset counts.

        Spark also asks when the first batch runs again, and queues may have come or gone since. So an error of the
        start is raised only when a batch is planned from there.
        """
        positions: Positions = {}
        try:
            positions = self._queues.resolve("startingOffsets", self._start, self._queues.bounds_of_all())
        except MqSourceError as error:
            self._start_error = error
        return StreamOffset(positions, starts=positions, last=self._log.fingerprints(positions))

    def end_with_present_messages(self) -> None:
        """Plan up to the present end of each queue, for Trigger.AvailableNow."""
        self._target = ends(self._queues.bounds())

    @property
    def has_target(self) -> bool:
        """Whether the query ends at a known offset."""
        return self._target is not None

    @property
    def member(self) -> str | None:
        """The id of an orderly query among the members of its group."""
        return self._group.member

    def micro_batch(self, start: StreamOffset, *, once: bool) -> StreamOffset:
        """Return the end of the micro-batch after `start`; `start` itself if nothing arrives within `holdTimeoutMs`.

        once: plan all there is, without limits. Raises `DataLossError` (see `failOnDataLoss`), `SubscriptionError`,
        `QueuesTaken`, and `OptionError` for a start that cannot be.
        """
        waits = not once and self._target is None
        while True:
            begin = self._begin(start, self._options.hold_timeout_seconds if waits else math.inf)
            if begin is None:
                return start
            timeout, least = (self._options.hold_timeout_seconds, self._least_messages()) if waits else (0.0, 1)
            self.bounds = self._queues.hold(timeout, begin.next, begin.next, least)
            if start == self._confirmed and not is_enough(begin.next, self.bounds, least) and not self._replaced(begin):
                return self._idle(start)
            end = self._end(begin, partial(self._limited, begin, once))
            if end is not None:
                break
            if waits:  # otherwise the unchanged offset would end Trigger.AvailableNow
                return self._idle(start)
        if end.next is begin.next:
            self._confirmed = start
            return self._idle(start)
        self._triggered = time.monotonic()
        self._confirmed = end
        return end

    def real_time_batch(self, start: StreamOffset) -> StreamOffset | None:
        """Return where the real-time batch after `start` begins in each queue; None while it has no queue.

        Raises as `micro_batch`.
        """
        begin = self._begin(start, self._options.hold_timeout_seconds)
        if begin is None:
            return None
        self.bounds = self._queues.hold(self._options.hold_timeout_seconds, begin.next, {})
        planned = self._end(begin, lambda batch: batch.begin)
        return planned if planned is not None and planned.next else None

    def confirm(self, end: EpochOffset) -> None:
        """Note that this run planned `end`."""
        self._confirmed = end

    def require_same_queues(self, end: StreamOffset | EpochOffset) -> None:
        """Acquire the queues of a batch that runs again, and check that none was replaced since it was planned.

        Raises `DataLossError` (see `failOnDataLoss`), `QueuesTaken`.
        """
        if end == self._confirmed:
            return
        self._acquire(math.inf)
        positions = end.next if isinstance(end, StreamOffset) else end.begin
        replaced = replaced_queues(self._log, positions, end.last)
        for queue, there in self._log.bounds(replaced).items():
            lost = QueueRange(queue, positions[queue], positions[queue])
            report_loss(self._options.fail_on_data_loss, Loss(lost, Case.ANOTHER, there))

    def close(self) -> None:
        """Release what was opened."""
        if "_group" in self.__dict__:
            self._group.close()
        if "_log" in self.__dict__:
            self._log.close()

    @cached_property
    def _log(self) -> Log:
        return self._options.address.open()

    @cached_property
    def _queues(self) -> Queues:
        return Queues(self._log, self._options)

    @cached_property
    def _group(self) -> NoGroup:
        return group_of_query(self._log, self._options)

    def _begin(self, start: StreamOffset, timeout: float) -> StreamOffset | None:
        """Tell the group that the batch before `start` is done, and acquire the queues; None without them.

        Spark asks for a batch when it has logged the one before: it is done then, and `commit` may never come. The
        group of an orderly query may be further than `start`: then the batch is pinned to where the group is.
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
        """Whether the query may read: an orderly one needs the locks of all its queues."""
        return not self._group.locks or self._group.acquire(self._queues.bounds(), timeout)

    def _idle(self, start: StreamOffset) -> StreamOffset:
        """Return `start`. Its group learns at once what is done: Spark may end this process without `stop`."""
        self._group.persist()
        return start

    def _least_messages(self) -> int:
        """Return how many messages the next batch has at least."""
        is_late = time.monotonic() - self._triggered >= self._options.max_trigger_delay_seconds
        return 1 if is_late else self._options.min_offsets_per_trigger or 1

    def _end(self, start: StreamOffset, end_of: Callable[[BatchStart], Positions]) -> StreamOffset | None:
        """Return the end of the batch after `start`, which `end_of` chooses; None while the query lacks a queue.

        A topic may be deleted and recreated while this plans. So whether queues were replaced is checked last, and the
        batch is planned again if any was. Raises `DataLossError`.
        """
        replaced: list[Queue] = []
        while self._group.acquire(self.bounds, 0.0):
            batch = begin_batch(start, self.bounds, replaced)
            following = end_of(batch)
            last = self._queues.last(following, batch)
            more = [queue for queue in self._replaced(start) if queue not in replaced]
            if not more and not self._is_outdated(start, batch, following, last.keys()):
                for loss in batch.losses:
                    report_loss(self._options.fail_on_data_loss, loss)
                return StreamOffset(following, batch.starts, last)
            replaced += more
            self.bounds = self._queues.bounds_behind(start.next)
        return None

    def _is_outdated(
        self, start: StreamOffset, batch: BatchStart, following: Positions, known: Collection[Queue]
    ) -> bool:
        """Whether a queue changed while the batch was planned, beyond what fingerprints of `start` can tell."""
        firsts = {queue: begin for queue, begin in batch.begin.items() if queue not in start.next}
        unknown = {queue: end for queue, end in following.items() if queue not in known}
        if are_gone(self._log, unknown):
            return True
        return any(map(self._log.fingerprints, (firsts, unknown)))

    def _replaced(self, start: StreamOffset) -> list[Queue]:
        return replaced_queues(self._log, start.next, start.last)

    def _limited(self, start: StreamOffset, once: bool, batch: BatchStart) -> Positions:
        """Return where the micro-batch ends by its limits, which do not count if it is the only one, `once`.

        Return `start.next` itself if nothing came.
        """
        ranges = self._available(start, batch)
        if not batch.losses and {r.queue: r.end for r in ranges} == start.next:
            return start.next
        return {r.queue: r.end for r in (ranges if once else self._limit(ranges))}

    def _available(self, start: StreamOffset, batch: BatchStart) -> list[QueueRange]:
        """Return all there is to read, up to the target of Trigger.AvailableNow if there is one."""
        if self._target is None:
            return [QueueRange(queue, begin, self.bounds[queue].max_offset) for queue, begin in batch.begin.items()]
        return [
            QueueRange(queue, begin, max(begin, min(self.bounds[queue].max_offset, self._target.get(queue, 0))))
            for queue, begin in batch.begin.items()
            if queue in self._target or queue in start.next
        ]

    def _limit(self, ranges: list[QueueRange]) -> list[QueueRange]:
        # The first turn depends on positions: a query that restarts after every batch serves other queues each time.
        self._turn = hash(tuple(r.start for r in ranges)) if self._turn is None else self._turn + 1
        return limit_ranges(
            ranges,
            self._options.max_offsets_per_trigger,
            self._options.max_bytes_per_trigger,
            self._sizes,
            self._turn,
        )

    def _sizes(self, r: QueueRange) -> Int64s:
        """Return record sizes; 0 for messages deleted since `r` was planned, of which the task reports the loss."""
        sizes = self._log.sizes(r)
        if sizes is None:
            raise OptionError(
                f"maxBytesPerTrigger: {self._options.address} does not tell how large messages are before they are "
                "read; use maxOffsetsPerTrigger"
            )
        return sizes
