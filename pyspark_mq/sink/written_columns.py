from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_mq.errors import RowError, SchemaError
from store.format.arrays import arrow, numbers, pc
from store.format.columns import COLUMNS
from store.format.layout import PROPERTY_UNIQ_KEY
from store.format.topic_names import TOPICS_OF_NOTES


class ColumnKind(NamedTuple):
    """The types that a written column may have.

    fits: whether a type is one of them. ours: the column's type in a view for INSERT INTO. words: for errors.
    """

    fits: Callable[[DataType], bool]
    ours: DataType
    words: str


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_integer(kind: DataType) -> bool:
    return isinstance(kind, IntegralType)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType | LongType)


def _is_texts(kind: DataType) -> bool:
    return isinstance(kind, ArrayType) and _is_text(kind.elementType)


def _is_text_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


_TEXT = ColumnKind(_is_text, StringType(), "string")
_INTEGER = ColumnKind(_is_integer, IntegerType(), "int")
_TIME = ColumnKind(_is_time, TimestampType(), "timestamp, or bigint (ms since 1970)")

SINK_COLUMNS: dict[str, ColumnKind] = {
    "topic": _TEXT,
    "body": ColumnKind(lambda kind: isinstance(kind, StringType | BinaryType), BinaryType(), "string or binary"),
    "tags": _TEXT,
    "keys": ColumnKind(
        lambda kind: _is_text(kind) or _is_texts(kind),
        StringType(),
        "string (keys separated by spaces) or array<string>",
    ),
    "properties": ColumnKind(_is_text_map, MapType(StringType(), StringType()), "map<string,string>"),
    "queueId": _INTEGER,
    "shardingKey": _TEXT,
    "flag": _INTEGER,
    "bornTimestamp": _TIME,
    "delayLevel": _INTEGER,
    "deliverAt": _TIME,
}
"""The columns that can be written. Only `body` is required, and `topic` if no option names it."""

_KAFKA_NAMES = {
    "value": "body",
    "key": "keys",
    "partition": "queueId",
    "headers": "properties, a map<string,string>",
    "timestamp": "bornTimestamp",
}


def sink_schema(with_topic: bool) -> StructType:
    names = [name for name in SINK_COLUMNS if name != "topic" or with_topic]
    return StructType([StructField(name, SINK_COLUMNS[name].ours) for name in names])


def check_schema(schema: StructType, topic: str | None) -> None:
    """Check the columns of written rows. topic: the option `topic`. Raises `SchemaError`."""
    names = schema.fieldNames()
    for field in schema.fields:
        kind = SINK_COLUMNS.get(field.name)
        if kind is None:
            raise SchemaError(_unknown(field.name))
        if not kind.fits(field.dataType):
            raise SchemaError(
                f"Column {field.name} is {field.dataType.simpleString()}, and must be {kind.words}. Cast it"
                + (" or convert it with to_json" if field.name == "body" else "")
            )
    if "body" not in names:
        raise SchemaError(
            f"The column body is missing. Name the text or bytes to send body, e.g. select({_example(names)})"
        )
    if "topic" not in names and topic is None:
        raise SchemaError('The topic of the rows is not named. Set option("topic", ...), or add a column topic')
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"Duplicate columns: {', '.join(twice)}. Drop one of each")


def _example(names: list[str]) -> str:
    return 'expr("to_json(struct(*)) AS body")' if len(names) != 1 else f'col("{names[0]}").alias("body")'


def _unknown(name: str) -> str:
    if name.lower() in _KAFKA_NAMES:
        ours = _KAFKA_NAMES[name.lower()]
        return (
            f"Column {name} is named as in the Kafka sink. Here it is {ours}: withColumnRenamed({name!r}, "
            f"{ours.split(',')[0]!r})"
        )
    if name in COLUMNS:
        return f"Column {name} cannot be written, because the store sets it. Remove it: drop({name!r})"
    near = get_close_matches(name, SINK_COLUMNS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SINK_COLUMNS)}. Put other values into body"
    return f"Messages have no column {name!r}: {hint}"


def tables_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the topics of an Arrow batch, each with its messages in the order of rows.

    topic: of all rows; None to take it from the column `topic`. Raises `RowError` for a row without body or topic, or a
    reserved topic.
    """
    if batch.num_rows == 0:
        return
    names = [name for name in batch.schema.names if name != "topic"]
    columns = [_filled(name, batch.column(name)) for name in names]
    messages = pa.RecordBatch.from_arrays(columns, names)
    if topic is not None:  # the option overrides the column, as in Spark's Kafka sink
        yield topic, messages
    else:
        yield from _split(messages, _filled("topic", batch.column("topic")))


def _split(messages: pa.RecordBatch, topics: pa.StringArray) -> Iterator[tuple[str, pa.RecordBatch]]:
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if notes := TOPICS_OF_NOTES.intersection(names):
        raise RowError(f"Topic {min(notes)} is an internal topic of the store. Write the rows to another topic")
    if len(names) == 1:
        yield names[0], messages
        return
    codes = numbers(encoded.indices)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    sorted_ = messages.take(arrow(order))
    for code, name in enumerate(names):
        yield name, sorted_.slice(bounds[code], bounds[code + 1] - bounds[code])


def with_unique_keys(batch: pa.RecordBatch, task: str, first: int) -> pa.RecordBatch:
    """Set the property UNIQ_KEY of each row to "<task>-<row>", unless it has one. first: the first row's number."""
    if not batch.num_rows:
        return batch
    rows = np.arange(first, first + batch.num_rows)
    keys = pc.binary_join_element_wise(task, arrow(rows).cast(pa.string()), "-")
    if "properties" not in batch.schema.names:
        names = pa.array([PROPERTY_UNIQ_KEY]).take(arrow(np.zeros(batch.num_rows, np.int64)))
        column = pa.MapArray.from_arrays(arrow(np.arange(batch.num_rows + 1, dtype=np.int32)), names, keys)
        return batch.append_column("properties", column)
    index = batch.schema.get_field_index("properties")
    return batch.set_column(index, "properties", _with_property(batch.column(index), PROPERTY_UNIQ_KEY, keys))


def _with_property(maps: pa.MapArray, name: str, values: pa.StringArray) -> pa.MapArray:
    offsets = numbers(maps.offsets).astype(np.int64)
    lengths = np.where(numbers(maps.is_valid()), np.diff(offsets), 0)
    row_of = np.repeat(np.arange(len(maps)), lengths)
    within = np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    old = offsets[row_of] + within
    has = np.zeros(len(maps), np.bool_)
    has[row_of[numbers(pc.equal(maps.keys, name))[old]]] = True
    added = np.where(has, 0, 1)
    ends = np.cumsum(lengths + added)
    order = np.empty(int(ends[-1]), np.int64)
    order[(ends - added - lengths)[row_of] + within] = old
    new = np.flatnonzero(added)
    order[ends[new] - 1] = len(maps.keys) + new
    names = pa.concat_arrays([maps.keys.cast(pa.string()), pa.array([name]).take(arrow(np.zeros(len(maps), np.int64)))])
    items = pa.concat_arrays([maps.items.cast(pa.string()), values])
    return pa.MapArray.from_arrays(
        arrow(np.concatenate([[0], ends]).astype(np.int32)), names.take(arrow(order)), items.take(arrow(order))
    )


def _filled(name: str, column: pa.Array) -> pa.Array:
    if not column.null_count:
        return column
    if name in ("body", "topic"):
        raise RowError(
            f"{column.null_count:,} of {len(column):,} rows have null in column {name}. Remove them with "
            f'where("{name} IS NOT NULL"), or replace null with coalesce'
        )
    if name == "flag":
        return pc.fill_null(column, _integer(0, column.type))
    if name == "bornTimestamp":
        ms = _integer(int(time.time() * 1000), pa.int64())
        kind = column.type
        return pc.fill_null(column, ms if kind == pa.int64() else ms.cast(pa.timestamp("ms", kind.tz)).cast(kind))
    return column


def _integer(value: int, kind: pa.DataType) -> pa.Scalar:
    return arrow(np.array([value]))[0].cast(kind)
