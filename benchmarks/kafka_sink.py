"""How fast does the sink write, against Spark's Kafka sink with a local broker, and against Parquet?

Spark loads the Kafka sink at its start, so this runs on its own: `python -m benchmarks.kafka_sink [--small]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count as counting

import click
from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench import QUEUES, TOPIC, show, side_by_side, spark
from benchmarks.kafka_broker import broker, connector, unavailable
from benchmarks.writing import TASKS, parquet_seconds, sink_seconds

_BODY_BYTES = 100
_DELIVERIES = ("at-least-once", "exactly-once")
_topics = counting()


@click.command()
@click.option("--small", is_flag=True, help="See that everything runs; the numbers mean nothing.")
def main(small: bool) -> None:
    count, runs = (2_000, 0) if small else (2_000_000, 5)
    why_not = unavailable()
    if why_not is not None:
        _compare(spark(), count, runs, {}, f"; without Kafka, which {why_not}")
        return
    with broker() as servers:
        session = spark(connector())
        _compare(session, count, runs, {"Kafka's sink": partial(kafka_seconds, servers)}, "")
        session.stop()  # otherwise its producer logs errors about the stopped broker


def _compare(
    session: SparkSession, count: int, runs: int, kafka: dict[str, Callable[[DataFrame], float]], note: str
) -> None:
    frame = session.range(count, numPartitions=TASKS).selectExpr(f"rpad(string(id), {_BODY_BYTES}, 'x') AS body")
    measures: dict[str, Callable[[DataFrame], float]] = {"Parquet": parquet_seconds, **kafka}
    measures |= {delivery: partial(sink_seconds, delivery=delivery) for delivery in _DELIVERIES}
    taken = side_by_side(runs, *(partial(measure, frame) for measure in measures.values()))
    seconds = dict(zip(measures, taken, strict=True))
    rows = [
        [
            name,
            f"{count / taken / 1e6:.2f} M/s",
            f"{seconds['Parquet'] / taken:.2f}",
            *(f"{seconds[each] / taken:.2f}" for each in kafka),
        ]
        for name, taken in seconds.items()
    ]
    head = ["written as", "rows", "of Parquet", *(f"of {name}" for name in kafka)]
    show(
        f"Writing {count:,} rows of {_BODY_BYTES} B, PySpark {session.version}, medians of {runs} runs{note}",
        head,
        rows,
    )


def kafka_seconds(servers: str, frame: DataFrame) -> float:
    """With default settings: the broker acknowledges each row."""
    kafka = import_module("confluent_kafka.admin")
    admin, topic = kafka.AdminClient({"bootstrap.servers": servers}), f"{TOPIC}-{next(_topics)}"
    admin.create_topics([kafka.NewTopic(topic, QUEUES, 1)])[topic].result()
    given = {"kafka.bootstrap.servers": servers, "topic": topic}
    begin = time.perf_counter()
    frame.selectExpr("body AS value").write.format("kafka").options(**given).save()
    taken = time.perf_counter() - begin
    admin.delete_topics([topic])[topic].result()
    return taken


if __name__ == "__main__":
    main()
