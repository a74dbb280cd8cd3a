"""The baseline for reading: a Python source that yields one prebuilt batch repeatedly.

It has the same partitions, columns and values as the compared store. The ratio shows the cost of a real source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.bench import QUEUES, TOPIC
from store import MessageStore

_BATCH_ROWS = 20_000
_BATCH_BYTES = 64 << 20


class _Null:
    def __init__(self, path: str, columns: tuple[str, ...]) -> None:
        self._path = path
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with MessageStore.open(self._path, read_only=True) as store:
            start, end = store.offsets(TOPIC, partition.value)
            messages = store.scan(
                TOPIC, partition.value, start, end, self._columns, max_rows=_BATCH_ROWS, max_bytes=_BATCH_BYTES
            )
            batch = next(messages)
        for done in range(start, end, batch.num_rows):
            yield batch.slice(0, min(batch.num_rows, end - done))


class NullReader(_Null, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(queue) for queue in range(QUEUES)]


class NullStreamReader(_Null, DataSourceStreamReader):
    """One micro-batch."""

    def initialOffset(self) -> dict[str, Any]:
        return {"done": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        return {"done": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(queue) for queue in range(QUEUES)]


class NullSource(DataSource):
    """`format("null")` with option `path`: the store whose partitions and columns it copies."""

    @classmethod
    def name(cls) -> str:
        return "null"

    def reader(self, schema: StructType) -> DataSourceReader:
        return NullReader(self.options["path"], tuple(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NullStreamReader(self.options["path"], tuple(schema.fieldNames()))
