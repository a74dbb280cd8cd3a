"""The baseline for starting: a Python source with one prebuilt row that imports only modules that Spark has loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType


class EmptyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, Any]:
        return {"done": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"done": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"queueOffset": pa.array([0], pa.int64()), "body": pa.array([b"body"], pa.binary())})


class EmptySource(DataSource):
    """`format("empty")`."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return "queueOffset bigint, body binary"

    def streamReader(self, schema: StructType) -> EmptyStreamReader:
        return EmptyStreamReader()
