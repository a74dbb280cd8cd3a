"""What `explain` says of a DataFrame: as Spark planned it, with filters of each kind that it hands down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_mq
from pyspark_mq.errors import PlanError
from pyspark_mq.source.explain import PUSHDOWN, readings
from tests.filled import Filled


@pytest.fixture
def two(spark: SparkSession, tmp_path: Path) -> Iterator[DataFrame]:
    """Topics of 70 and 5 messages, filters pushed down."""
    filled = Filled(tmp_path / "mq", {"orders": 2, "others": 1})
    spark.conf.set(PUSHDOWN, "true")
    with filled.store:
        for topic, queue, count in (("orders", 0, 50), ("orders", 1, 20), ("others", 0, 5)):
            filled.put(topic, queue, count)
        yield spark.read.format("mq").options(subscribe="orders,others", pushDownPredicate="true").load(filled.path)
    spark.conf.unset(PUSHDOWN)


def messages(df: DataFrame) -> list[tuple[int, ...]]:
    """Of each topic, read and all; it is as much as the rows are where tags do not choose."""
    assert df.count() == sum(share.messages for share in readings(df)[0].topics.values())
    return [(share.messages, share.all_messages) for share in readings(df)[0].topics.values()]


def test_what_is_read(two: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    assert messages(two) == [(70, 70), (5, 5)]
    assert messages(two.where("keys = 'k3'")) == [(2, 70), (1, 5)]
    row = two.where("topic = 'orders' and queueId = 1 and queueOffset = 7").first()
    assert row is not None
    assert messages(two.where(two.msgId == row.msgId)) == [(1, 70), (0, 5)]
    assert messages(two.where(two.storeTimestamp > row.storeTimestamp)) == [(0, 70), (5, 5)]
    assert messages(two.where(two.storeTimestamp <= row.storeTimestamp)) == [(70, 70), (0, 5)]
    assert messages(two.where("storeTimestamp < '1970-01-02' or keys = 'k3'").where("queueId = 7")) == [(0, 70), (0, 5)]
    pyspark_mq.explain(two.where("topic = 'others'").groupBy("tags").count())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines[1:3]] == ["  orders: reads 0 messages", "  others: reads 5 messages"]
    assert "(topic = 'others')" in lines[3]
    assert lines[4].startswith("  columns: topic, queueId, ")


def test_where_nothing_can_be_said(two: DataFrame, spark: SparkSession) -> None:
    spark.conf.set(PUSHDOWN, "false")
    assert f"{PUSHDOWN} is not true" in str(readings(two.where("topic = 'others'"))[0])
    without = spark.read.format("mq").option("subscribe", "orders").load(readings(two)[0].log)
    assert "the option pushDownPredicate is not true" in str(readings(without)[0])
    assert [
        len(readings(each)) for each in (two.union(two), two.join(two.withColumnRenamed("keys", "k"), "msgId"))
    ] == [2, 2]
    stream = spark.readStream.format("mq").option("subscribe", "orders").load(readings(two)[0].log)
    for df, why in ((stream, "batch by batch"), (spark.range(3), "reads no mq")):
        with pytest.raises(PlanError, match=why):
            pyspark_mq.explain(df)


def test_what_is_logged_where_spark_plans(two: DataFrame, spark: SparkSession) -> None:
    keeps = "spark.sql.pyspark.worker.logging.enabled"
    spark.conf.set(keeps, "true")
    try:
        assert two.where("queueId = 1").count() == 20
        none = spark.read.format("mq").option("subscribePattern", "payments").load(readings(two)[0].log)
        assert none.count() == 0
        logs = spark.tvf.python_worker_logs().where("logger = 'pyspark_mq'").select("level", "msg").collect()
    finally:
        spark.conf.unset(keeps)
    assert any(row.level == "INFO" and row.msg.endswith("reads 20 of 75 messages, by 2 filters") for row in logs)
    assert any(row.level == "WARNING" and "matches no topic" in row.msg for row in logs)
