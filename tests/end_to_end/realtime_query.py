"""A real-time query as a program of its own, to be killed: python realtime_query.py '{"path": ..., ...}'.

Prints "started" when the query runs. A line on standard input stops the query; then it prints how long that took.
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


def session(conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2,4]")  # a task may fail three times
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
    """A stage that fails each task's first attempt when its input has ended, and marks in `marks` who came so far."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        attempt = task.attemptNumber()
        Path(marks, f"{task.getLocalProperty('streaming.sql.batchId')}-{task.partitionId()}-{attempt}").touch()
        if attempt == 0:
            raise RuntimeError("the first attempt fails, for the test")

    return stage


def main(given: dict[str, Any]) -> None:
    spark = session(given.get("conf", {}))
    rows = (
        spark.readStream.format("mq")
        .options(subscribe="orders", startingOffsets="earliest", **given["options"])
        .load(given["path"])
        .selectExpr(*given["select"])
    )
    if given.get("failing"):
        rows = rows.mapInArrow(failing_once(given["failing"]), rows.schema)
    writer = rows.writeStream.format(given["sink"]).option("checkpointLocation", given["checkpoint"])
    if given.get("availableNow"):
        writer = writer.trigger(availableNow=True)
    query = writer.option("path", given["out"]).start()
    if given.get("availableNow"):
        query.awaitTermination()
        return
    print("started", flush=True)
    if sys.stdin.readline():
        begin = time.monotonic()
        query.stop()
        print(time.monotonic() - begin, flush=True)
        sys.stdin.readline()  # the session lives on, as a user's would
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
