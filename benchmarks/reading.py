"""How much of a null source's rate does reading reach, as a batch and as a stream with AvailableNow?"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks.bench import TOPIC, filled, show, side_by_side, spark
from benchmarks.copy_source import CopySource
from benchmarks.null_source import NullSource

DEFAULT = (
    "topic string, queueId int, queueOffset bigint, msgId string, tags string, keys string, body binary, "
    "bornTimestamp timestamp, storeTimestamp timestamp"
)
SLIM = "queueOffset bigint, body binary"
CASES = (("default columns, CRC checked", DEFAULT, "true"), ("queueOffset and body, no CRC", SLIM, "false"))


def batch_seconds(session: SparkSession, source: str, path: Path, schema: str, check_crc: str) -> float:
    """Seconds to read everything into `noop`."""
    reader = session.read.format(source).schema(schema).option("path", str(path))
    if source == "mq":
        reader = reader.option("subscribe", TOPIC).option("checkCRC", check_crc)
    frame = reader.load()
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def stream_seconds(session: SparkSession, source: str, path: Path, schema: str, check_crc: str) -> float:
    """Seconds of the micro-batches (Spark's triggerExecution) that read everything into `noop`."""
    reader = session.readStream.format(source).schema(schema).option("path", str(path))
    if source == "mq":
        reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").option("checkCRC", check_crc)
    with TemporaryDirectory() as checkpoint:
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        milliseconds: int = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)
        return milliseconds / 1000


def main(count: int, runs: int, body_sizes: tuple[int, ...] = (100, 1000)) -> None:
    """Prints the table; `count` messages of each body size."""
    session = spark()
    session.dataSource.register(NullSource)
    session.dataSource.register(CopySource)
    rows = []
    for body_bytes in body_sizes:
        with filled(count, body_bytes) as path:
            for title, schema, check_crc in CASES:
                for mode, seconds in (("stream", stream_seconds), ("batch", batch_seconds)):
                    sources = ("null", "mq", "copy") if schema == SLIM else ("null", "mq")
                    measures = [partial(seconds, session, source, path, schema, check_crc) for source in sources]
                    null, *taken = side_by_side(runs, *measures)
                    rows.append(
                        [f"{body_bytes} B", title, mode]
                        + [f"{count / each / 1e6:.2f} M/s" for each in (null, taken[0])]
                        + [f"{null / each:.2f}" for each in taken]
                        + [""] * (3 - len(sources))
                    )
    head = ["body", "columns", "mode", "null source", "mq", "ratio", "copying only"]
    show(f"Reading {count:,} messages from 4 queues, medians of {runs} runs", head, rows)
