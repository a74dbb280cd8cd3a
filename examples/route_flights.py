"""Route late and cancelled flights from one topic into two others, each exactly once.

    pyspark-mq demo --store /tmp/mq          # a store with a topic "flights"
    pyspark-mq topic create /tmp/mq late
    pyspark-mq topic create /tmp/mq cancelled
    spark-submit examples/route_flights.py --store /tmp/mq --checkpoint /tmp/checkpoint

You may kill it and start it again: the sink does not write a batch again that Spark runs again. The flights of a plane
stay in order, because its tail number is the sharding key.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

FLIGHT = "tailnum string, origin string, dep_delay int"


def routed(messages: DataFrame, minutes: int) -> DataFrame:
    """Return the sink's columns. Flights over `minutes` late go to one topic, cancelled ones to another."""
    flight = F.from_json(F.col("body").cast("string"), FLIGHT)
    delay = F.col("flight.dep_delay")
    topic = F.when(delay.isNull(), "cancelled").when(delay > minutes, "late")
    return (
        messages.withColumn("flight", flight)
        .select(
            topic.alias("topic"),
            "body",
            F.col("flight.origin").alias("tags"),
            "keys",
            F.col("flight.tailnum").alias("shardingKey"),
            "bornTimestamp",
        )
        .where("topic IS NOT NULL")
    )


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    messages = (
        spark.readStream.format("mq")
        .schema("keys string, body binary, bornTimestamp timestamp")
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load(arguments.store)
    )
    sink = (
        routed(messages, arguments.minutes).writeStream.format("mq").option("checkpointLocation", arguments.checkpoint)
    )
    return (sink.trigger(availableNow=True) if arguments.available_now else sink).start(arguments.store)


def main() -> None:
    parser = argparse.ArgumentParser(description="Late and cancelled flights, from a topic into two others.")
    parser.add_argument("--store", required=True, help="the store's directory")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory of the query")
    parser.add_argument("--minutes", type=int, default=60, help="how late is late")
    parser.add_argument("--available-now", action="store_true", help="end when the present messages are routed")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("route_flights").getOrCreate()
    query = start(spark, arguments)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
