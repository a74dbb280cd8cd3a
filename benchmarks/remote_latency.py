"""How long does a message take through a RocketMQ broker to its push consumer, and to a real-time query?

Runs on its own, as `latency`: `python -m benchmarks.remote_latency [--small]`.
"""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.bench import QUEUES, TOPIC, show
from benchmarks.latency import Floats, percentiles, realtime_session, stage_writer, stamped
from store.model.codes import RequestCode
from store.remoting.client import Client
from store.remoting.headers import SendMessageV2
from store.remoting.served_routes import DEFAULT_TOPIC
from tests.rocketmq.harness import Json, RocketMQ, free_ports, unavailable

_LINE, _RATE = "5.3", 100
_BATCHES = 3  # the first is not measured, and messages are sent throughout the last


@click.command()
@click.option("--small", is_flag=True, help="See that everything runs; the numbers mean nothing.")
def main(small: bool) -> None:
    head = ["", "who else reads", "p50", "p90", "p99"]
    if (reason := unavailable()) is not None:
        show(f"no broker to read from: {reason}", head, [])
        return
    seconds, batch_seconds = (1, 1) if small else (20, 5)
    rocketmq, ports, session = RocketMQ(_LINE), free_ports(), realtime_session()
    name_server, broker = (f"127.0.0.1:{ports[name]}" for name in ("namesrvPort", "brokerPort"))
    with (
        TemporaryDirectory(prefix="mq-bench-") as folder,
        rocketmq.broker(Path(folder) / "mq", None, topic=TOPIC, queues=QUEUES, **ports),
    ):
        rows = [
            ["DefaultMQPushConsumer", "nobody", *percentiles(push(rocketmq, name_server, broker, seconds))],
            ["real-time query", "nobody", *percentiles(query(session, name_server, broker, seconds, batch_seconds))],
        ]
        with listening(rocketmq, name_server, broker, "other"):
            latencies = percentiles(query(session, name_server, broker, seconds, batch_seconds))
            rows.append(["real-time query", "a push consumer", *latencies])
    session.stop()
    show(f"send to a RocketMQ {_LINE} broker, at {_RATE}/s, to listener or JVM row inside a batch, ms", head, rows)


def send(broker: str, seconds: float) -> None:
    """Send at a steady rate. A body is the time of the send in µs since 1970. A refused message is not sent again."""
    with Client(60) as client:
        begin = time.monotonic()
        for number in count():
            time.sleep(max(0.0, begin + number / _RATE - time.monotonic()))
            if number / _RATE >= seconds:
                return
            now = time.time_ns() // 1000
            header = SendMessageV2("bench", TOPIC, DEFAULT_TOPIC, QUEUES, number % QUEUES, 0, now // 1000, 0)
            client.ask(broker, RequestCode.SEND_MESSAGE_V2, header.texts(), b"%d" % now).result()


@contextmanager
def listening(rocketmq: RocketMQ, name_server: str, broker: str, group: str) -> Iterator[list[Json]]:
    """Yield a list that receives the messages of a RocketMQ listener. It is complete after the block."""
    heard: list[Json] = []

    def note() -> None:
        for line in clients:
            heard.append(line)

    with rocketmq.clients(name_server) as clients:
        clients.ask("subscribe", id=group, group=group, topic=TOPIC, latest=True)
        noting = threading.Thread(target=note)
        noting.start()
        while noting.is_alive() and not any("body" in line for line in heard):
            send(broker, 0.5)
        yield heard
    noting.join()


def push(rocketmq: RocketMQ, name_server: str, broker: str, seconds: float) -> Floats:
    """Return milliseconds to a RocketMQ listener, by its clock, which has a resolution of 1 ms."""
    with listening(rocketmq, name_server, broker, "bench") as heard:
        send(broker, min(10.0, 2 * seconds))  # skip the start-up
        begin = time.time_ns() // 1000
        send(broker, seconds)
    return np.array([float(line["after"]) for line in heard if int(b64decode(line.get("body", "MA=="))) >= begin])


def query(session: SparkSession, name_server: str, broker: str, seconds: float, batch_seconds: float) -> Floats:
    """For messages that were sent while a batch was reading."""
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        out = Path(folder) / "out"
        given = {"nameServer": name_server, "subscribe": TOPIC, "ledgerPath": f"{folder}/ledger", "realTime": "true"}
        frame = session.readStream.format("mq").schema("body binary").options(**given)
        rows = frame.option("batchDuration", f"{batch_seconds}s").load()
        rows = rows.selectExpr("cast(cast(body as string) as bigint) sent")
        running = stage_writer(rows, out, None).option("checkpointLocation", f"{folder}/checkpoint").start()
        while read(running) == 0 and running.isActive:
            send(broker, 0.5)  # the first batch starts all processes
        send(broker, seconds)
        while read(running) < _BATCHES and running.isActive:
            send(broker, 0.5)
        before = read(running)
        while read(running) == before and running.isActive:  # the batch that reads the last messages
            time.sleep(0.1)
        running.stop()
        return stamped(out)[1]


def read(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)


if __name__ == "__main__":
    main()
