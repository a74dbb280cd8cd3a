"""Writes in `foreachBatch`: a named write happens once a batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from store import MessageStore
from tests.end_to_end.written import bodies, forget_last_commit, numbers, put, run, save, source, staged, three_topics


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with three_topics(tmp_path / "mq") as it:
        yield it


@pytest.mark.parametrize(("group", "times"), [("copier", 1), (None, 2)])
def test_foreach_batch_writes_each_row_once(
    spark: SparkSession, store: MessageStore, tmp_path: Path, group: str | None, times: int
) -> None:
    put(spark, store, 0, 100)

    def work(frame: DataFrame, batch_id: int) -> None:
        for topic, select in (("copies", "body"), ("one", "concat(body, 'x') body")):
            options = {"topic": topic} if group is None else {"topic": topic, "producerGroup": f"{group}-{topic}"}
            save(frame.selectExpr(select), store, **options)

    frame = source(spark, store, maxOffsetsPerTrigger="60").select("body")
    for _ in range(2):
        writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
        run(writer)
        again = 0 if times == 1 else len(bodies(store, "copies")) - 100
        forget_last_commit(tmp_path / "checkpoint")
    assert len(bodies(store, "copies")) == len(bodies(store, "one")) == 100 + again
    assert (again > 0) is (times == 2)
    assert sorted(set(bodies(store, "copies"))) == numbers(100)
    assert staged(store) == []


def test_two_writes_of_a_batch_need_different_producer_groups(
    spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    put(spark, store, 0, 10)

    def work(frame: DataFrame, batch_id: int) -> None:
        for topic in ("copies", "one"):
            save(frame, store, topic=topic, producerGroup="copier")

    writer = source(spark, store).select("body").writeStream.foreachBatch(work)
    with pytest.raises(PySparkException, match="Two writes of one foreachBatch have the same producerGroup"):
        run(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert sorted(bodies(store, "copies")) == numbers(10)


def test_producer_group_outside_of_foreach_batch_is_refused(spark: SparkSession, store: MessageStore) -> None:
    with pytest.raises(
        PySparkException, match=r"producerGroup is only for a write in foreachBatch.*Remove producerGroup"
    ):
        save(spark.range(1).selectExpr("'x' body"), store, topic="orders", producerGroup="copier")
