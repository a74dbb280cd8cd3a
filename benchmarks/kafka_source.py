"""How fast does the source read, against Spark's Kafka source with the same messages in a local broker?

Spark loads the Kafka source at its start, so this runs on its own: `python -m benchmarks.kafka_source [--small]`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import click
from pyspark.sql import SparkSession

from benchmarks.bench import TOPIC, filled, show, side_by_side, spark
from benchmarks.kafka_broker import broker, connector, produced, unavailable
from benchmarks.reading import MODES, Frames

# Kafka's source always reads a record's key, value and position, which are six columns here.
COLUMNS = "topic string, queueId int, queueOffset bigint, keys string, body binary, storeTimestamp timestamp"


@click.command()
@click.option("--small", is_flag=True, help="See that everything runs; the numbers mean nothing.")
def main(small: bool) -> None:
    count, runs = (2_000, 0) if small else (2_000_000, 5)
    why_not = unavailable()
    with ExitStack() as stack:
        servers = None if why_not else stack.enter_context(broker())
        session = spark(connector() if servers else {})
        rows = [row for body_bytes in (100, 1000) for row in _compare(session, servers, count, runs, body_bytes)]
        note = f"; without Kafka, which {why_not}" if why_not else ""
        title = f"Reading {count:,} messages from 4 queues, PySpark {session.version}, medians of {runs} runs{note}"
        show(title, ["body", "mode", "mq", "Kafka's source", "times as fast"], rows)
        session.stop()  # otherwise its consumers log errors about the stopped broker


def _compare(session: SparkSession, servers: str | None, count: int, runs: int, body_bytes: int) -> list[list[str]]:
    given = {"subscribe": TOPIC, "startingOffsets": "earliest"}
    rows = []
    with filled(count, body_bytes) as path:
        sources = [Frames(session, "mq", {**given, "path": str(path)}, COLUMNS)]
        if servers:
            topic = produced(servers, count, body_bytes)
            given |= {"subscribe": topic, "kafka.bootstrap.servers": servers}
            sources.append(Frames(session, "kafka", given, None))
        for mode, seconds in MODES:
            taken = side_by_side(runs, *(partial(seconds, frames) for frames in sources))
            rates = [f"{count / each / 1e6:.2f} M/s" for each in taken]
            rows.append([f"{body_bytes} B", mode, *rates, *(f"{each / taken[0]:.2f}" for each in taken[1:])])
    return rows


if __name__ == "__main__":
    main()
