"""What a Spark worker process is spared."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_mq import DefaultSource
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.batch_reader import MqBatchReader
from tests.filled import Filled


class SparedReader(MqBatchReader):
    """Reads as ever, and then tells how many objects the collector spares, where it was planned and where it read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planning = gc.get_freeze_count()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert sum(len(batch) for batch in super().read(partition))
        yield pa.RecordBatch.from_pydict({"queueOffset": [self._planning, gc.get_freeze_count()]})


class SparedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "spared"

    def reader(self, schema: StructType) -> MqBatchReader:
        super().reader(schema)
        return SparedReader(SourceOptions.parse(self.options), schema)


def test_the_collector_leaves_alone_what_workers_have_loaded(spark: SparkSession, filled: Filled) -> None:
    spark.dataSource.register(SparedSource)
    source = spark.read.format("spared").schema("queueOffset bigint")
    rows = source.options(path=filled.path, subscribe="orders").load().collect()
    assert len(rows) == 4
    assert min(row.queueOffset for row in rows) > 10_000


def test_but_not_in_the_users_own_process(filled: Filled) -> None:
    spared = gc.get_freeze_count()
    DefaultSource({"path": filled.path, "subscribe": "orders"}).reader(StructType.fromDDL("queueOffset bigint"))
    assert gc.get_freeze_count() <= spared
