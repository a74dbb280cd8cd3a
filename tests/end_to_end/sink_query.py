"""A copying query in a process that tests can kill: python sink_query.py '{"source": ..., "target": ..., ...}'.

Prints "started" whenever the query starts. A failed query is restarted, as a supervisor would, unless it copies only
the present messages.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.end_to_end.realtime_query import session


def start(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    options = {"subscribe": "orders", "startingOffsets": "earliest", **given["options"]}
    frame = spark.readStream.format("mq").options(**options).load(given["source"])
    rows = frame.selectExpr("body", "split(string(body), '-')[0] shardingKey")
    writer = rows.writeStream.format("mq").options(topic="copies", checkpointLocation=given["checkpoint"])
    writer = writer.options(**given["writing"])
    if given.get("availableNow"):
        writer = writer.trigger(availableNow=True)
    return writer.start(given["target"])


def main(given: dict[str, Any]) -> None:
    spark = session(given["conf"])
    while True:
        query = start(spark, given)
        print("started", flush=True)
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as error:
            print("failed", str(error).splitlines()[0], flush=True)
            if given.get("availableNow"):
                raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
