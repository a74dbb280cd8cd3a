"""The upper limit for reading: a source that only copies bodies from the mapped log, as every source must.

It assumes the facts that a real source must look up: all bodies have the length of the first, and the log contains what
the queues reference.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.bench import TOPIC
from benchmarks.null_source import NullReader, NullSource, NullStreamReader
from store import MessageStore
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.format.arrays import cut
from store.format.layout import RECORD_HEADER

_BATCH_ROWS = 1 << 14
_BATCH_BYTES = 4 << 20  # larger batches are slower
_logs: dict[str, CommitLog] = {}  # of this worker; a log stays mapped for its next task


class _Copy:
    _path: str

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        queue_id = partition.value
        with MessageStore.open(self._path, read_only=True) as store:
            start, end = store.offsets(TOPIC, queue_id)
            (first,) = store.scan(TOPIC, queue_id, start, start + 1, ("body",))
            size = int(store.sizes(TOPIC, queue_id, start, start + 1)[0])
            queue = ConsumeQueue.at(
                store.path, TOPIC, queue_id, store.config.mappedFileSizeConsumeQueue, writable=False
            )
            log_file_size = store.config.mappedFileSizeCommitLog
        log = _logs.setdefault(self._path, CommitLog(store.path, log_file_size, writable=False))
        width, rows = len(first["body"][0].as_py()), min(_BATCH_ROWS, _BATCH_BYTES // size)
        for begin in range(start, end, rows):
            positions = queue.entries(begin, min(end, begin + rows))["physical_offset"].astype(np.int64)
            for piece in np.split(positions, np.flatnonzero(np.diff(positions // log_file_size)) + 1):
                at, bodies = int(piece[0]), piece - piece[0] + RECORD_HEADER.itemsize
                view = log.segments.view(at, int(bodies[-1]) + width)
                columns = [np.arange(begin, begin + len(piece)), cut(view, bodies, np.full(len(piece), width))]
                yield pa.RecordBatch.from_arrays(columns, ["queueOffset", "body"])
                begin += len(piece)


class CopyReader(_Copy, NullReader): ...


class CopyStreamReader(_Copy, NullStreamReader):
    """One micro-batch."""


class CopySource(NullSource):
    """`format("copy")` with option `path`; its schema is `queueOffset bigint, body binary`."""

    @classmethod
    def name(cls) -> str:
        return "copy"

    def reader(self, schema: StructType) -> DataSourceReader:
        return CopyReader(self.options["path"], tuple(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CopyStreamReader(self.options["path"], tuple(schema.fieldNames()))
