from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from store import MessageStore
from tests.end_to_end.written import (
    bodies,
    come_to_its_end,
    forget_above,
    forget_last_commit,
    numbers,
    put,
    rows,
    run,
    source,
    staged,
    three_topics,
)

BOTH = pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with three_topics(tmp_path / "mq") as it:
        yield it


@contextmanager
def copying(frame: DataFrame, store: MessageStore, checkpoint: Path, **options: str) -> Iterator[StreamingQuery]:
    writer = frame.writeStream.format("mq").options(topic="copies", checkpointLocation=str(checkpoint), **options)
    query = writer.trigger(availableNow=True).start(str(store.path))
    try:
        yield query
        come_to_its_end(query)
    finally:
        query.stop()


COPIED = ("body", "tags", "keys", "bornTimestamp")


@BOTH
def test_restarted_query_copies_each_row_once(
    spark: SparkSession, store: MessageStore, tmp_path: Path, delivery: str
) -> None:
    for end in (100, 250, 300):
        put(spark, store, end - 50, end)
        frame = source(spark, store, maxOffsetsPerTrigger="40").select(*COPIED)
        with copying(frame, store, tmp_path / "checkpoint", delivery=delivery):
            pass
        assert sorted(rows(store, "copies", *COPIED)) == sorted(rows(store, "orders", *COPIED))
    assert staged(store) == []


@pytest.mark.parametrize(("delivery", "times"), [("exactly-once", 1), ("at-least-once", 2)])
def test_repeated_batch_is_written_once_or_at_least_once(
    spark: SparkSession, store: MessageStore, tmp_path: Path, delivery: str, times: int
) -> None:
    put(spark, store, 0, 100)
    frame = source(spark, store).select("body")
    for _ in range(2):
        with copying(frame, store, tmp_path / "checkpoint", delivery=delivery):
            pass
        forget_last_commit(tmp_path / "checkpoint")
    assert sorted(bodies(store, "copies")) == sorted(numbers(100) * times)
    assert staged(store) == []


def test_restored_store_is_older_than_the_checkpoint(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    """Every second batch is empty. After the checkpoint files that the error names are deleted, each row arrives
    once."""
    checkpoint, target, backup = (tmp_path / name for name in ("checkpoint", "target", "backup"))
    with MessageStore.open(target) as it:
        it.create_topic("copies", 1)
    frame = source(spark, store, maxOffsetsPerTrigger="10").where("int(string(body)) % 20 < 10").select("body")

    def copy(end: int) -> None:
        put(spark, store, end - 20, end)
        with MessageStore.open(target, read_only=True) as it, copying(frame, it, checkpoint):
            pass

    copy(20)
    shutil.copytree(target, backup)
    copy(40)
    shutil.rmtree(target)
    backup.rename(target)
    with pytest.raises(
        PySparkException, match=r"batch 1 was the last one written here and Spark now runs batch 4, .* batches above 1"
    ):
        copy(60)
    forget_above(1, checkpoint / "commits", checkpoint / "offsets")
    copy(80)
    with MessageStore.open(target) as it:
        assert sorted(bodies(it, "copies")) == sorted(b"%d" % n for n in range(80) if n % 20 < 10)


def test_several_queries_write_to_one_store(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    put(spark, store, 0, 300)
    frame = source(spark, store, maxOffsetsPerTrigger="60").select("body")
    evens, odds = (frame.where(F.col("body").cast("string").cast("int") % 2 == remainder) for remainder in (0, 1))
    with copying(evens, store, tmp_path / "evens"), copying(odds, store, tmp_path / "odds"):
        put(spark, store, 300, 400)
    for name, frame in (("evens", evens), ("odds", odds)):
        with copying(frame, store, tmp_path / name):
            pass
    assert sorted(bodies(store, "copies")) == numbers(400)
    assert staged(store) == []


@pytest.mark.parametrize(
    ("select", "output", "options", "message"),
    [
        (["body"], "complete", {}, r'only be appended to, and complete mode .* outputMode\("append"\)'),
        (["body"], "append", {"producerGroup": "x"}, "knows its query by the checkpoint, so remove producerGroup"),
    ],
)
def test_wrong_streams_are_refused(
    spark: SparkSession,
    store: MessageStore,
    tmp_path: Path,
    select: list[str],
    output: str,
    options: dict[str, str],
    message: str,
) -> None:
    put(spark, store, 0, 1)
    frame = source(spark, store)
    frame = frame.select(*select) if output == "append" else frame.groupBy("body").count().select("body")
    writer = frame.writeStream.format("mq").options(topic="copies", checkpointLocation=str(tmp_path), **options)
    with pytest.raises(PySparkException, match=message):
        run(writer.outputMode(output), str(store.path))
    assert bodies(store, "copies") == []
