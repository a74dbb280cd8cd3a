"""One range of one queue, read in a task as the Arrow batches Spark expects."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.errors import data_loss
from pyspark_mq.offsets import QueueRange
from pyspark_mq.options import SourceOptions
from pyspark_mq.schema import projection
from pyspark_mq.worker import task_store
from store import MessageStore
from store.errors import OffsetLost, UnknownTopic

ARRIVAL_TIMEOUT_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.25  # a shared file system does not notify


class RangeReader:
    """Reads ranges of one store as batches of one schema. Stateless, and picklable for the tasks."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        arrival_timeout_seconds: float = ARRIVAL_TIMEOUT_SECONDS,
    ) -> None:
        """Raises `SchemaError` for a schema that is no projection of the source's columns."""
        self._options = options
        self._columns, self._arrow_schema = projection(schema, null_bodies=options.oversized == "null")
        self._arrival_timeout_seconds = arrival_timeout_seconds

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches with exactly the declared Arrow schema. Raises `DataLossError`, and the store's `StoreError`.

        `partition` holds a `QueueRange`, or None, which is what Spark makes of an empty list of partitions.
        """
        if partition.value is None:
            return
        with task_store(self._options.path) as store:
            yield from self.scan(store, self.published(store, partition.value))

    def nothing(self) -> pa.RecordBatch:
        """A batch without rows."""
        columns = [pa.nulls(0, kind) for kind in self._arrow_schema.types]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)

    def scan(self, store: MessageStore, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
        """The messages of `wanted`, which all were published. Raises as `read`."""
        for batch in self._scan(store, wanted):
            # The columns as they are; names and nullability as Spark declared them.
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._arrow_schema)

    def _scan(self, store: MessageStore, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
        """The messages of `wanted`, which all were published; deleted ones are data loss."""
        while wanted.length > 0:
            try:
                yield from store.scan(
                    *wanted,
                    columns=self._columns,
                    tags=self._options.sub_expression,
                    check_crc=self._options.check_crc,
                    max_body_bytes=self._options.max_decompressed_message_size,
                    oversized=self._options.oversized,
                )
                return
            except OffsetLost as error:
                # Rows already given out are older than what is there now, so none comes twice.
                first = min(store.min_offset(*wanted.queue), wanted.end)
                if first <= wanted.start:
                    raise
                lost = wanted._replace(end=first)
                data_loss(self._options.fail_on_data_loss, f"{lost} is lost: {error}")
                wanted = wanted._replace(start=first)

    def published(self, store: MessageStore, wanted: QueueRange) -> QueueRange:
        """Wait until this process sees all of `wanted`; what never comes is data loss."""
        deadline = time.monotonic() + self._arrival_timeout_seconds
        while True:
            confirm_offset = store.confirm_offset
            end = _max_offset(store, wanted)
            left = deadline - time.monotonic()
            if end >= wanted.end or left <= 0:
                break
            store.wait(confirm_offset, min(left, _LOOK_AGAIN_SECONDS))
        if end >= wanted.end:
            return wanted
        there = wanted._replace(end=max(wanted.start, end))
        data_loss(
            self._options.fail_on_data_loss,
            f"{wanted._replace(start=there.end)} is lost: after {self._arrival_timeout_seconds:.0f} s the "
            f"queue still ends at {end} in {self._options.path}; it was cut or created anew, "
            "or this machine does not see the directory that the driver sees",
        )
        return there


def _max_offset(store: MessageStore, wanted: QueueRange) -> int:
    try:
        return store.max_offset(*wanted.queue)
    except UnknownTopic:
        return 0  # not there yet, or no more
