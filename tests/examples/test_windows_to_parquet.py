"""Run the example to the end of the topic, then again from its checkpoint."""

import argparse
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from examples.windows_to_parquet import start
from pyspark_mq.flights import as_messages, load_flights, scheduled
from store import MessageStore

ROWS = 20_000


def written(tmp_path: Path) -> list[dict[str, object]]:
    table = pq.read_table(tmp_path / "out")
    return table.sort_by([("day", "ascending"), ("origin", "ascending")]).to_pylist()


def expected(flights: pa.Table) -> list[dict[str, object]]:
    """Return totals of the days (UTC) that end before the last scheduled time less the watermark's six hours."""
    times = scheduled(flights)
    closed = (pc.max(times).as_py() - timedelta(hours=6)).date()
    table = flights.select(["origin", "dep_delay"]).append_column(
        "day", pc.cast(pc.floor_temporal(times, unit="day"), pa.date32())
    )
    days = table.group_by(["day", "origin"]).aggregate([([], "count_all"), ("dep_delay", "mean")])
    rows = days.sort_by([("day", "ascending"), ("origin", "ascending")]).to_pylist()
    return [
        {
            "day": row["day"],
            "origin": row["origin"],
            "flights": row["count_all"],
            "mean_delay": row["dep_delay_mean"],
        }
        for row in rows
        if row["day"] < closed
    ]


def go_on(spark: SparkSession, tmp_path: Path) -> None:
    names = {name: str(tmp_path / name) for name in ("store", "out", "checkpoint")}
    assert start(spark, argparse.Namespace(**names, topic="flights", available_now=True)).awaitTermination(300)


def test_days_are_written_once_over_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    flights = load_flights().slice(0, ROWS)
    messages = as_messages(flights)
    with MessageStore.open(tmp_path / "store") as store:
        store.create_topic("flights", queues=4)
        store.append_table("flights", messages.slice(0, ROWS // 2))
        go_on(spark, tmp_path)
        first = written(tmp_path)
        assert first == expected(flights.slice(0, ROWS // 2))
        store.append_table("flights", messages.slice(ROWS // 2))
    go_on(spark, tmp_path)
    assert written(tmp_path) == expected(flights)
    assert len(first) < len(written(tmp_path))
