from __future__ import annotations

import re
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_mq.errors import RowError, SchemaError
from pyspark_mq.sink.written_columns import check_schema, sink_schema, tables_by_topic, with_unique_keys
from store.format.topic_names import COMMITS_TOPIC

TEXT, INTEGER, BYTES = StringType(), IntegerType(), BinaryType()


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        (schema(body=TEXT), "t"),
        (schema(body=BYTES, topic=TEXT), None),
        (sink_schema(with_topic=True), None),
        (sink_schema(with_topic=False), "t"),
        (schema(body=TEXT, keys=ArrayType(TEXT), queueId=ShortType(), bornTimestamp=LongType()), "t"),
        (schema(body=TEXT, delayLevel=ShortType(), deliverAt=TimestampType()), "t"),
    ],
)
def test_columns_are_accepted(columns: StructType, topic: str | None) -> None:
    check_schema(columns, topic)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (schema(id=INTEGER, name=TEXT), "no column 'id': there are topic, body, tags"),
        (
            schema(tags=TEXT),
            'column body is missing. Name the text or bytes to send body, e.g. select(col("tags").alias("body"))',
        ),
        (schema(tags=TEXT, flag=INTEGER), 'select(expr("to_json(struct(*)) AS body"))'),
        (
            schema(value=TEXT),
            "value is named as in the Kafka sink. Here it is body: withColumnRenamed('value', 'body')",
        ),
        (schema(body=TEXT, key=TEXT), "withColumnRenamed('key', 'keys')"),
        (schema(body=TEXT, partition=INTEGER), "withColumnRenamed('partition', 'queueId')"),
        (schema(body=TEXT, timestamp=TimestampType()), "withColumnRenamed('timestamp', 'bornTimestamp')"),
        (schema(body=TEXT, headers=TEXT), "Here it is properties, a map<string,string>"),
        (schema(body=TEXT, tag=TEXT), "no column 'tag': did you mean tags?"),
        (schema(body=TEXT, deliverAt=INTEGER), "and must be timestamp, or bigint (ms since 1970)"),
        (schema(body=TEXT, queueOffset=LongType()), "because the store sets it. Remove it: drop('queueOffset')"),
        (schema(body=schema(a=INTEGER)), "struct<a:int>, and must be string or binary. Cast it or convert it"),
        (
            schema(body=TEXT, keys=ArrayType(INTEGER)),
            "array<int>, and must be string (keys separated by spaces) or array<string>",
        ),
        (schema(body=TEXT, queueId=DoubleType()), "queueId is double, and must be int. Cast it"),
        (schema(body=TEXT, bornTimestamp=DateType()), "date, and must be timestamp, or bigint (ms since 1970)"),
        (schema(body=TEXT, properties=MapType(TEXT, INTEGER)), "map<string,int>, and must be map<string,string>"),
        (StructType([StructField("body", TEXT)] * 2), "Duplicate columns: body"),
    ],
)
def test_refused_columns_get_a_remedy(columns: StructType, message: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(message)):
        check_schema(columns, "t")


def test_missing_topic_is_refused() -> None:
    with pytest.raises(SchemaError, match=re.escape('Set option("topic", ...), or add a column topic')):
        check_schema(schema(body=TEXT), None)


rows = st.lists(st.tuples(st.sampled_from("abcd"), st.binary(max_size=3)), min_size=1, max_size=40)


@given(rows, st.integers(0, 3))
def test_each_topic_gets_its_rows_in_order(rows: list[tuple[str, bytes]], skipped: int) -> None:
    topics, bodies = zip(*rows, strict=True)
    batch = pa.record_batch({"topic": pa.array(topics), "body": pa.array(bodies)}).slice(skipped)
    got = {topic: table["body"].to_pylist() for topic, table in tables_by_topic(batch, None)}
    kept = rows[skipped:]
    assert got == {topic: [body for other, body in kept if other == topic] for topic in {topic for topic, _ in kept}}


def test_topic_option_overrides_the_column() -> None:
    batch = pa.record_batch({"topic": ["a", None], "body": ["1", "2"]})
    ((topic, table),) = tables_by_topic(batch, "all")
    assert topic == "all"
    assert table.to_pydict() == {"body": ["1", "2"]}


@pytest.mark.parametrize("name", ["topic", "body"])
def test_row_without_topic_or_body_is_refused(name: str) -> None:
    batch = pa.record_batch({"topic": ["a"] * 3, "body": ["1"] * 3}).set_column(
        0 if name == "topic" else 1, name, pa.array(["x", None, None])
    )
    with pytest.raises(RowError, match=f'2 of 3 rows have null in column {name}.*where."{name} IS NOT NULL"'):
        list(tables_by_topic(batch, None))


@pytest.mark.parametrize("others", [[], ["orders"]])
def test_row_for_the_commits_topic_is_refused(others: list[str]) -> None:
    topics = [*others, COMMITS_TOPIC]
    batch = pa.record_batch({"topic": topics, "body": ['{"batch": 3}'] * len(topics)})
    with pytest.raises(RowError, match=f"Topic {COMMITS_TOPIC} is an internal topic of the store"):
        list(tables_by_topic(batch, None))


def test_nulls_in_optional_columns_mean_defaults() -> None:
    now = int(time.time() * 1000)
    times = pa.array([5_000_000, None], pa.timestamp("us", "UTC"))
    batch = pa.record_batch(
        {"body": ["1", "2"], "flag": [7, None], "bornTimestamp": times, "tags": pa.array([None, "t"])}
    )
    ((_, table),) = tables_by_topic(batch, "t")
    assert table["flag"].to_pylist() == [7, 0]
    assert table["tags"].to_pylist() == [None, "t"]
    first, second = table["bornTimestamp"].cast(pa.int64()).to_pylist()
    assert first == 5_000_000
    assert 0 <= second - now * 1000 < 60_000_000


def test_rows_get_unique_keys() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b"]})
    found = with_unique_keys(batch, "q-7-0", 5)
    assert found["properties"].to_pylist() == [[("UNIQ_KEY", "q-7-0-5")], [("UNIQ_KEY", "q-7-0-6")]]


def test_rows_keep_properties_and_unique_keys() -> None:
    maps = [[("x", "9")], [], None, [("a", "1"), ("b", "2")], [("UNIQ_KEY", "mine"), ("c", "3")], [("d", "4")]]
    properties = pa.array(maps, pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([properties], ["properties"]).slice(1)
    found = with_unique_keys(batch, "t", 0)["properties"]
    found.validate(full=True)
    assert found.to_pylist() == [
        [("UNIQ_KEY", "t-0")],
        [("UNIQ_KEY", "t-1")],
        [("a", "1"), ("b", "2"), ("UNIQ_KEY", "t-2")],
        [("UNIQ_KEY", "mine"), ("c", "3")],
        [("d", "4"), ("UNIQ_KEY", "t-4")],
    ]
    assert with_unique_keys(batch.slice(0, 0), "t", 0).num_rows == 0
