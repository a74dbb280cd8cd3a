"""A Spark query that counts and Python workers that react share a topic. Each kind reads it as its own group.

    pyspark-mq demo --store /tmp/mq          # a store with a topic "flights"
    python examples/shared_topic.py worker --store /tmp/mq                      # start any number of these
    spark-submit examples/shared_topic.py query --store /tmp/mq --checkpoint /tmp/checkpoint
    pyspark-mq groups list /tmp/mq           # the progress of both

The workers share the queues of the group "alerts", and print late flights. The query reports its progress to the group
"counts".
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from store import ConsumeFromWhere, Consumer, ConsumerConfig, ReceivedMessage

TOPIC, LATE_MINUTES = "flights", 360
CONFIG = ConsumerConfig(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, consume_message_batch_max_size=500
)


def alert(messages: Sequence[ReceivedMessage]) -> None:
    for message in messages:
        flight = json.loads(message.body)
        if (flight["dep_delay"] or 0) >= LATE_MINUTES:
            print(f"{flight['carrier']} {flight['flight']} from {flight['origin']}: {flight['dep_delay']} minutes late")


def work(store: str) -> None:
    with suppress(KeyboardInterrupt), Consumer(store, "alerts", TOPIC, alert, config=CONFIG) as consumer:
        consumer.wait()


def count(spark: SparkSession, store: str, checkpoint: str) -> None:
    flights = (
        spark.readStream.format("mq")
        .schema("body binary")
        .option("subscribe", TOPIC)
        .option("consumerGroup", "counts")
        .option("startingOffsets", "earliest")
        .load(store)
        .select(F.get_json_object(F.col("body").cast("string"), "$.carrier").alias("carrier"))
    )
    counts = flights.groupBy("carrier").count().writeStream.outputMode("complete").format("console")
    query = counts.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description="A Spark query and Python workers over one topic.")
    parser.add_argument("verb", choices=["worker", "query"])
    parser.add_argument("--store", required=True, help="the store's directory")
    parser.add_argument("--checkpoint", default="/tmp/checkpoint", help="checkpoint directory of the query")
    arguments = parser.parse_args()
    if arguments.verb == "worker":
        work(arguments.store)
    else:
        with SparkSession.builder.appName("shared_topic").getOrCreate() as spark:
            count(spark, arguments.store, arguments.checkpoint)


if __name__ == "__main__":
    main()
