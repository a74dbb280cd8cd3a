"""The batch reader: one fixed range of each subscribed queue, planned once for each DataFrame."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.errors import OptionError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.pushdown import narrow_by_log, narrow_tags
from pyspark_mq.planning.queues import Queues
from pyspark_mq.source.reading import RangeReader, partitions_of
from store.model.log_protocol import QueueRange

_logger = logging.getLogger("pyspark_mq")
if "PYSPARK_SPARK_SESSION_UUID" in os.environ:  # a process of Spark's, which keeps what is logged here for its user
    _logger.setLevel(logging.INFO)


class MqBatchReader(DataSourceReader):
    """Reads [startingOffsets, endingOffsets) of each subscribed queue."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises `OptionError`, `SchemaError`."""
        self._options = options
        self._start, self._end = options.batch_limits()
        self._schema = schema
        self._filters: list[Filter] = []
        self._range_reader = RangeReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Raises what `Queues` does, and `OptionError` for a range that ends before it starts."""
        with self._options.address.open() as log:
            queues = Queues(log, self._options)
            bounds = queues.bounds_of_all()
            ends = queues.resolve("endingOffsets", self._end, bounds)
            starts = queues.resolve("startingOffsets", self._start, bounds)
            last = log.fingerprints(ends)
            ranges = [QueueRange(queue, starts[queue], end) for queue, end in ends.items()]
            for r in ranges:
                if r.start > r.end:
                    raise OptionError(f"endingOffsets has {r.end} for {r.queue}, before its start {r.start}")
            narrowed = narrow_by_log(log, ranges, self._filters)
        left, there = (sum(r.length for r in each) for each in (narrowed, ranges))
        _logger.info(
            "%s: reads %d of %d messages, by %d filters", self._options.address, left, there, len(self._filters)
        )
        return partitions_of(narrowed, self._options, ends, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._range_reader.read(partition)


class FilteringBatchReader(MqBatchReader):
    """A batch reader that reads less where Spark hands it the query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Spark still has to evaluate all of them."""
        self._filters = filters
        self._options = replace(self._options, message_filter=narrow_tags(self._options.message_filter, filters))
        self._range_reader = RangeReader(self._options, self._schema)
        return filters
