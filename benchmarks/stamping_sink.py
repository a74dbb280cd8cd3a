"""A streaming sink in Python that stamps its rows, to measure the latency of a real-time read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class StampingWriter(DataSourceStreamArrowWriter):
    """Writes (sent, seen) in µs to `path`/batch id/task.parquet. `sent` is a column of the rows."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        sent, seen = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in iterator:
            sent.append(batch.column("sent").to_numpy())
            seen.append(np.full(batch.num_rows, time.time_ns() // 1000))
        task = TaskContext.get()
        assert task is not None
        folder = self._path / str(task.getLocalProperty("streaming.sql.batchId"))
        folder.mkdir(parents=True, exist_ok=True)
        stamps = pa.table({"sent": np.concatenate(sent), "seen": np.concatenate(seen)})
        pq.write_table(stamps, folder / f"{task.partitionId()}.parquet")
        return WriterCommitMessage()


class StampingSink(DataSource):
    """`format("stamping")` with option `path`."""

    @classmethod
    def name(cls) -> str:
        return "stamping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StampingWriter:
        return StampingWriter(self.options["path"])
