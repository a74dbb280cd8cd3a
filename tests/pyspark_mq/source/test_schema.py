"""The columns as a Spark schema, and projections of it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from pyspark_mq.errors import SchemaError
from pyspark_mq.source.schema import default_schema, projection
from store.format.columns import COLUMNS


def test_default_columns() -> None:
    assert default_schema(include_properties=False).simpleString() == (
        "struct<topic:string,queueId:int,queueOffset:bigint,msgId:string,tags:string,keys:string,body:binary,"
        "bornTimestamp:timestamp,storeTimestamp:timestamp>"
    )
    assert default_schema(include_properties=True).fields[-1].simpleString() == "properties:map<string,string>"


def test_spark_expects_the_types_the_store_gives() -> None:
    every = StructType([StructField(f.name, f.dataType) for f in default_schema(True).fields])
    names, schema = projection(every)
    assert list(names) == every.fieldNames()
    for name, kind in zip(names, schema.types, strict=True):
        assert kind.equals(COLUMNS[name])


def test_any_subset_in_any_order() -> None:
    wanted = StructType([StructField("tags", StringType()), StructField("queueOffset", LongType(), False)])
    names, schema = projection(wanted)
    assert names == ("tags", "queueOffset")
    assert schema == pa.schema([("tags", pa.string()), pa.field("queueOffset", pa.int64(), nullable=False)])


def test_bodies_may_be_null_where_those_that_are_too_large_are() -> None:
    never = StructType([StructField("body", BinaryType(), False)])
    assert projection(never)[0] == ("body",)
    with pytest.raises(SchemaError, match="Column body may be null"):
        projection(never, null_bodies=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "names no column"),
        ([("queueid", IntegerType(), True)], "no column 'queueid': did you mean queueId?"),
        ([("amount", IntegerType(), True)], "no column 'amount': available are topic"),
        ([("queueId", LongType(), True)], "Column queueId is int, the schema says bigint"),
        ([("tags", StringType(), False)], "Column tags may be null"),
        ([("tags", StringType(), True), ("tags", StringType(), True)], "a column twice: tags"),
    ],
)
def test_refused(fields: list[tuple[str, object, bool]], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        projection(StructType([StructField(*field) for field in fields]))
    assert message in str(caught.value)
