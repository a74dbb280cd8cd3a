"""Call a real-time reader as Spark does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader, stream_reader
from tests.filled import Filled

Json = dict[str, Any]
Row = tuple[Any, ...]


def reader(filled: Filled, *, real_time: bool = True, batch_seconds: float = 0.1, **options: Any) -> MqStreamReader:
    """Return a reader whose batches read everything, however long that takes."""
    base = {"path": filled.path, "subscribe": "orders", "startingOffsets": "earliest", "holdTimeoutMs": "0"}
    if real_time:
        base |= {"realTime": "true", "realTimePartitions": "8"}
    parsed = SourceOptions.parse({**base, **options})
    if "batchDuration" not in options:
        parsed = replace(parsed, batch_duration_seconds=batch_seconds)
    return stream_reader(parsed, default_schema(False))


def latest(it: MqStreamReader, start: Json) -> Json:
    return it.latestOffset(start, it.getDefaultReadLimit())


def run(
    it: MqStreamReader, partitions: list[InputPartition], see: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Run all tasks concurrently, as with enough task slots."""
    results: list[list[Row]] = [[] for _ in partitions]
    threads = [
        threading.Thread(target=lambda p=p, out=out: out.extend(task(it, p, see)))
        for p, out in zip(partitions, results, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(row for rows in results for row in rows)


def task(it: MqStreamReader, partition: InputPartition, see: Callable[[Row], None] = lambda row: None) -> list[Row]:
    rows = []
    for batch in it.read(partition):
        for row in batch.to_pylist():
            rows.append(tuple(row[name] for name in ("topic", "queueId", "queueOffset", "body")))
            see(rows[-1])
    return rows
