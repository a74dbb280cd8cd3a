"""The streaming reader: Spark's verbs for micro-batches, composed of offsets, planning and reading."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_mq.errors import MqSourceError, OptionError
from pyspark_mq.offsets.checkpoint import BatchStart, StreamOffset, batch_ranges, begin_batch
from pyspark_mq.offsets.losses import Case, Loss, report_loss
from pyspark_mq.offsets.positions import to_json
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.query_group import GroupProgress, OrderlyQueues, group_of
from pyspark_mq.planning.queues import Queues, are_gone, ends, is_enough, replaced_queues, unchanged
from pyspark_mq.planning.shares import limit_ranges
from pyspark_mq.source.reading import RangeReader, partitions_of
from store.model.log_protocol import Bounds, Fingerprints, Int64s, Log, Positions, Queue, QueueRange

_NO_LIMIT = (1 << 63) - 1


class MqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of its own beside the driver, for one run of one query.

    Offsets are JSON as `offsets.StreamOffset` writes it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises `OptionError`, `SchemaError`. Opens nothing: tasks unpickle this too."""
        self._options = options
        self._start = options.stream_start()
        self._range_reader = RangeReader(options, schema)
        self._no_start: MqSourceError | None = None  # why a new query cannot start
        self._target: Positions | None = None  # where Trigger.AvailableNow ends
        self._bounds: dict[Queue, Bounds] = {}  # as last seen
        self._known: dict[str, Any] | None = None  # an offset of which this run has seen that the queues are its own
        self._parsed: list[tuple[dict[str, Any], StreamOffset]] = []  # the two offsets looked at last
        self._done: StreamOffset | None = None  # what was said last to be done
        self._turn: int | None = None  # of the last batch that was limited
        self._triggered = -math.inf  # when the last batch was, time.monotonic(); the first one comes at once

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts. Spark may ask again: what counts is the pin in the first end offset.

        So it does when the first batch is to be run again, and queues came or went meanwhile: what is wrong with the
        start is raised only when a batch is planned from there.
        """
        positions: Positions = {}
        try:
            positions = self._queues.resolve("startingOffsets", self._start, self._queues.bounds_of_all())
        except MqSourceError as error:
            self._no_start = error
        return StreamOffset(positions, starts=positions, last=self._log.fingerprints(positions)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = ends(self._queues.bounds())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never ReadAllAvailable: so that means Trigger.Once. `latestOffset` applies the real limits."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing new after holding for an arrival.

        Raises `DataLossError` (see `failOnDataLoss`), `SubscriptionError`, `CheckpointError`, `QueuesTaken`, and
        `OptionError` for a start that cannot be.
        """
        offset = self._offset(start)
        self._must_start(offset)
        self._tell(offset)
        once = isinstance(limit, ReadAllAvailable)
        waits = not once and self._target is None
        if not self._take(self._options.hold_timeout_seconds if waits else math.inf):
            return start
        offset = self._ahead(offset)
        hold, least = (self._options.hold_timeout_seconds, self._least()) if waits else (0.0, 1)
        self._bounds = self._queues.hold(hold, offset.next, offset.next, least)
        if start == self._known and not is_enough(offset.next, self._bounds, least) and not self._others(offset):
            return self._idle(start)
        end = self._end(offset, once)
        if end is None:  # another member has a queue that is new: the unchanged offset would end a Trigger.AvailableNow
            return self._idle(start) if waits else self.latestOffset(start, limit)
        if end is offset:
            self._known = start
            return self._idle(start)
        self._triggered = time.monotonic()
        self._known = end.to_json()
        self._parsed = [*self._parsed[-1:], (self._known, end)]
        return self._known

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(ends(self._bounds))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Depends on the two offsets and the options only, so a replayed batch is the same batch.

        Raises `DataLossError` for a batch to be run again from queues that are others now (see `failOnDataLoss`).
        """
        until = self._offset(end)
        if end != self._known:
            self._take(math.inf)
        ranges = batch_ranges(self._offset(start), until)
        if end != self._known:
            self._must_be_same(until.next, until.last)
        return partitions_of(ranges, self._options, until.next, until.last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._range_reader.read(partition)

    def stop(self) -> None:
        if "_group" in self.__dict__ and self._group is not None:
            self._group.tell()
        if "_orderly" in self.__dict__ and self._orderly is not None:
            self._orderly.close()
        if "_log" in self.__dict__:
            self._log.close()

    def _offset(self, json_: dict[str, Any]) -> StreamOffset:
        """Spark hands in each offset several times, and it takes long to check what it has of a thousand queues.

        Raises `CheckpointError`.
        """
        for known, offset in self._parsed:
            if known == json_:
                return offset
        offset = StreamOffset.from_json(json_)
        self._parsed = [*self._parsed[-1:], (json_, offset)]
        return offset

    def _must_start(self, offset: StreamOffset) -> None:
        """Raises what is wrong with where a new query starts, where `offset` is that."""
        if self._no_start is not None and not offset.next:
            raise self._no_start

    def _least(self) -> int:
        """How many messages the next batch has at least."""
        is_late = time.monotonic() - self._triggered >= self._options.max_trigger_delay_seconds
        return 1 if is_late else self._options.min_offsets_per_trigger or 1

    def _tell(self, reached: StreamOffset) -> None:
        """Spark asks for a batch when it has logged the one before: it is done then, and `commit` may never come."""
        if self._orderly is not None:
            self._orderly.heed_resets()
            if reached != self._done and self._orderly.done(unchanged(self._log, reached.next, reached.last)):
                self._done = reached
        if self._group is not None:
            self._group.reached(reached.next, reached.last)

    def _take(self, timeout: float) -> bool:
        """Whether this query may read: an orderly one has to have its queues."""
        return self._orderly is None or self._orderly.take(self._queues.bounds(), timeout)

    def _has_all(self) -> bool:
        """Whether the queues last seen are those that it took."""
        return self._orderly is None or self._orderly.take(self._bounds, 0.0)

    def _ahead(self, offset: StreamOffset) -> StreamOffset:
        """Where to go on: its group may be further than an orderly query, which pins that.

        What stands before that nobody noted: it counts from now on.
        """
        further = {} if self._orderly is None else self._orderly.further(offset.next)
        if not further:
            return offset
        known = {queue: was for queue, was in offset.last.items() if queue not in further}
        last = known | self._log.fingerprints(further)
        return replace(offset, next=offset.next | further, starts=offset.starts | further, last=last)

    def _idle(self, start: dict[str, Any]) -> dict[str, Any]:
        """`start`, behind which nothing is. Its group is told at once: Spark may end this process without `stop`."""
        if self._group is not None:
            self._group.tell()
        if self._orderly is not None:
            self._orderly.tell()
        return start

    @cached_property
    def _group(self) -> GroupProgress | None:
        options = self._options
        if options.consumer_group is None or options.orderly is not None:
            return None
        return GroupProgress(self._log, options.address, options.consumer_group)

    @cached_property
    def _orderly(self) -> OrderlyQueues | None:
        options = self._options
        if options.orderly is None or options.consumer_group is None:
            return None
        reads = dict.fromkeys(options.subscription.names(), options.expression)
        return OrderlyQueues(group_of(options.address, options.consumer_group), reads, options.orderly)

    @cached_property
    def _log(self) -> Log:
        return self._options.address.open()

    @cached_property
    def _queues(self) -> Queues:
        return Queues(self._log, self._options)

    def _end(self, offset: StreamOffset, once: bool) -> StreamOffset | None:
        """The end of the batch after `offset`: that itself where nothing came. Otherwise as `_planned`."""
        end = self._planned(offset, partial(self._limited, offset, once))
        return offset if end is not None and end.next is offset.next else end

    def _planned(
        self, offset: StreamOffset, up_to: Callable[[BatchStart], Positions], strange: Sequence[Queue] = ()
    ) -> StreamOffset | None:
        """The end of the batch after `offset`, which is where `up_to` says by what was seen last.

        None while not all queues are this query's. strange: queues of which it is known that they are others now.
        Whether more are is looked at last of all, for a topic may be deleted and created anew while this plans. Raises
        `DataLossError`.
        """
        if not self._has_all():
            return None
        batch = begin_batch(offset, self._bounds, strange)
        following = up_to(batch)
        last = self._queues.last(following, batch)
        others = [queue for queue in self._others(offset) if queue not in strange]
        firsts = {queue: begin for queue, begin in batch.begin.items() if queue not in offset.next}
        unknown = {queue: end for queue, end in following.items() if queue not in last}
        if others or are_gone(self._log, following, last) or any(map(self._log.fingerprints, (firsts, unknown))):
            self._bounds = self._queues.bounds_behind(offset.next)
            return self._planned(offset, up_to, [*strange, *others])
        for loss in batch.losses:
            report_loss(self._options.fail_on_data_loss, loss)
        return StreamOffset(following, batch.starts, last)

    def _limited(self, offset: StreamOffset, once: bool, batch: BatchStart) -> Positions:
        """Where the batch after `offset` ends by the limits, which count unless it is the only one, `once`;
        `offset.next` itself where nothing came."""
        ranges = self._available(offset, batch)
        if not batch.losses and {r.queue: r.end for r in ranges} == offset.next:
            return offset.next
        return {r.queue: r.end for r in (ranges if once else self._limit(ranges))}

    def _others(self, offset: StreamOffset) -> list[Queue]:
        """The queues that are others than when `offset` was noted."""
        return replaced_queues(self._log, offset.next, offset.last)

    def _must_be_same(self, positions: Positions, last: Fingerprints) -> None:
        """Where another message stands before a position than `last` says it is data loss."""
        others = replaced_queues(self._log, positions, last)
        for queue, there in self._log.bounds(others).items():
            lost = QueueRange(queue, positions[queue], positions[queue])
            report_loss(self._options.fail_on_data_loss, Loss(lost, Case.ANOTHER, there))

    def _available(self, offset: StreamOffset, batch: BatchStart) -> list[QueueRange]:
        """All there is to read, up to the target of Trigger.AvailableNow if there is one."""
        if self._target is None:
            return [QueueRange(queue, begin, self._bounds[queue].max_offset) for queue, begin in batch.begin.items()]
        return [
            QueueRange(queue, begin, max(begin, min(self._bounds[queue].max_offset, self._target.get(queue, 0))))
            for queue, begin in batch.begin.items()
            if queue in self._target or queue in offset.next
        ]

    def _limit(self, ranges: list[QueueRange]) -> list[QueueRange]:
        # By its positions at first: a query that is restarted after every batch serves others each time, too.
        self._turn = hash(tuple(r.start for r in ranges)) if self._turn is None else self._turn + 1
        return limit_ranges(
            ranges,
            self._options.max_offsets_per_trigger,
            self._options.max_bytes_per_trigger,
            self._sizes,
            self._turn,
        )

    def _sizes(self, r: QueueRange) -> Int64s:
        """Record sizes; 0 for what was deleted since `r` was planned: the task that is to read it says so."""
        sizes = self._log.sizes(r)
        if sizes is None:
            raise OptionError(
                f"maxBytesPerTrigger: {self._options.address} does not tell how large messages are before they are "
                "read; use maxOffsetsPerTrigger"
            )
        return sizes
