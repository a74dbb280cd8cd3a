"""Spark's verbs for writing: a batch, and the micro-batches of a stream; by which delivery is said in `deliveries`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_mq.errors import OptionError
from pyspark_mq.options.sink import Guarantee, WriteOptions
from pyspark_mq.sink.deliveries import AllOrNothing, AtLeastOnce, Delivery, OncePerBatch, Sent, require_topic
from pyspark_mq.sink.schema import check_schema


class MqBatchWriter(DataSourceArrowWriter):
    """One `df.write`. Made in the driver; tasks and the commit get it pickled."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises `OptionError`, `SchemaError`, `SubscriptionError`, `StagingError`, and what opening a store does."""
        if overwrite:
            raise OptionError('A topic is only appended to: write with mode("append")')
        whole = AllOrNothing if options.producer_group is None else OncePerBatch
        self._delivery = _checked(options, schema, whole)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._delivery.send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.commit(_sent(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.abort()


class MqStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of `df.writeStream`: made for its tasks, and made once more for its commit."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises as `MqBatchWriter`."""
        if overwrite:
            raise OptionError(
                'A topic is only appended to, and complete mode gives all results again: use outputMode("append")'
            )
        self._delivery = _checked(options.for_stream(), schema, OncePerBatch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._delivery.send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.commit(_sent(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.abort()


def _checked(options: WriteOptions, schema: StructType, exactly_once: type[AllOrNothing]) -> Delivery:
    """What delivers rows of `schema`. Raises what would make all tasks fail."""
    check_schema(schema, options.topic)
    with options.address.open() as log:
        if options.topic is not None:
            require_topic(options.address, log, options.topic)
    delivery = (AtLeastOnce if options.guarantee is Guarantee.AT_LEAST_ONCE else exactly_once)(options)
    delivery.prepare()
    return delivery


def _sent(messages: Sequence[WriterCommitMessage | None]) -> list[Sent]:
    return [message for message in messages if isinstance(message, Sent)]
