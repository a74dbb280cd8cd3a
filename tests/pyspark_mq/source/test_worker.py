from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_mq import DefaultSource
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.batch_reader import MqBatchReader
from pyspark_mq.source.worker import slots, task_slots
from tests.filled import Filled


@pytest.mark.parametrize(
    ("settings", "there_are"),
    [
        ({"master": "local"}, 1),
        ({"master": "local[3]"}, 3),
        ({"master": "local[5,4]"}, 5),
        ({"master": "local[6, 4]", "task.cpus": "4"}, 1),
        ({"master": "local[*]"}, os.cpu_count()),
        ({"master": "local[2]", "task.cpus": "4"}, 1),
        ({"master": "yarn", "executor.instances": "3", "executor.cores": "4"}, 12),
        ({"master": "yarn", "executor.instances": "3", "executor.cores": "4", "task.cpus": "2"}, 6),
        ({"master": "spark://host:7077", "cores.max": "10"}, 10),
        ({"master": "local-cluster[2,1,1024]"}, None),
        ({"master": "yarn", "executor.instances": "3"}, None),
        (
            {
                "master": "k8s://x",
                "executor.instances": "3",
                "executor.cores": "4",
                "dynamicAllocation.enabled": "true",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_slots_are_computed_from_the_settings(settings: dict[str, str], there_are: int | None) -> None:
    named = {f"spark.{name}": value for name, value in settings.items()}
    assert slots(named.get) == there_are


def test_slots_are_unknown_outside_of_a_task() -> None:
    assert task_slots() is None


def test_slots_are_known_in_a_task(spark: SparkSession) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"slots": pa.array([task_slots()], pa.int32())})

    assert {row.slots for row in spark.range(2).mapInArrow(told, "slots int").collect()} == {2}


class SparedReader(MqBatchReader):
    """Returns the number of frozen objects at planning and at reading."""

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


def test_garbage_collector_skips_modules_of_workers(spark: SparkSession, filled: Filled) -> None:
    spark.dataSource.register(SparedSource)
    source = spark.read.format("spared").schema("queueOffset bigint")
    rows = source.options(path=filled.path, subscribe="orders").load().collect()
    assert len(rows) == 4
    assert min(row.queueOffset for row in rows) > 10_000


def test_garbage_collector_skips_nothing_in_the_users_process(filled: Filled) -> None:
    spared = gc.get_freeze_count()
    DefaultSource({"path": filled.path, "subscribe": "orders"}).reader(StructType.fromDDL("queueOffset bigint"))
    assert gc.get_freeze_count() <= spared
