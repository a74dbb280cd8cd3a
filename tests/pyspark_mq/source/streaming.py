"""A streaming reader that is driven as Spark drives it."""

from __future__ import annotations

from typing import Any

from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.schema import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader
from tests.filled import Filled

EARLIEST = {"startingOffsets": "earliest"}


def reader(filled: Filled, **options: Any) -> MqStreamReader:
    options = {"path": filled.path, "subscribe": "orders", "holdTimeoutMs": "0", **options}
    if "subscribePattern" in options:
        del options["subscribe"]
    return MqStreamReader(SourceOptions.parse(options), default_schema(False))


def bare(offset: dict[str, Any]) -> dict[str, Any]:
    """Without the fingerprints."""
    return {key: value for key, value in offset.items() if key != "$last"}


def latest(it: MqStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return it.latestOffset(start, it.getDefaultReadLimit())


def first_batch(it: MqStreamReader) -> dict[str, Any]:
    return latest(it, it.initialOffset())


def ranges(it: MqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [" + ".join(map(str, partition.value.ranges)) for partition in it.partitions(start, end)]


def rows(it: MqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    batches = [batch for partition in it.partitions(start, end) for batch in it.read(partition)]
    return [
        tuple(row[name] for name in ("topic", "queueId", "queueOffset", "body"))
        for batch in batches
        for row in batch.to_pylist()
    ]
