"""The streaming reader: Spark's verbs for micro-batches, composed of offsets, planning and reading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_mq.errors import data_loss
from pyspark_mq.offsets import ANOTHER, BatchStart, Loss, QueueRange, StreamOffset, batch_ranges, begin_batch
from pyspark_mq.options import SourceOptions
from pyspark_mq.planning import Sizes, limit_ranges, split
from pyspark_mq.positions import Fingerprints, Positions, to_json
from pyspark_mq.queues import Queues
from pyspark_mq.reading import RangeReader
from store import MessageStore, OffsetLost
from store.cached import cached_property

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
        self._target: Positions | None = None  # where Trigger.AvailableNow ends
        self._tails: Positions = {}  # as last seen
        self._known: dict[str, Any] | None = None  # an offset of which this run has seen that the queues are its own
        self._turn = 0

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts. Spark may ask again: what counts is the pin in the first end offset."""
        bounds = self._queues.bounds(self._queues.tails())
        positions = self._queues.resolve("startingOffsets", self._start, bounds)
        return StreamOffset(positions, starts=positions).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._queues.tails()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never ReadAllAvailable: so that means Trigger.Once. `latestOffset` applies the real limits."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing new after holding for an arrival.

        Raises `DataLossError` (see `failOnDataLoss`), `SubscriptionError`, `CheckpointError`.
        """
        offset = StreamOffset.from_json(start)
        once = isinstance(limit, ReadAllAvailable)
        hold = 0.0 if once or self._target is not None else self._options.hold_timeout_seconds
        self._tails = self._queues.hold(hold, lambda: self._queues.tails(offset.next), seen=offset.next)
        if self._tails == offset.next and start == self._known:
            return start
        batch = self._begin(offset)
        ranges = self._available(offset, batch)
        if not batch.losses and {r.queue: r.end for r in ranges} == offset.next:
            self._known = start
            return start
        if not once:
            ranges = self._limit(ranges)
        ends = {r.queue: r.end for r in ranges}
        self._known = StreamOffset(ends, batch.starts, self._queues.last(ends, batch)).to_json()
        return self._known

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._tails)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Depends on the two offsets and the options only, so a replayed batch is the same batch.

        Raises `DataLossError` for a batch to be run again from queues that are others now (see `failOnDataLoss`).
        """
        until = StreamOffset.from_json(end)
        ranges = batch_ranges(StreamOffset.from_json(start), until)
        if end != self._known:
            self._must_be_same(until.next, until.last)
        pieces = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [InputPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._range_reader.read(partition)

    def stop(self) -> None:
        if "_store" in self.__dict__:
            self._store.close()

    @cached_property
    def _store(self) -> MessageStore:
        return MessageStore.open(self._options.path, create=False, read_only=True)

    @cached_property
    def _queues(self) -> Queues:
        return Queues(self._store, self._options)

    def _begin(self, offset: StreamOffset) -> BatchStart:
        """Where the batch after `offset` begins, up to `_tails`. Raises `DataLossError`."""
        inside = {queue: position for queue, position in offset.next.items() if position <= self._tails.get(queue, -1)}
        strange = self._queues.strange(inside, offset.last)
        batch = begin_batch(offset, self._queues.bounds(self._tails), strange)
        for loss in batch.losses:
            data_loss(self._options.fail_on_data_loss, str(loss))
        return batch

    def _must_be_same(self, positions: Positions, last: Fingerprints) -> None:
        """Where another message stands before a position than `last` says it is data loss."""
        tails = self._queues.tails(positions)
        there = {queue: position for queue, position in positions.items() if position <= tails.get(queue, -1)}
        for queue in self._queues.strange(there, last):
            lost = QueueRange(*queue, positions[queue], positions[queue])
            data_loss(self._options.fail_on_data_loss, str(Loss(lost, ANOTHER)))

    def _available(self, offset: StreamOffset, batch: BatchStart) -> list[QueueRange]:
        """All there is to read, up to the target of Trigger.AvailableNow if there is one."""
        if self._target is None:
            return [QueueRange(*queue, begin, self._tails[queue]) for queue, begin in batch.begin.items()]
        return [
            QueueRange(*queue, begin, max(begin, min(self._tails[queue], self._target.get(queue, 0))))
            for queue, begin in batch.begin.items()
            if queue in self._target or queue in offset.next
        ]

    def _limit(self, ranges: list[QueueRange]) -> list[QueueRange]:
        self._turn += 1
        return limit_ranges(
            ranges,
            self._options.max_offsets_per_trigger,
            self._options.max_bytes_per_trigger,
            self._sizes,
            self._turn,
        )

    def _sizes(self, r: QueueRange) -> Sizes:
        """Record sizes; 0 for what retention took since `r` was planned: the task that is to read it says so."""
        while True:
            first = min(max(r.start, self._store.min_offset(*r.queue)), r.end)
            try:
                return np.append(np.zeros(first - r.start, np.int64), self._store.sizes(*r._replace(start=first)))
            except OffsetLost:
                if self._store.min_offset(*r.queue) <= first:
                    raise
