from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyspark_mq
from pyspark_mq.stats.query_progress import QueryProgress, QueueProgress
from store import Message, MessageStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = [QueueProgress("orders", "0", 5, 9, 4), QueueProgress("orders", "1", 7, 7, 0)]


def test_progress_is_one_line() -> None:
    assert repr(QueryProgress("totals", "running", 12, 1234.5, 4, QUEUES)) == (
        "<Query totals: running, batch 12, 1,234 rows/s, 4 messages behind>"
    )
    assert repr(QueryProgress("totals", "failed", None, 0.0, 0, ())) == "<Query totals: failed, no batch yet>"


def test_progress_is_a_table_of_queues() -> None:
    shown = QueryProgress("<b>", "running", 1, 0.0, 4, QUEUES * 30)._repr_html_()
    assert shown.count("<tr>") == 51
    assert "&lt;b&gt;" in shown
    assert "10 more queues are in `queues`" in shown


def test_progress_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    with MessageStore.open(path) as store:
        store.create_topic("orders", 2)
        store.put_many([Message("orders", b"x", queue_id=number % 2) for number in range(10)])
    rows = spark.readStream.format("mq").option("subscribe", "orders").option("startingOffsets", "earliest").load(path)
    query = rows.writeStream.format("noop").queryName("totals").start()
    try:
        query.processAllAvailable()
        found = pyspark_mq.progress(query)
        assert (found.name, found.state, found.batch, found.lag) == ("totals", "running", 0, 0)
        assert found.rows_per_second > 0
        assert found.queues == [QueueProgress("orders", str(queue), 5, 5, 0) for queue in range(2)]
    finally:
        query.stop()
    assert pyspark_mq.progress(query).state == "stopped"
