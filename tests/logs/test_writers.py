"""Spark's sink into a log that is no directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from store.any_log import Queue, QueueRange
from store.format.topic_names import COMMITS_TOPIC
from tests.logs.made import A0, A1, messages, numbers, scan
from tests.logs.memory import Memory, MemoryAddress, serve
from tests.logs.memory_source import MemorySource

COPY = Queue("copy", 0)
RECORDS = Queue(COMMITS_TOPIC, 0)


@pytest.fixture
def memory() -> Memory:
    """10 messages in queue 0 of topic a, 5 in queue 1; a topic to copy them to."""
    it = Memory()
    it.create_topic("a", 2)
    it.create_topic("copy", 1)
    it.append([*messages(A0, range(10)), *messages(A1, range(10, 15))])
    return it


@pytest.fixture
def address(memory: Memory) -> MemoryAddress:
    return serve(memory)


def copied(address: MemoryAddress) -> list[int]:
    with address.open() as log:
        return sorted(numbers(log, QueueRange(COPY, *log.bounds([COPY])[COPY])))


def test_a_streaming_query_from_topic_to_topic(
    spark: SparkSession, memory: Memory, address: MemoryAddress, tmp_path: Path
) -> None:
    """A batch that Spark runs again, for its checkpoint forgot that it was done, is not written again."""
    spark.dataSource.register(MemorySource)
    checkpoint, staging = tmp_path / "checkpoint", tmp_path / "staging"

    def run() -> None:
        frame = spark.readStream.format("memory-log").options(subscribe="a", startingOffsets="earliest")
        rows = frame.load(address.socket).select("body", "tags")
        writer = rows.writeStream.format("memory-log").options(topic="copy", stagingPath=str(staging))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(address.socket)
        assert query.awaitTermination(120)

    run()
    assert copied(address) == [*range(15)]
    memory.append(messages(A1, range(15, 20)))
    run()
    assert copied(address) == [*range(20)]
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run()
    assert copied(address) == [*range(20)]
    with address.open() as log:
        (records,) = scan(log, QueueRange(RECORDS, *log.bounds([RECORDS])[RECORDS]))
    assert [json.loads(body)["rows"] for body in records["body"].to_pylist()] == [15, 5]
    (mark,) = staging.glob("commits/*/mark.json")
    assert json.loads(mark.read_text())["written"]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_batch_write(spark: SparkSession, address: MemoryAddress, tmp_path: Path, delivery: str) -> None:
    spark.dataSource.register(MemorySource)
    staging = {"stagingPath": str(tmp_path / "staging")} if delivery == "exactly-once" else {}
    rows = spark.range(20, numPartitions=2).selectExpr("string(id) AS body", "'copy' AS topic")
    rows.write.format("memory-log").mode("append").options(delivery=delivery, **staging).save(address.socket)
    assert copied(address) == [*range(20)]


def test_exactly_once_needs_a_place_for_rows(spark: SparkSession, address: MemoryAddress) -> None:
    spark.dataSource.register(MemorySource)
    rows = spark.range(1).selectExpr("string(id) AS body")
    with pytest.raises(PySparkException, match=r"has no directory for that: set the option stagingPath"):
        rows.write.format("memory-log").mode("append").option("topic", "copy").save(address.socket)
