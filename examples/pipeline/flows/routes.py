"""Route flights from the topic "flights" into the topics "late" and "cancelled", each exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
STORE = str(spark.conf.get("mq.store"))


@dp.temporary_view
def flights() -> DataFrame:
    messages = spark.readStream.format("mq").option("subscribe", "flights").option("startingOffsets", "earliest")
    flight = F.from_json(F.col("body").cast("string"), "tailnum string, dep_delay int").alias("flight")
    return messages.load(STORE).select("body", flight)


dp.create_sink("late", "mq", options={"path": STORE, "topic": "late"})
dp.create_sink("cancelled", "mq", options={"path": STORE, "topic": "cancelled"})


@dp.append_flow(target="late")
def late_flights() -> DataFrame:
    found = spark.readStream.table("flights").where("flight.dep_delay > 60")
    return found.selectExpr("body", "flight.tailnum AS shardingKey")


@dp.append_flow(target="cancelled")
def cancelled_flights() -> DataFrame:
    return spark.readStream.table("flights").where("flight.dep_delay IS NULL").select("body")
