"""Shared by the benchmarks: a filled store, a Spark session, medians, and a table printer."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from tqdm import tqdm

from store import MessageStore

TOPIC = "bench"
QUEUES = 4
TAGS = ("paid", "shipped", "returned", "open")
RARE_TAG = "rare"  # on 1 % of the messages
_ROWS_AT_ONCE = 50_000


def messages(count: int, body_bytes: int, seed: int = 0, at_once: int = _ROWS_AT_ONCE) -> Iterator[pa.Table]:
    """Tables of `at_once` messages, with random bodies, one of five tags, and one key each."""
    random = np.random.default_rng(seed)
    names = np.array([*TAGS, RARE_TAG])
    weights = [0.99 / len(TAGS)] * len(TAGS) + [0.01]
    for first in range(0, count, at_once):
        rows = min(at_once, count - first)
        offsets = np.arange(0, (rows + 1) * body_bytes, body_bytes, dtype=np.int32)
        body = pa.BinaryArray.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(rows * body_bytes))]
        )
        keys = pa.array(np.char.add("o-", np.arange(first, first + rows).astype("U")))
        yield pa.table({"body": body, "tags": pa.array(random.choice(names, rows, p=weights)), "keys": keys})


def fill(path: Path, count: int, body_bytes: int) -> None:
    """Fill a store with messages in QUEUES queues, flushed so that no write-back disturbs."""
    with MessageStore.open(path) as store:
        store.create_topic(TOPIC, QUEUES)
        with tqdm(total=count, desc=f"filling with {body_bytes} B bodies", unit="msg", leave=False) as bar:
            for table in messages(count, body_bytes):
                bar.update(len(store.append_table(TOPIC, table)))


@contextmanager
def filled(count: int, body_bytes: int) -> Iterator[Path]:
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        path = Path(folder) / "store"
        fill(path, count, body_bytes)
        yield path


def spark(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a quiet local session on two cores. settings: additional Spark settings."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = Path(__file__).parents[1] / "conf" / "log4j2.properties"
    return (
        SparkSession.builder.master("local[2]")
        .appName("pyspark-mq benchmarks")
        .config(map=dict(settings or {}))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{conf}")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .getOrCreate()
    )


def side_by_side(runs: int, *measures: Callable[[], float]) -> list[float]:
    """Return the median of each measure over `runs` rounds, after a warm-up round. A round runs all measures in turn.

    runs: 0 returns the warm-up round, to check that it works.
    """
    rounds = [[measure() for measure in measures] for _ in range(runs + 1)][min(runs, 1) :]
    return [statistics.median(values) for values in zip(*rounds, strict=True)]


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table in the form of docs/measured.md."""
    print(f"\n{title} ({platform.machine()}, {os.cpu_count()} cores)\n")
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()
