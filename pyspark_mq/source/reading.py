from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pyspark_mq.errors import SchemaError
from pyspark_mq.offsets.losses import Loss, loss_in, report_loss
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.batch_limits import pack, split
from pyspark_mq.planning.queues import replaced_queues
from pyspark_mq.source.worker import freeze_loaded_objects
from store import COLUMNS, DEFAULT_COLUMNS, UnknownTopic
from store.model.errors import OffsetOutOfRange
from store.model.log_protocol import Fingerprints, Log, Positions, Queue, QueueRange, ReadSpec

PROPERTIES = "properties"
BODY_ERROR = "bodyError"
_MAY_BE_NULL = ("brokerName", "tags", "keys", "bornTimestamp", "storeTimestamp", BODY_ERROR)


def default_schema(include_properties: bool, *, null_bodies: bool = False) -> StructType:
    """Return the columns of a query without `.schema(...)`.

    null_bodies: unreadable bodies are null, with a column for the reason.
    """
    more = (*((PROPERTIES,) if include_properties else ()), *((BODY_ERROR,) if null_bodies else ()))
    return StructType([_field(name) for name in (*DEFAULT_COLUMNS, *more)])


def projection(schema: StructType, *, null_bodies: bool = False) -> tuple[tuple[str, ...], pa.Schema]:
    """Return the columns to read, and the Arrow schema that Spark expects of each batch.

    schema: any subset of `store.COLUMNS` in any order. Raises `SchemaError`.
    """
    names = tuple(schema.fieldNames())
    if not names:
        raise SchemaError(f"The schema names no column. Name some of {', '.join(COLUMNS)}")
    for field in schema.fields:
        _check(field, may_be_null=field.name in _MAY_BE_NULL or (null_bodies and field.name == "body"))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SchemaError(f"The schema names columns twice: {', '.join(repeated)}. Name each once")
    return names, to_arrow_schema(schema, timezone="UTC")


def _check(field: StructField, *, may_be_null: bool) -> None:
    if field.name not in COLUMNS:
        near = get_close_matches(field.name, COLUMNS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"available are {', '.join(COLUMNS)}"
        raise SchemaError(f"There is no column {field.name!r}: {hint}")
    expected = _field(field.name).dataType
    if field.dataType != expected:
        raise SchemaError(
            f"Column {field.name} is {expected.simpleString()}, but the schema says {field.dataType.simpleString()}. "
            f"Read it as {expected.simpleString()}, and cast it in the query"
        )
    if may_be_null and not field.nullable:
        raise SchemaError(f"Column {field.name} may be null, but the schema says NOT NULL. Remove NOT NULL")


def _field(name: str) -> StructField:
    return StructField(name, from_arrow_type(COLUMNS[name]), nullable=True)


ARRIVAL_TIMEOUT_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.25  # because shared file systems send no notifications


class RangeTask(NamedTuple):
    """What a task of a micro-batch reads.

    ends: the batch's end in each queue. last: fingerprints of the messages before the ends, if known.
    """

    ranges: tuple[QueueRange, ...]
    ends: Positions
    last: Fingerprints

    @classmethod
    def of(cls, ranges: tuple[QueueRange, ...], ends: Positions, last: Fingerprints) -> RangeTask:
        """Return a task for some ranges. ends, last: of the whole batch; they may have other queues."""
        queues = {wanted.queue for wanted in ranges}
        known = {queue: last[queue] for queue in queues & last.keys()}
        return cls(ranges, {queue: ends[queue] for queue in queues}, known)

    def is_another(self, log: Log, queue: Queue) -> bool:
        return bool(replaced_queues(log, {queue: self.ends[queue]}, self.last))

    def loss_in(self, log: Log, wanted: QueueRange) -> Loss | None:
        return loss_in(wanted, log.bounds([wanted.queue]).get(wanted.queue), self.is_another(log, wanted.queue))


class RangeReader:
    """Reads the ranges of tasks as Arrow batches. Stateless, and picklable for the tasks."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        arrival_timeout_seconds: float = ARRIVAL_TIMEOUT_SECONDS,
    ) -> None:
        self._options = options
        columns, self._arrow_schema = projection(schema, null_bodies=options.unreadable == "null")
        self._spec = ReadSpec(
            columns,
            options.message_filter,
            check_crc=options.check_crc,
            max_body_bytes=options.max_decompressed_message_size,
            unreadable=options.unreadable,
        )
        self._arrival_timeout_seconds = arrival_timeout_seconds

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield batches with exactly the declared Arrow schema. Raises `DataLossError`, and the store's `StoreError`.

        If there are no partitions, Spark makes one with value None.
        """
        task: RangeTask | None = partition.value
        if task is None:
            return
        freeze_loaded_objects()
        with self._options.address.open() as log:
            for wanted in task.ranges:
                yield from self.scan(log, wanted, task)

    def nothing(self) -> pa.RecordBatch:
        columns = [pa.nulls(0, kind) for kind in self._arrow_schema.types]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)

    def scan(self, log: Log, wanted: QueueRange, task: RangeTask) -> Iterator[pa.RecordBatch]:
        """Wait until this process sees the messages of `wanted`, and yield them. Raises as `read`."""
        if wanted.length > 0:
            self._wait(log, wanted, task)
            yield from self.scan_seen(log, wanted, task)

    def scan_seen(self, log: Log, wanted: QueueRange, task: RangeTask) -> Iterator[pa.RecordBatch]:
        """Yield the messages of `wanted` without waiting, because `log` has shown them before."""
        for batch in self._scan(log, wanted, task):
            # Spark requires the declared names and nullability.
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._arrow_schema)

    def _wait(self, log: Log, wanted: QueueRange, task: RangeTask) -> None:
        deadline, queue = time.monotonic() + self._arrival_timeout_seconds, wanted.queue
        while (there := log.bounds([queue])) and (end := there[queue].max_offset) < wanted.end:
            left = deadline - time.monotonic()
            if left <= 0 or task.is_another(log, queue):
                break
            log.wait({queue: end}, min(left, _LOOK_AGAIN_SECONDS))

    def _scan(self, log: Log, wanted: QueueRange, task: RangeTask) -> Iterator[pa.RecordBatch]:
        """Yield the messages of `wanted` that are not lost, each once. After a loss, continue with the rest of the
        range.

        If rows were yielded and then the range's end is lost, stop, because the queue was replaced or cut.
        """
        is_begun = False
        while wanted.length > 0:
            try:
                # Open the scan before the check: it then reads this queue even if the topic is replaced later.
                batches = log.scan(wanted, self._spec)
                if not task.is_another(log, wanted.queue):
                    for batch in batches:
                        is_begun = True
                        yield batch
                    return
            except (OffsetOutOfRange, UnknownTopic):
                loss = task.loss_in(log, wanted)
                if loss is None:
                    raise
            else:
                loss = task.loss_in(log, wanted)
            if loss is not None:
                report_loss(self._options.fail_on_data_loss, loss)
                if is_begun and loss.lost.start > wanted.start:
                    return
                wanted = loss.rest_of(wanted)


def partitions_of(
    ranges: Sequence[QueueRange], options: SourceOptions, ends: Positions, last: Fingerprints
) -> list[InputPartition]:
    """Return the input partitions of a batch. ends, last: see `RangeTask`."""
    least = options.min_partitions or os.cpu_count() or 1  # Spark's task slots are unknown here
    pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
    packed = pack(pieces, least, options.max_records_per_partition)
    return [InputPartition(RangeTask.of(pieces, ends, last)) for pieces in packed]
