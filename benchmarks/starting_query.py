"""How long does a streaming query take to its first row and to its end, against a source that does nothing?

For any source, Spark starts a Python process for the reader. Both kinds of query run alternately in a warm session, so
their difference is the cost of this source.
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
    """Seconds from `start()` to the first row and to the query's end, and CPU seconds of the reader's process.

    The CPU time is taken at the first batch.
    """

    first_row: float
    end: float
    reader: float


def main(runs: int, shapes: Sequence[tuple[int, int]] = ((1, 1), (1, 4000), (200, 20))) -> None:
    """shapes: number of queues of a topic, and messages in each."""
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
    begin = time.perf_counter()
    seen: list[tuple[float, float]] = []

    def collect(batch: DataFrame, number: int) -> None:
        assert batch.collect()
        seen.append((time.perf_counter() - begin, _reader_seconds()))

    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    return _Start(seen[0][0], time.perf_counter() - begin, seen[0][1])


def _reader_seconds() -> float:
    """Only one query runs at a time."""
    times = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # processes of earlier queries, which were not awaited
            if _RUNNER in process.cmdline():
                times.append(process.cpu_times())
    assert len(times) == 1, f"{len(times)} processes with a reader"
    return float(times[0].user + times[0].system)
