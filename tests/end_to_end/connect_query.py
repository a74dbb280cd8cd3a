"""Run docs/sql.md's Spark Connect examples as a client that starts its server: python connect_query.py STORE WORK.

A stream copies the topic "orders" into the topic "paid", which has one queue.
"""

from __future__ import annotations

import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def reason(spark: SparkSession, path: str) -> str:
    try:
        spark.read.format("mq").option("subscribe", "orders").load(path).count()
    except PySparkException as error:
        return str(error)
    return "none"


def main(store: str, work: str) -> None:
    builder = SparkSession.builder.remote("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    paid = spark.read.format("mq").options(subscribe="orders", subExpression="A").load(store)
    paid.select("body").write.format("mq").mode("append").option("topic", "paid").save(store)
    spark.sql(f"CREATE TEMPORARY VIEW orders USING mq OPTIONS (path '{store}', subscribe 'orders')")
    spark.sql(f"CREATE TEMPORARY VIEW paid USING mq OPTIONS (path '{store}', topic 'paid')")
    spark.sql("INSERT INTO paid (body, tags) SELECT body, 'again' FROM orders WHERE tags = 'A'")
    stream = spark.readStream.format("mq").options(subscribe="orders", startingOffsets="earliest").load(store)
    rows = stream.where("tags = 'A'").selectExpr("body", "'streamed' AS tags").writeStream.format("mq")
    query = rows.options(topic="paid", checkpointLocation=f"{work}/checkpoint").trigger(availableNow=True).start(store)
    query.awaitTermination()
    print(type(spark).__module__)
    print(reason(spark, "data/mq"))
    print(reason(spark, "dbfs:/data/mq"))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
