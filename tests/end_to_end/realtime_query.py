"""Real-time queries in a process that tests can kill: python realtime_query.py '{settings of Spark}'.

Each line on standard input is a query to start; prints "started" when it runs. The next line stops it, and prints how
many seconds that took, or the query's error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter


def session(conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2,4]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.udf.pipelined.enabled": "true",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def failing_once(marks: str) -> Any:
    """Fail the first attempt of each task at the end of its input, after creating a file in `marks`."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        attempt = task.attemptNumber()
        Path(marks, f"{task.getLocalProperty('streaming.sql.batchId')}-{task.partitionId()}-{attempt}").touch()
        if attempt == 0:
            raise RuntimeError("the first attempt fails, for the test")

    return stage


def writer(spark: SparkSession, given: dict[str, Any]) -> DataStreamWriter:
    rows = (
        spark.readStream.format("mq")
        .options(subscribe="orders", startingOffsets="earliest", **given["options"])
        .load(None if "nameServer" in given["options"] else given["path"])
        .selectExpr(*given["select"])
    )
    if given["failing"]:
        rows = rows.mapInArrow(failing_once(given["failing"]), rows.schema)
    to = rows.writeStream.format(given["sink"]).option("checkpointLocation", given["checkpoint"])
    return to.option("path", given["out"])


def main() -> None:
    spark = session(json.loads(sys.argv[1]))
    for line in sys.stdin:
        query = writer(spark, json.loads(line)).start()
        print("started", flush=True)
        if not sys.stdin.readline():
            break
        begin = time.monotonic()
        query.stop()
        seconds = time.monotonic() - begin
        print(repr(query.exception() or seconds), flush=True)


if __name__ == "__main__":
    main()
