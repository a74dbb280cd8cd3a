"""Errors that `load()` raises: Spark first asks for the schema."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from pyspark_mq.datasource import DefaultSource
from pyspark_mq.errors import MqSourceError, OptionError, SubscriptionError
from pyspark_mq.source.reading import default_schema
from store import NotAStore
from tests.filled import Filled


def test_path_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match=str(tmp_path)):
        DefaultSource({"path": str(tmp_path / "elsewhere"), "subscribe": "orders"}).schema()


@pytest.mark.parametrize("option", [{"subscribe": "orders,payments"}, {"assign": '{"orders": [0], "payments": [0]}'}])
def test_missing_topic_is_refused(filled: Filled, option: dict[str, str]) -> None:
    source = {"path": filled.path, **option}
    with pytest.raises(SubscriptionError, match=r"^The log has no payments.*; it has orders \(2 queues\)"):
        DefaultSource(source).schema()
    # The deleted topic may be known to a checkpoint, with which the query continues; the schema has no checkpoint.
    assert DefaultSource({**source, "failOnDataLoss": "false"}).schema() == default_schema(False)


def test_wrong_option_is_refused(filled: Filled) -> None:
    with pytest.raises(OptionError, match="startingOffsets takes earliest, latest"):
        DefaultSource({"path": filled.path, "subscribe": "orders", "startingOffsets": "first"}).schema()


@pytest.mark.parametrize(
    ("options", "body", "message"),
    [
        ({"endingOffsets": "latest"}, BinaryType(), "A streaming query has no end"),
        ({"subscribes": "orders"}, BinaryType(), "did you mean subscribe?"),
        ({}, StringType(), "Column body is binary, but the schema says string"),
    ],
)
def test_wrong_stream_raises_in_each_call_of_its_reader(
    filled: Filled, options: dict[str, str], body: DataType, message: str
) -> None:
    source = DefaultSource({"path": filled.path, "subscribe": "orders", **options})
    reader = source.streamReader(StructType([StructField("body", body)]))
    asked: list[Callable[[], object]] = [
        reader.prepareForTriggerAvailableNow,
        reader.getDefaultReadLimit,
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ]
    for question in asked:
        with pytest.raises(MqSourceError, match=re.escape(message)):
            question()
    reader.stop()


def test_schema_changes_no_file(filled: Filled) -> None:
    filled.store.close()
    before = sorted((file, file.stat().st_mtime_ns) for file in Path(filled.path).rglob("*"))
    assert DefaultSource({"path": filled.path, "subscribe": "orders"}).schema() == default_schema(False)
    assert DefaultSource({"path": filled.path, "topic": "later"}).schema()  # to be written to
    assert sorted((file, file.stat().st_mtime_ns) for file in Path(filled.path).rglob("*")) == before
