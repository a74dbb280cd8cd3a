"""How many tasks Spark runs at once, by its settings and as a task is told."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_mq.source.slots import slots, task_slots


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
def test_slots_by_settings(settings: dict[str, str], there_are: int | None) -> None:
    named = {f"spark.{name}": value for name, value in settings.items()}
    assert slots(named.get) == there_are


def test_outside_of_a_task_nobody_knows() -> None:
    assert task_slots() is None


def test_a_task_is_told(spark: SparkSession) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"slots": pa.array([task_slots()], pa.int32())})

    assert {row.slots for row in spark.range(2).mapInArrow(told, "slots int").collect()} == {2}
