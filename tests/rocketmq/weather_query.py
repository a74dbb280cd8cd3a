"""Two queries in a process that tests can kill: python weather_query.py '{"nameServer": ..., "folder": ..., ...}'.

One copies a topic of a cluster into Parquet files; the other writes numbers to the topic. Prints "started", then a line
for each query that ends. A line on standard input stops both in order, after the first one has read all messages.

Spark gives a Python worker ten seconds to start. A query that ends for that reason is started again.
"""

from __future__ import annotations

import json
import select
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.end_to_end.realtime_query import session

TOO_SLOW = "worker failed to connect back"
SCHEMA = "brokerName string, queueId int, queueOffset bigint, body binary, msgId string, storeTimestamp timestamp"


def reading(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    options = {"nameServer": given["nameServer"], "subscribe": given["topic"], "startingOffsets": "earliest"}
    rows = spark.readStream.format("mq").options(**options).schema(SCHEMA).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{given['folder']}/reading")
    return writer.trigger(processingTime="1 second").start(f"{given['folder']}/rows")


def writing(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    numbers = spark.readStream.format("rate").options(rowsPerSecond=given["rowsPerSecond"], numPartitions=2).load()
    options = {"nameServer": given["nameServer"], "topic": given["topic"], "delivery": "at-least-once"}
    writer = numbers.selectExpr("concat('rate-', value) body").writeStream.format("mq").options(**options)
    writer = writer.option("checkpointLocation", f"{given['folder']}/writing")
    return writer.trigger(processingTime="1 second").start()


def main(given: dict[str, Any]) -> None:
    spark = session({"spark.driver.memory": "1g"})
    starts = {"reading": reading, "writing": writing}
    queries = {name: start(spark, given) for name, start in starts.items()}
    print("started", flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        for name in [name for name, query in queries.items() if not query.isActive]:
            why = str(queries[name].exception())
            print("slow" if TOO_SLOW in why else "ended", name, why.replace("\n", " "), flush=True)
            queries[name] = starts[name](spark, given)
    queries["writing"].stop()
    progress = queries["writing"].lastProgress
    queries["reading"].processAllAvailable()
    queries["reading"].stop()
    print("stopped", 0 if progress is None else progress["sources"][0]["endOffset"], flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
