"""Stream the flights and the mean departure delay of each day from a topic into Parquet. Stop and restart at any time.

    pyspark-mq demo --store /tmp/mq          # a store with a topic "flights"
    spark-submit examples/windows_to_parquet.py --store /tmp/mq --out /tmp/delays --checkpoint /tmp/checkpoint

Event time is `bornTimestamp`, the scheduled departure. A day is written once, after the watermark has passed its end.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

FLIGHT = "origin string, dep_delay int"


def delays_by_day(messages: DataFrame) -> DataFrame:
    """Return a row for each day (UTC) and airport: `day date, origin string, flights bigint, mean_delay double`."""
    flight = F.from_json(F.col("body").cast("string"), FLIGHT)
    return (
        messages.select("bornTimestamp", flight.alias("flight"))
        .withWatermark("bornTimestamp", "6 hours")
        .groupBy(F.window("bornTimestamp", "1 day"), "flight.origin")
        .agg(F.count("*").alias("flights"), F.avg("flight.dep_delay").alias("mean_delay"))
        .select(F.col("window.start").cast("date").alias("day"), "origin", "flights", "mean_delay")
    )


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    messages = (
        spark.readStream.format("mq")
        .schema("body binary, bornTimestamp timestamp")  # only these two are decoded
        .option("path", arguments.store)
        .option("subscribe", arguments.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    sink = (
        delays_by_day(messages)
        .writeStream.format("parquet")
        .option("path", arguments.out)
        .option("checkpointLocation", arguments.checkpoint)
        .outputMode("append")
    )
    return (sink.trigger(availableNow=True) if arguments.available_now else sink).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Mean delay a day and airport, from a topic into Parquet.")
    parser.add_argument("--store", required=True, help="the store's directory")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--out", required=True, help="directory of the Parquet files")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory of the query")
    parser.add_argument("--available-now", action="store_true", help="end when the present messages are read")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("windows_to_parquet").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    query = start(spark, arguments)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
