"""Spark's readers over a log that is no directory, tells no sizes, and knows no message from another."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_mq.errors import OptionError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.realtime_reader import RealTimeStreamReader
from pyspark_mq.source.schema import default_schema
from tests.logs.made import A0, A1, messages
from tests.logs.memory import Memory, MemoryAddress, serve
from tests.logs.memory_source import MemorySource

EARLIEST = {"subscribe": "a", "startingOffsets": "earliest"}


@pytest.fixture
def memory() -> Memory:
    """10 messages in queue 0, 5 in queue 1."""
    it = Memory()
    it.create_topic("a", 2)
    it.append([*messages(A0, range(10)), *messages(A1, range(5))])
    return it


@pytest.fixture
def address(memory: Memory) -> MemoryAddress:
    return serve(memory)


def reader(address: MemoryAddress, **options: str) -> RealTimeStreamReader:
    parsed = SourceOptions.parse({"path": "/", "holdTimeoutMs": "0", **EARLIEST, **options})
    return RealTimeStreamReader(replace(parsed, address=address), default_schema(False))


def latest(it: RealTimeStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return it.latestOffset(start, it.getDefaultReadLimit())


def test_a_streaming_query(spark: SparkSession, memory: Memory, address: MemoryAddress, tmp_path: Path) -> None:
    spark.dataSource.register(MemorySource)
    seen: list[tuple[int, int, bytes]] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.extend((row.queueId, row.queueOffset, bytes(row.body)) for row in batch.collect())

    def run(**trigger: bool) -> Any:
        frame = spark.readStream.format("memory-log").options(**EARLIEST, maxOffsetsPerTrigger="8").load(address.socket)
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    assert run(availableNow=True).awaitTermination(120)
    memory.append(messages(A0, range(10, 13)))
    query = run()
    query.processAllAvailable()
    memory.append(messages(A1, range(5, 7)))
    query.processAllAvailable()
    query.stop()
    expected = [(0, n, str(n).encode()) for n in range(13)] + [(1, n, str(n).encode()) for n in range(7)]
    assert sorted(seen) == expected


def test_a_batch_query(spark: SparkSession, address: MemoryAddress) -> None:
    spark.dataSource.register(MemorySource)
    rows = spark.read.format("memory-log").options(subscribe="a", subExpression="B").load(address.socket).collect()
    assert sorted((row.queueId, row.queueOffset) for row in rows) == [
        *((0, n) for n in range(1, 10, 2)),
        *((1, n) for n in range(1, 5, 2)),
    ]


def test_real_time_batches(
    memory: Memory, address: MemoryAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    given = {"realTime": "true", "batchDuration": "1s", "realTimePartitions": "1", "ledgerPath": str(tmp_path / "l")}
    it = reader(address, **given)

    def rows(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
        batches = [batch for partition in it.partitions(start, end) for batch in it.read(partition)]
        return sorted((row["queueId"], row["queueOffset"]) for batch in batches for row in batch.to_pylist())

    start = it.initialOffset()
    first = latest(it, start)
    arrival = threading.Timer(0.2, memory.append, (messages(A1, range(5, 8)),))
    arrival.start()
    read = rows(start, first)
    arrival.join()
    assert read == [*((0, n) for n in range(10)), *((1, n) for n in range(8))]
    second = latest(it, first)
    memory.append(messages(A0, range(10, 11)))
    assert rows(first, second) == [(0, 10)]
    assert rows(start, first) == read  # by what the ledger says


def test_real_time_needs_a_place_for_its_ledger(address: MemoryAddress) -> None:
    with pytest.raises(OptionError, match=r"MemoryAddress.* has no directory for that: set the option ledgerPath"):
        reader(address, realTime="true")


def test_a_limit_of_bytes_needs_sizes(address: MemoryAddress) -> None:
    it = reader(address, maxBytesPerTrigger="1k")
    with pytest.raises(OptionError, match=r"maxBytesPerTrigger: .* use maxOffsetsPerTrigger"):
        latest(it, it.initialOffset())
