from __future__ import annotations

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from store import Message
from tests.filled import Filled
from tests.store.format.test_inflating import mark

ROW_SCHEMA = "topic string, queueId int, queueOffset bigint, body binary"


def load(spark: SparkSession, filled: Filled, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("mq").options(**{"subscribe": "orders", **options})
    return (reader.schema(schema) if schema else reader).load(filled.path)


def test_rows_are_the_messages(spark: SparkSession, filled: Filled) -> None:
    expected = spark.createDataFrame(filled.rows, ROW_SCHEMA)
    actual = load(spark, filled)
    assert_df_equality(actual.select(*expected.columns), expected, ignore_row_order=True)
    message = actual.where("queueId = 1 and queueOffset = 3").first()
    assert message is not None
    assert (message.tags, message["keys"], len(message.msgId)) == ("B", "k3", 32)
    assert message.bornTimestamp <= message.storeTimestamp
    assert actual.where(F.expr("storeTimestamp between now() - interval 1 hour and now()")).count() == 8


def test_columns_are_read_in_any_order(spark: SparkSession, filled: Filled) -> None:
    schema = (
        "preparedTransactionOffset bigint, bodyCRC int, sysFlag int, flag int, reconsumeTimes int, storeHost string, "
        "bornHost string, physicalOffset bigint NOT NULL, properties map<string,string>, storeTimestamp timestamp, "
        "bornTimestamp timestamp, body binary, keys string, tags string, msgId string, queueOffset bigint, "
        "queueId int, topic string NOT NULL"
    )
    actual = load(spark, filled, schema)
    assert actual.columns[0] == "preparedTransactionOffset"
    first = actual.orderBy("physicalOffset").first()
    assert first is not None
    assert (first.topic, first.queueId, first.queueOffset, bytes(first.body)) == filled.rows[0]
    assert (first.physicalOffset, first.preparedTransactionOffset, first.reconsumeTimes) == (0, 0, 0)
    assert first.storeHost == "127.0.0.1:10911"
    assert first.properties["region"] == "eu"


def test_properties_are_an_optional_column(spark: SparkSession, filled: Filled) -> None:
    assert "properties" not in load(spark, filled).columns
    regions = load(spark, filled, includeProperties="true").select("properties.region").distinct().collect()
    assert [row.region for row in regions] == ["eu"]


def test_query_reads_between_two_offsets(spark: SparkSession, filled: Filled) -> None:
    actual = load(
        spark,
        filled,
        "queueId int, queueOffset bigint",
        startingOffsets='{"orders": {"0": 1, "1": -2}}',
        endingOffsets='{"orders": {"0": -1, "1": 2}}',
        minPartitions="4",
    )
    assert sorted(map(tuple, actual.collect())) == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert actual.rdd.getNumPartitions() == 4


def test_query_filters_by_tag_and_by_condition(spark: SparkSession, filled: Filled) -> None:
    actual = load(spark, filled, "tags string", subExpression="B")
    assert [row.tags for row in actual.collect()] == ["B"] * 3
    condition = {"subExpression": "TAGS = 'B' AND KEYS <> 'k3'", "expressionType": "SQL92"}
    assert sorted(
        tuple(row) for row in load(spark, filled, "queueId int, queueOffset bigint", **condition).collect()
    ) == [
        (0, 1),
        (1, 1),
    ]


def test_query_reads_only_assigned_queues(spark: SparkSession, filled: Filled) -> None:
    assigned = spark.read.format("mq").option("assign", '{"orders": [1]}').load(filled.path)
    assert assigned.count() == 5


def test_empty_topic_has_no_rows(spark: SparkSession, filled: Filled) -> None:
    filled.store.create_topic("empty", 2)
    assert load(spark, filled, subscribe="empty").collect() == []


def test_sql_view_reads_a_topic(spark: SparkSession, filled: Filled) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING mq OPTIONS (path '{filled.path}', subscribe 'orders')")
    counts = spark.sql("SELECT queueId, count(*) AS n FROM orders GROUP BY queueId ORDER BY queueId").collect()
    assert [tuple(row) for row in counts] == [(0, 3), (1, 5)]


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"subscribe": "payments"}, None, "The log has no payments; it has orders"),
        ({}, "tag string", "no column 'tag': did you mean tags?"),
    ],
)
def test_wrong_options_are_refused(
    spark: SparkSession, filled: Filled, options: dict[str, str], schema: str | None, message: str
) -> None:
    reader = spark.read.format("mq").options(**{"path": filled.path, "subscribe": "orders", **options})
    with pytest.raises(PySparkException) as caught:
        (reader.schema(schema) if schema else reader).load().collect()
    assert message in str(caught.value)


def test_errors_show_no_traceback(spark: SparkSession, filled: Filled) -> None:
    hides = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
    spark.conf.set(hides, "true")
    try:
        with pytest.raises(PySparkException) as caught:
            load(spark, filled, startingOffset="earliest")
    finally:
        spark.conf.unset(hides)
    first = str(caught.value).splitlines()[0]
    assert first.endswith("OptionError: Unknown option 'startingoffset': did you mean startingOffsets?")


def test_view_is_planned_once(spark: SparkSession, filled: Filled) -> None:
    for before, after in ((8, 8), (9, 9)):
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW once USING mq OPTIONS (path '{filled.path}', subscribe 'orders')")
        assert spark.table("once").count() == before
        filled.put("orders", 0, 1)
        assert spark.table("once").count() == after


def test_create_table_is_refused(spark: SparkSession, filled: Filled) -> None:
    words = "Spark does not pass the options of CREATE TABLE.*CREATE TEMPORARY VIEW"
    options = f"OPTIONS (path '{filled.path}', subscribe 'orders')"
    with pytest.raises(PySparkException, match=words):
        spark.sql(f"CREATE TABLE unnamed USING mq {options}")
    spark.sql(f"CREATE TABLE named (body BINARY) USING mq {options}")  # Spark does not consult the source here
    try:
        with pytest.raises(PySparkException, match=words):
            spark.table("named").collect()
        with pytest.raises(PySparkException, match=words):
            spark.sql("INSERT INTO named VALUES (X'31')")
    finally:
        spark.sql("DROP TABLE named")


def test_save_as_table_writes_but_its_table_is_refused(spark: SparkSession, filled: Filled) -> None:
    row = spark.sql("SELECT 'more' AS body, 0 AS queueId").write.format("mq").mode("append").option("topic", "orders")
    try:
        for rows in (1, 2):
            row.option("path", filled.path).saveAsTable("left_over")
            assert load(spark, filled).where("body = X'6d6f7265'").count() == rows
        with pytest.raises(PySparkException, match="Spark does not pass the options of CREATE TABLE"):
            spark.table("left_over").collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS left_over")


def test_condition_on_keys_reads_the_indexed_messages(spark: SparkSession, filled: Filled) -> None:
    named = load(spark, filled, subExpression="KEYS IN ('k3', 'k1')", expressionType="SQL92")
    assert sorted((row.queueId, row.queueOffset) for row in named.collect()) == [(0, 1), (1, 1), (1, 3)]
    assert [named.where("queueId = 1").count(), named.count()] == [2, 3]


def test_filters_of_one_query_do_not_affect_the_next(spark: SparkSession, filled: Filled) -> None:
    """Spark reuses the source that it planned for the last query of a dataframe."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = load(spark, filled)
        first, second = rows.where("queueId = 0"), rows.where("queueId = 1")
        assert [first.count(), rows.count(), first.union(second).count()] == [3, 8, 8]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_corrupt_body_fails_the_query_or_is_null(spark: SparkSession, filled: Filled) -> None:
    poison = filled.store.put(Message("orders", b"poison", queue_id=0))
    mark(filled.store, poison.physical_offset, 0x301)
    with pytest.raises(PySparkException, match=r"queue 0, offset 3 .* does not decompress"):
        load(spark, filled).collect()
    rows = load(spark, filled, unreadable="null")
    assert rows.columns[-1] == "bodyError"
    (row,) = rows.where("body IS NULL").collect()
    assert (row.queueId, row.queueOffset) == (0, 3)
    assert row.bodyError.startswith("a zlib body of 6 bytes does not decompress")
    assert rows.where("bodyError IS NULL").count() == 8
