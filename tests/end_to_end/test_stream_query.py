"""Streaming queries. The test process appends; Spark's source runs in another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.filled import Filled

Rows = list[tuple[str, int, int, bytes]]


class Sink:
    """The rows of each batch; a later attempt of a batch replaces an earlier one."""

    def __init__(self) -> None:
        self.batches: dict[int, Rows] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.select("topic", "queueId", "queueOffset", "body").collect()
        self.batches[batch_id] = sorted((r.topic, r.queueId, r.queueOffset, bytes(r.body)) for r in rows)

    @property
    def rows(self) -> Rows:
        return sorted(row for batch in self.batches.values() for row in batch)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@contextmanager
def query(
    spark: SparkSession, filled: Filled, sink: Sink, checkpoint: Path, trigger: dict[str, Any], **options: str
) -> Iterator[StreamingQuery]:
    if "subscribePattern" not in options:
        options = {"subscribe": "orders", **options}
    frame = spark.readStream.format("mq").options(**options).load(filled.path)
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    running = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield running
    finally:
        running.stop()


def run(
    spark: SparkSession, filled: Filled, sink: Sink, checkpoint: Path, trigger: str = "availableNow", **options: str
) -> list[dict[str, Any]]:
    """Run a query to its end; return the source's part of each batch's progress."""
    with query(spark, filled, sink, checkpoint, {trigger: True}, **options) as running:
        assert running.awaitTermination(120)
        return [json.loads(progress.json)["sources"][0] for progress in running.recentProgress]


EARLIEST = {"startingOffsets": "earliest"}


def test_group_has_no_lag_after_a_query_read_all(spark: SparkSession, filled: Filled, checkpoint: Path) -> None:
    sink = Sink()
    run(spark, filled, sink, checkpoint, consumerGroup="readers", startingOffsets="-2", maxOffsetsPerTrigger="1")
    assert [queue[2] for queue in sink.rows] == [1, 2, 3, 4]
    assert [filled.store.consumer_offset("readers", "orders", queue) for queue in (0, 1)] == [3, 5]


def test_restarted_query_loses_and_repeats_nothing(spark: SparkSession, filled: Filled, checkpoint: Path) -> None:
    sink = Sink()
    progress = run(spark, filled, sink, checkpoint, **EARLIEST)
    assert sink.batches == {0: sorted(filled.rows)}
    assert progress[0]["endOffset"]["orders"] == progress[0]["latestOffset"]["orders"] == {"0": 3, "1": 5}
    filled.put("orders", 0, 2)
    progress = run(spark, filled, sink, checkpoint, **EARLIEST)
    assert sink.batches[1] == sorted(filled.rows[-2:])
    assert progress[0]["endOffset"]["orders"] == {"0": 5, "1": 5}
    with query(spark, filled, sink, checkpoint, {}, **EARLIEST) as running:
        filled.put("orders", 1, 1)
        running.processAllAvailable()
        filled.put("orders", 1, 1)
        running.processAllAvailable()
    filled.put("orders", 0, 1)
    run(spark, filled, sink, checkpoint, **EARLIEST)
    assert sink.rows == sorted(filled.rows)


def test_uncommitted_batch_is_repeated_unchanged(spark: SparkSession, filled: Filled, checkpoint: Path) -> None:
    # The query starts at the latest offset, so the pin keeps the offset of its first batch.
    sink = Sink()
    with query(spark, filled, sink, checkpoint, {}) as running:
        running.processAllAvailable()
        filled.put("orders", 0, 4)
        running.processAllAvailable()
    assert sink.rows == filled.rows[-4:]
    once = dict(sink.batches)
    for batch_id in once:
        (checkpoint / "commits" / str(batch_id)).unlink()
        (checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)
    for batch_id in list(once)[1:]:
        (checkpoint / "offsets" / str(batch_id)).unlink()
        (checkpoint / "offsets" / f".{batch_id}.crc").unlink(missing_ok=True)
    filled.put("orders", 0, 2)
    sink.batches.clear()
    run(spark, filled, sink, checkpoint)
    assert sink.batches[0] == once[0]
    assert sink.rows == sorted(filled.rows[-6:])


def test_trigger_once_reads_everything_in_one_batch(spark: SparkSession, filled: Filled, checkpoint: Path) -> None:
    sink = Sink()
    run(spark, filled, sink, checkpoint, "once", maxOffsetsPerTrigger="4", **EARLIEST)
    assert sink.batches == {0: sorted(filled.rows)}


def test_new_topics_and_queues_join_a_running_query(spark: SparkSession, filled: Filled, checkpoint: Path) -> None:
    sink = Sink()
    with query(spark, filled, sink, checkpoint, {}, subscribePattern="orders.*", **EARLIEST) as running:
        running.processAllAvailable()
        filled.store.create_topic("orders", 3)
        filled.store.create_topic("orders-eu", 1)
        filled.put("orders", 2, 2)
        filled.put("orders-eu", 0, 3)
        running.processAllAvailable()
    assert sink.rows == sorted(filled.rows)


def test_wrong_options_are_refused(spark: SparkSession, filled: Filled, checkpoint: Path) -> None:
    with pytest.raises(PySparkException, match="are for batch queries") as caught:
        run(spark, filled, Sink(), checkpoint, endingOffsets="latest")
    assert "UnboundLocalError" not in str(caught.value)  # Spark's own error after an error in `streamReader`
