"""Count and sum up orders while a Java program sends them to a served store, or to a RocketMQ cluster.

    pyspark-mq serve /tmp/orders
    spark-submit examples/count_orders.py --path /tmp/orders
    # then run examples/java_producer/OrderProducer.java, see there

With a RocketMQ cluster (docs/cluster.md): spark-submit examples/count_orders.py --nameServer 127.0.0.1:9876
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_mq.options.log_address import address_of

TOPIC, QUEUES = "orders", 4


def make_topic(where: dict[str, str]) -> None:
    """Create the topic, because the query may start before the first message."""
    with address_of(where).open_writer() as writer:
        if TOPIC not in writer.topics():
            writer.create_topic(TOPIC, QUEUES)


def count(where: dict[str, str], orders: int | None) -> None:
    """where: {"path": a store's directory} or {"nameServer": a cluster's name servers}."""
    spark = SparkSession.builder.appName("count_orders").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    found = spark.readStream.format("mq").options(**where, subscribe=TOPIC, startingOffsets="earliest").load()
    amount = F.get_json_object(F.col("body").cast("string"), "$.amount").cast("long")
    totals = found.groupBy("tags").agg(F.count("*").alias("orders"), F.sum(amount).alias("amount"))
    have_come = False

    def show(batch: DataFrame, number: int) -> None:
        nonlocal have_come
        rows = batch.orderBy("tags").collect()
        print(", ".join(f"{row.tags}: {row.orders:,} orders, {row.amount:,}" for row in rows), flush=True)
        have_come = orders is not None and sum(row.orders for row in rows) >= orders

    query = totals.writeStream.outputMode("complete").foreachBatch(show).start()
    while not query.awaitTermination(1) and not have_come:
        pass
    query.stop()
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts orders by their state.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--path", help="the directory that is served")
    where.add_argument("--nameServer", help="a cluster's name servers, such as 127.0.0.1:9876")
    parser.add_argument("--orders", type=int, help="end after this many orders")
    arguments = parser.parse_args()
    log = {"path": arguments.path} if arguments.nameServer is None else {"nameServer": arguments.nameServer}
    make_topic(log)
    count(log, arguments.orders)


if __name__ == "__main__":
    main()
