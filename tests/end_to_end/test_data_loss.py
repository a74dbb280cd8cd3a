from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.end_to_end.test_stream_query import EARLIEST, Sink, checkpoint, run
from tests.filled import Filled

__all__ = ["checkpoint"]  # a fixture


def retain(filled: Filled) -> int:
    """Delete all but the last segment; return the oldest remaining offset of queue 0."""
    assert len(filled.store.clean(forced=True).log) > 3
    return filled.store.min_offset("orders", 0)


def test_missed_messages_fail_the_query_or_are_skipped(spark: SparkSession, filled: Filled, checkpoint: Path) -> None:
    sink = Sink()
    run(spark, filled, sink, checkpoint, **EARLIEST)
    filled.put("orders", 0, 300, size=1000)
    first = retain(filled)
    assert filled.store.offsets("orders", 1) == (5, 5)
    filled.put("orders", 1, 2)

    with pytest.raises(StreamingQueryException, match=r"is lost.*set failOnDataLoss to false"):
        run(spark, filled, sink, checkpoint, **EARLIEST)
    run(spark, filled, sink, checkpoint, failOnDataLoss="false", **EARLIEST)
    assert sink.batches[1] == sorted(
        row for row in filled.rows if (row[1] == 0 and row[2] >= first) or (row[1] == 1 and row[2] >= 5)
    )

    filled.put("orders", 0, 1)
    run(spark, filled, sink, checkpoint, **EARLIEST)
    assert sink.batches[2] == filled.rows[-1:]


def test_messages_deleted_between_planning_and_reading(spark: SparkSession, filled: Filled) -> None:
    filled.put("orders", 0, 300, size=1000)
    frames = {
        fail: spark.read.format("mq")
        .options(subscribe="orders", failOnDataLoss=fail)
        .schema("queueId int, queueOffset bigint")
        .load(filled.path)
        for fail in ("true", "false")
    }
    for frame in frames.values():
        assert frame.rdd.getNumPartitions() == 2
    first = retain(filled)
    with pytest.raises(PySparkException, match="is lost"):
        frames["true"].collect()
    read = sorted(row.queueOffset for row in frames["false"].collect() if row.queueId == 0)
    assert read == list(range(first, 303))
