"""Which share of a null source's rate does reading reach, as a batch and as a stream with AvailableNow?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench import TOPIC, filled, show, side_by_side, spark
from benchmarks.copy_source import CopySource
from benchmarks.null_source import NullSource

DEFAULT = (
    "topic string, queueId int, queueOffset bigint, msgId string, tags string, keys string, body binary, "
    "bornTimestamp timestamp, storeTimestamp timestamp"
)
SLIM = "queueOffset bigint, body binary"
CASES = (("default columns, CRC checked", DEFAULT, "true"), ("queueOffset and body, no CRC", SLIM, "false"))


@dataclass(frozen=True)
class Frames:
    """A source with its options. Each call loads it again. schema: None for a source without one."""

    session: SparkSession
    source: str
    options: Mapping[str, str]
    schema: str | None

    def batch(self) -> DataFrame:
        reader = self.session.read.format(self.source).options(**self.options)
        return (reader.schema(self.schema) if self.schema else reader).load()

    def stream(self) -> DataFrame:
        reader = self.session.readStream.format(self.source).options(**self.options)
        return (reader.schema(self.schema) if self.schema else reader).load()


def batch_seconds(frames: Frames) -> float:
    frame = frames.batch()
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def stream_seconds(frames: Frames) -> float:
    """Return the seconds of the micro-batches (Spark's triggerExecution)."""
    with TemporaryDirectory() as checkpoint:
        writer = frames.stream().writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        milliseconds: int = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)
        return milliseconds / 1000


MODES = (("stream", stream_seconds), ("batch", batch_seconds))


def main(count: int, runs: int, body_sizes: tuple[int, ...] = (100, 1000)) -> None:
    session = spark()
    session.dataSource.register(NullSource)
    session.dataSource.register(CopySource)
    rows = []
    for body_bytes in body_sizes:
        with filled(count, body_bytes) as path:
            for title, schema, check_crc in CASES:
                sources = {"null": {}, "mq": {"subscribe": TOPIC, "startingOffsets": "earliest", "checkCRC": check_crc}}
                sources |= {"copy": {}} if schema == SLIM else {}
                frames = [
                    Frames(session, name, {"path": str(path), **given}, schema) for name, given in sources.items()
                ]
                for mode, seconds in MODES:
                    measures = [partial(seconds, each) for each in frames]
                    null, *taken = side_by_side(runs, *measures)
                    rows.append(
                        [f"{body_bytes} B", title, mode]
                        + [f"{count / each / 1e6:.2f} M/s" for each in (null, taken[0])]
                        + [f"{null / each:.2f}" for each in taken]
                        + [""] * (3 - len(sources))
                    )
    head = ["body", "columns", "mode", "null source", "mq", "ratio", "copying only"]
    show(f"Reading {count:,} messages from 4 queues, medians of {runs} runs", head, rows)
