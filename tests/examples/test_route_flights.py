"""Run the example with spark-submit to the end of the topic, then once more."""

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from examples.route_flights import start
from pyspark_mq.flights import as_messages, load_flights
from store import MessageStore

ROOT = Path(__file__).parents[2]
ROWS = 20_000


def submit(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("spark-submit"),
            "--properties-file",
            ROOT / "conf" / "spark-defaults.conf",
            ROOT / "examples" / "route_flights.py",
            *("--store", tmp_path / "store", "--checkpoint", tmp_path / "checkpoint", "--available-now"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def go_on(spark: SparkSession, tmp_path: Path) -> None:
    names = {name: str(tmp_path / name) for name in ("store", "checkpoint")}
    assert start(spark, argparse.Namespace(**names, minutes=60, available_now=True)).awaitTermination(300)


def routed(store: MessageStore, topic: str) -> Counter[tuple[bytes, str]]:
    return Counter(
        (row["body"], row["tags"])
        for queue_id in range(store.topics()[topic])
        for batch in store.scan(topic, queue_id, *store.offsets(topic, queue_id), columns=("body", "tags"))
        for row in batch.to_pylist()
    )


def expected(flights: pa.Table, messages: pa.Table, wanted: pa.ChunkedArray) -> Counter[tuple[bytes, str]]:
    bodies, origins = messages.filter(wanted)["body"].to_pylist(), flights.filter(wanted)["origin"].to_pylist()
    return Counter((body.encode(), origin) for body, origin in zip(bodies, origins, strict=True))


def test_flights_are_routed_once_over_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    flights = load_flights().slice(0, ROWS)
    messages, delays = as_messages(flights), flights["dep_delay"]
    with MessageStore.open(tmp_path / "store") as store:
        for topic in ("flights", "late", "cancelled"):
            store.create_topic(topic)
        store.append_table("flights", messages.slice(0, ROWS // 2))
        submit(tmp_path)
        store.append_table("flights", messages.slice(ROWS // 2))
        go_on(spark, tmp_path)
        assert routed(store, "cancelled") == expected(flights, messages, pc.is_null(delays))
        assert routed(store, "late") == expected(flights, messages, pc.fill_null(pc.greater(delays, 60), False))
