from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.limits import option_of
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.queues import Queues
from pyspark_mq.source.reading import RangeReader, partitions_of
from store.format.layout import KEY_SEPARATOR, PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from store.model.log_protocol import Log, MessageFilter, QueueRange
from store.read.conditions import texts_of
from store.read.sql_filter import SqlFilter

_logger = logging.getLogger("pyspark_mq")
if "PYSPARK_SPARK_SESSION_UUID" in os.environ:  # in Python processes that Spark started: users see their log records
    _logger.setLevel(logging.INFO)


class MqBatchReader(DataSourceReader):
    """Spark's reader of a batch query: offsets [start, end) of each subscribed queue, planned once for each
    DataFrame.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises `OptionError`, `SchemaError`."""
        self._options = options
        self._start, self._end = options.batch_limits()
        self._range_reader = RangeReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises `OptionError` for a range that ends before it starts, and the errors of `Queues`."""
        with self._options.address.open() as log:
            queues = Queues(log, self._options)
            bounds = queues.bounds_of_all()
            ends = queues.resolve("endingOffsets", self._end, bounds)
            starts = queues.resolve("startingOffsets", self._start, bounds)
            last = log.fingerprints(ends)
            ranges = [QueueRange(queue, starts[queue], end) for queue, end in ends.items()]
            for r in ranges:
                if r.start > r.end:
                    raise OptionError(
                        f"{r.queue}: the end ({option_of(self._end, 'endingOffsets')}) is offset {r.end}, before the "
                        f"start ({option_of(self._start, 'startingOffsets')}), offset {r.start}. Give an end after "
                        "the start"
                    )
            left = narrowed(log, ranges, self._options.message_filter)
        counts = (sum(r.length for r in each) for each in (left, ranges))
        _logger.info("%s: reads %d of %d messages", self._options.address, *counts)
        return partitions_of(left, self._options, ends, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._range_reader.read(partition)


def narrowed(log: Log, ranges: Iterable[QueueRange], message_filter: MessageFilter) -> list[QueueRange]:
    """Return the parts of `ranges` that can match.

    The log's index finds them for a condition on keys or message ids.
    """
    left = [r for r in ranges if r.length > 0]
    if isinstance(message_filter, SqlFilter):
        keys = texts_of(message_filter.condition, PROPERTY_KEYS)
        # The index has an entry for each key of a message, so the first key is enough.
        firsts = None if keys is None else [key for text in keys for key in text.split(KEY_SEPARATOR)[:1] if key]
        ids = texts_of(message_filter.condition, PROPERTY_UNIQ_KEY)
        for wanted in (firsts if firsts and keys and len(firsts) == len(keys) else None, ids):
            left = left if wanted is None else log.with_keys(left, list(wanted))
    return left
