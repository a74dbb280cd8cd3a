"""How fast does the sink write, with each delivery guarantee, against Spark writing uncompressed Parquet?"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame

from benchmarks.bench import TOPIC, show, side_by_side, spark
from store import MessageStore

TASKS = 4


def parquet_seconds(frame: DataFrame) -> float:
    with TemporaryDirectory() as folder:
        begin = time.perf_counter()
        frame.write.option("compression", "none").parquet(f"{folder}/rows")
        return time.perf_counter() - begin


def sink_seconds(frame: DataFrame, delivery: str) -> float:
    with TemporaryDirectory() as folder:
        path = Path(folder, "mq")
        with MessageStore.open(path) as store:
            store.create_topic(TOPIC, 4)
        begin = time.perf_counter()
        frame.write.format("mq").mode("append").options(topic=TOPIC, delivery=delivery).save(str(path))
        return time.perf_counter() - begin


def main(count: int, runs: int, body_sizes: tuple[int, ...] = (100, 1000)) -> None:
    session, rows = spark(), []
    deliveries = ("at-least-once", "exactly-once")
    for body_bytes in body_sizes:
        frame = session.range(count, numPartitions=TASKS).selectExpr(f"rpad(string(id), {body_bytes}, 'x') AS body")
        measures = [partial(parquet_seconds, frame), *(partial(sink_seconds, frame, each) for each in deliveries)]
        parquet, *sinks = side_by_side(runs, *measures)
        rows.append([f"{body_bytes} B", "Parquet", f"{count / parquet / 1e6:.2f} M/s", "1.00"])
        rows += [
            [f"{body_bytes} B", delivery, f"{count / taken / 1e6:.2f} M/s", f"{parquet / taken:.2f}"]
            for delivery, taken in zip(deliveries, sinks, strict=True)
        ]
    head = ["body", "written as", "rows", "of Parquet"]
    show(f"Writing {count:,} rows from {TASKS} tasks, medians of {runs} runs", head, rows)
