"""Call a streaming reader as Spark does."""

from __future__ import annotations

from typing import Any

from pyspark_mq.offsets.stream_offsets import StreamOffset, positions_from_json
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import RangeTask, default_schema
from pyspark_mq.source.stream_reader import MqStreamReader
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import QueueRange
from tests.filled import Filled

EARLIEST = {"startingOffsets": "earliest"}


def reader(filled: Filled, **options: Any) -> MqStreamReader:
    options = {"path": filled.path, "subscribe": "orders", "holdTimeoutMs": "0", **options}
    if "subscribePattern" in options:
        del options["subscribe"]
    return MqStreamReader(SourceOptions.parse(options), default_schema(False))


def bare(offset: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in offset.items() if key != "$last"}


def seen(filled: Filled, orders: dict[str, int]) -> dict[str, Any]:
    positions = positions_from_json({"orders": orders})
    with DirectoryAddress(filled.path).open() as log:
        return StreamOffset(positions, last=log.fingerprints(positions)).to_json()


def unknown(wanted: QueueRange) -> RangeTask:
    """Return a task of a log without fingerprints, such as a cluster."""
    return RangeTask((wanted,), {wanted.queue: 0}, {})


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
