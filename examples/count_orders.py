"""Counts and sums up what a Java program sends to the same directory, while it comes.

    pyspark-mq serve /tmp/orders
    spark-submit examples/count_orders.py --store /tmp/orders
    # then examples/java_producer/OrderProducer.java, which says how it is run

With --orders it ends when so many have come.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from store import MessageStore


def count(store: str, orders: int | None) -> None:
    with MessageStore.open(store) as opened:  # the query may be there before the first message, which makes the topic
        if "orders" not in opened.topics():
            opened.create_topic("orders")
    spark = SparkSession.builder.appName("count_orders").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    found = (
        spark.readStream.format("mq").option("subscribe", "orders").option("startingOffsets", "earliest").load(store)
    )
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
    parser.add_argument("--store", required=True, help="the directory that is served")
    parser.add_argument("--orders", type=int, help="end when so many have come")
    arguments = parser.parse_args()
    count(arguments.store, arguments.orders)


if __name__ == "__main__":
    main()
