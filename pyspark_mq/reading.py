"""Ranges of queues, read in a task as the Arrow batches Spark expects."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.errors import data_loss
from pyspark_mq.options import SourceOptions
from pyspark_mq.planning import pack, split
from pyspark_mq.schema import projection
from pyspark_mq.worker import spare_what_is_loaded
from store import OffsetLost
from store.any_log import Log, Queue, QueueRange, ReadSpec

ARRIVAL_TIMEOUT_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.25  # a shared file system does not notify


class RangeReader:
    """Reads ranges of one log as batches of one schema. Stateless, and picklable for the tasks."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        arrival_timeout_seconds: float = ARRIVAL_TIMEOUT_SECONDS,
    ) -> None:
        """Raises `SchemaError` for a schema that is no projection of the source's columns."""
        self._options = options
        columns, self._arrow_schema = projection(schema, null_bodies=options.oversized == "null")
        self._spec = ReadSpec(
            columns,
            options.message_filter,
            check_crc=options.check_crc,
            max_body_bytes=options.max_decompressed_message_size,
            oversized=options.oversized,
        )
        self._arrival_timeout_seconds = arrival_timeout_seconds

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches with exactly the declared Arrow schema. Raises `DataLossError`, and the store's `StoreError`.

        `partition` holds `QueueRange`s, or None, which is what Spark makes of an empty list of partitions.
        """
        if partition.value is None:
            return
        spare_what_is_loaded()
        with self._options.address.open() as log:
            for wanted in partition.value:
                yield from self.scan(log, self.published(log, wanted))

    def nothing(self) -> pa.RecordBatch:
        """A batch without rows."""
        columns = [pa.nulls(0, kind) for kind in self._arrow_schema.types]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)

    def scan(self, log: Log, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
        """The messages of `wanted`, which all were published. Raises as `read`."""
        for batch in self._scan(log, wanted):
            # The columns as they are; names and nullability as Spark declared them.
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._arrow_schema)

    def _scan(self, log: Log, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
        """The messages of `wanted`, which all were published; deleted ones are data loss."""
        while wanted.length > 0:
            try:
                yield from log.scan(wanted, self._spec)
                return
            except OffsetLost as error:
                # Rows already given out are older than what is there now, so none comes twice.
                bounds = log.bounds([wanted.queue]).get(wanted.queue)
                first = min(bounds.min_offset, wanted.end) if bounds else wanted.start
                if first <= wanted.start:
                    raise
                lost = wanted._replace(end=first)
                data_loss(self._options.fail_on_data_loss, f"{lost} is lost: {error}")
                wanted = wanted._replace(start=first)

    def published(self, log: Log, wanted: QueueRange) -> QueueRange:
        """Wait until this process sees all of `wanted`; what never comes is data loss."""
        deadline = time.monotonic() + self._arrival_timeout_seconds
        while (end := _end(log, wanted.queue)) < wanted.end and (left := deadline - time.monotonic()) > 0:
            log.wait({wanted.queue: end}, min(left, _LOOK_AGAIN_SECONDS))
        if end >= wanted.end:
            return wanted
        there = wanted._replace(end=max(wanted.start, end))
        data_loss(
            self._options.fail_on_data_loss,
            f"{wanted._replace(start=there.end)} is lost: after {self._arrival_timeout_seconds:.0f} s the "
            f"queue still ends at {end} in {self._options.address}; it was cut or created anew, "
            "or this machine does not see the directory that the driver sees",
        )
        return there


def partitions_of(ranges: Sequence[QueueRange], options: SourceOptions) -> list[InputPartition]:
    """The input partitions that read `ranges`, for `RangeReader.read`."""
    least = options.min_partitions or os.cpu_count() or 1  # Spark's slots are not known here
    pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
    return [InputPartition(packed) for packed in pack(pieces, least, options.max_records_per_partition)]


def _end(log: Log, queue: Queue) -> int:
    bounds = log.bounds([queue])
    return bounds[queue].max_offset if queue in bounds else 0  # not there yet, or no more
