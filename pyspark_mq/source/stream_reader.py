"""Spark's streaming readers. They convert the planner's offsets to the JSON of Spark's checkpoint and to partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_mq.errors import MqSourceError
from pyspark_mq.offsets.stream_offsets import EpochOffset, StreamOffset, batch_ranges, to_json
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.planner import Planner
from pyspark_mq.planning.queues import ends
from pyspark_mq.source.epochs import Epochs
from pyspark_mq.source.held_reading import HeldTask
from pyspark_mq.source.reading import RangeReader, partitions_of

_NO_LIMIT = (1 << 63) - 1
Json = dict[str, Any]


class MqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's reader of micro-batches, for one run of one query. Spark runs it in a process beside the driver.

    If the checkpoint's last batch was a real-time batch, the reader takes its end from the ledger.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Open nothing, because tasks unpickle this object. Raises `OptionError`, `SchemaError`."""
        self._options = options
        self._planner = Planner(options)
        self._epochs = Epochs(options)
        self._range_reader = RangeReader(options, schema)
        self._parsed: list[tuple[Json, StreamOffset | EpochOffset]] = []  # the last two parsed offsets

    def initialOffset(self) -> Json:
        return self._planner.first().to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.end_with_present_messages()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit other than ReadAllAvailable, which would mean Trigger.Once.

        The planner applies the real limits.
        """
        return ReadMaxRows(self._options.max_offsets_per_trigger or _NO_LIMIT)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the next batch, or `start` if nothing arrives.

        Raises `CheckpointError`, `LedgerError`, and the errors of `Planner.micro_batch`.
        """
        before = self._offset(start)
        begin = self._epochs.resolve(before) if isinstance(before, EpochOffset) else before
        end = self._following(before, begin, once=isinstance(limit, ReadAllAvailable))
        if end is None:
            return start
        json_ = end.to_json()
        self._remember(json_, end)
        return json_

    def reportLatestOffset(self) -> Json | None:
        return to_json(ends(self._planner.bounds))

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Return the tasks of a batch.

        They depend only on the offsets and the options, so a replay reads the same messages. Raises `DataLossError`.
        """
        before, until = self._offset(start), self._offset(end)
        if isinstance(before, EpochOffset):
            # Not already when `end` is planned, because Spark has not logged it then.
            self._epochs.mark_passed(before, until)
            before = StreamOffset({})  # after a real-time batch every queue is pinned
        self._planner.require_same_queues(until)
        if isinstance(until, EpochOffset):
            return self._epochs.partitions(until, self._planner.member)
        return partitions_of(batch_ranges(before, until), self._options, until.next, until.last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, HeldTask):
            return self._epochs.read(partition.value, self._range_reader)
        return self._range_reader.read(partition)

    def commit(self, end: Json) -> None:
        """Delete records of earlier batches. Spark calls this after it has logged the batch after `end`."""
        offset = self._offset(end)
        if isinstance(offset, EpochOffset):
            self._epochs.forget_before(offset)

    def stop(self) -> None:
        self._planner.close()

    def _following(
        self, before: StreamOffset | EpochOffset, begin: StreamOffset, *, once: bool
    ) -> StreamOffset | EpochOffset | None:
        """Return the end of the batch after `before`, None if nothing arrived.

        begin: where `before` ended. once: this is the query's only batch.
        """
        end = self._planner.micro_batch(begin, once=once)
        return None if end is begin else end

    def _offset(self, json_: Json) -> StreamOffset | EpochOffset:
        """Parse an offset.

        The last two are cached, because Spark passes each several times, and parsing a thousand queues is slow.
        """
        for known, offset in self._parsed:
            if known == json_:
                return offset
        offset = EpochOffset.from_json(json_) or StreamOffset.from_json(json_)
        self._remember(json_, offset)
        return offset

    def _remember(self, json_: Json, offset: StreamOffset | EpochOffset) -> None:
        self._parsed = [*self._parsed[-1:], (json_, offset)]


class RealTimeStreamReader(MqStreamReader):
    """Spark's reader of real-time batches.

    With Trigger.AvailableNow and Trigger.Once it reads micro-batches, because these triggers need a known end.
    """

    def _following(
        self, before: StreamOffset | EpochOffset, begin: StreamOffset, *, once: bool
    ) -> StreamOffset | EpochOffset | None:
        if once or self._planner.limits.target is not None:
            return super()._following(before, begin, once=once)
        opened = self._planner.real_time_batch(begin)
        if opened is None:
            return None
        end = self._epochs.following(opened, before)
        self._planner.confirmed = end
        return end


def stream_reader(options: SourceOptions, schema: StructType) -> MqStreamReader:
    return (RealTimeStreamReader if options.real_time else MqStreamReader)(options, schema)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that raises its error at Spark's first call: Spark hides errors from creating a reader."""

    def __init__(self, why: MqSourceError) -> None:
        self._why = why

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        raise self._why

    def getDefaultReadLimit(self) -> NoReturn:
        raise self._why

    def initialOffset(self) -> NoReturn:
        raise self._why

    def latestOffset(self, start: Json, limit: ReadLimit) -> NoReturn:
        raise self._why

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        raise self._why

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._why
