"""Queries whose executors share no disk with the driver: python elsewhere_query.py DRIVER BUCKET PYTHON.

DRIVER is the driver's directory, with the store `target` and the checkpoints. Executors run PYTHON, which sees an empty
directory instead. One query copies the archive in BUCKET; another one holds it until a line arrives on standard input.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from tests.end_to_end.realtime_query import session
from tests.s3 import environment


def main(driver: str, bucket: str, python: str) -> None:
    os.environ["PYSPARK_PYTHON"] = python
    given = {**environment(os.environ["AWS_ENDPOINT_URL"]), "HIDDEN": driver}
    of_executors = {f"spark.executorEnv.{name}": value for name, value in given.items()}
    of_executors |= {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    }
    spark = session({"spark.master": "local-cluster[2,1,1024]", **of_executors})
    tasks = spark.sparkContext.parallelize(range(2), 2)
    print("seen", tasks.map(lambda _: os.listdir(driver)).collect(), flush=True)

    def start(topic: str, trigger: dict[str, Any], options: dict[str, str]) -> StreamingQuery:
        reader = spark.readStream.format("mq").options(subscribe="orders", startingOffsets="earliest", **options)
        writer = reader.load(f"{bucket}/archive").select("body").writeStream.format("mq").trigger(**trigger)
        writer = writer.options(topic=topic, stagingPath=f"{bucket}/staging")
        return writer.start(f"{driver}/target", checkpointLocation=f"{driver}/checkpoints/{topic}")

    start("copied", {"availableNow": True}, {}).awaitTermination()
    print("copied", flush=True)
    real_time = {"realTime": "true", "batchDuration": "2 seconds", "ledgerPath": f"{bucket}/ledger"}
    held = start("held", {"processingTime": "0 seconds"}, real_time)
    sys.stdin.readline()
    held.stop()
    if (error := held.exception()) is not None:
        raise error


if __name__ == "__main__":
    main(*sys.argv[1:])
