"""What does a streaming query pay before its first row, and until it is over, against a source that does nothing?

Spark starts a Python process for the reader of each query, whatever the source. Both kinds of query run in turns in one
session that has run others: their difference is this source's own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil
from pyspark.sql import DataFrame

from benchmarks.bench import TOPIC, show, spark
from benchmarks.empty_source import EmptySource
from store import Message, MessageStore

_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


class _Start(NamedTuple):
    """Seconds from `start()` on to the first row and to the query's end, and of processor time of the reader's process,
    at its first batch."""

    first_row: float
    end: float
    reader: float


def main(runs: int, shapes: Sequence[tuple[int, int]] = ((1, 1), (1, 4000), (200, 20))) -> None:
    """Prints the table; shapes: how many queues topics have, and messages each."""
    session = spark()
    session.dataSource.register(EmptySource)
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        path = Path(folder) / "store"
        sources = {"a source that does nothing": session.readStream.format("empty")}
        with MessageStore.open(path) as store:
            for queues, count in shapes:
                topic = f"{TOPIC}-{queues}-{count}"
                store.create_topic(topic, queues)
                store.put_many([Message(topic, b"body", queue_id=n % queues) for n in range(queues * count)])
                reader = session.readStream.format("mq").option("startingOffsets", "earliest")
                sources[f"mq, {queues} queues of {count:,}"] = reader.option("subscribe", topic)
        rounds = [
            [_start(reader.load(str(path)), f"{folder}/{name}-{run}") for name, reader in sources.items()]
            for run in range(runs + 1)
        ][1:]
    medians = [_Start(*map(statistics.median, zip(*starts, strict=True))) for starts in zip(*rounds, strict=True)]
    rows = [[name, *_cells(each, medians[0])] for name, each in zip(sources, medians, strict=True)]
    head = ["query", "to the first row", "", "to its end", "", "the reader's process, processor time", ""]
    show(f"Starting a query with AvailableNow in a warm session, medians of {runs} runs", head, rows)


def _cells(start: Sequence[float], yardstick: Sequence[float]) -> list[str]:
    pairs = zip(start, yardstick, strict=True)
    return [cell for took, least in pairs for cell in (f"{took:.2f} s", f"{took - least:+.2f} s, {took / least:.2f}")]


def _start(frame: DataFrame, checkpoint: str) -> _Start:
    """Run a query to its end."""
    begin = time.perf_counter()
    seen: list[tuple[float, float]] = []

    def collect(batch: DataFrame, number: int) -> None:
        assert batch.collect()
        seen.append((time.perf_counter() - begin, _reader_seconds()))

    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    return _Start(seen[0][0], time.perf_counter() - begin, seen[0][1])


def _reader_seconds() -> float:
    """Processor time, user and system, of the process that has the reader; there is one query at a time."""
    times = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # as are those of the queries before, which nobody waited for
            if _RUNNER in process.cmdline():
                times.append(process.cpu_times())
    assert len(times) == 1, f"{len(times)} processes with a reader"
    return float(times[0].user + times[0].system)
