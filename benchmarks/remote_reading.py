"""How fast does Spark read over the network, from `serve`, and from a broker against RocketMQ's own consumer?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks.bench import QUEUES, TOPIC, filled, messages, show, side_by_side, spark
from benchmarks.reading import DEFAULT, SLIM
from store.cluster.address import ClusterAddress
from store.format.columns import DEFAULT_COLUMNS
from store.model.log_protocol import QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from tests.rocketmq.harness import RocketMQ, free_ports, unavailable

_SERVER = """
import sys
from store import MessageStore
from store.remoting.serving import serve
with MessageStore.open(sys.argv[1]) as store, serve(store, "127.0.0.1:0") as serving:
    print(serving.address, flush=True)
    sys.stdin.readline()
"""
_LINE = "5.3"


def main(count: int, runs: int, body_sizes: tuple[int, ...] = (100, 4096)) -> None:
    session = spark()
    rows = []
    for body_bytes in body_sizes:
        several = max(1000, count * 400 // max(400, body_bytes))
        with filled(several, body_bytes) as path, _served(path) as name_server:
            measures = _measures(session, name_server)
            taken = side_by_side(runs, *measures.values())
        rows += [
            [f"{body_bytes} B", what, *_rates(several, body_bytes, seconds)]
            for what, seconds in zip(measures, taken, strict=True)
        ]
    show(f"Reading from `serve`, medians of {runs} runs", ["body", "reader", "messages", "bodies"], rows)
    if (reason := unavailable()) is not None:
        print(f"no broker to read from: {reason}")
        return
    os.environ["_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=4"  # the harness's JVMs compile little
    with TemporaryDirectory(prefix="mq-bench-") as folder, _broker(Path(folder), count) as (rocketmq, name_server):
        measures = {
            **_measures(session, name_server),
            "DefaultLitePullConsumer": lambda: _lite_pull(rocketmq, name_server, count),
        }
        *_, java = taken = side_by_side(runs, *measures.values())
    rows = [
        [what, *_rates(count, 100, seconds), f"{java / seconds:.2f}"]
        for what, seconds in zip(measures, taken, strict=True)
    ]
    head = ["reader", "messages", "bodies", "of RocketMQ's consumer"]
    show(f"Reading 100 B from a RocketMQ {_LINE} broker, {QUEUES} queues, medians of {runs} runs", head, rows)


def _rates(count: int, body_bytes: int, seconds: float) -> list[str]:
    return [f"{count / seconds:,.0f} /s", f"{count * body_bytes / seconds / 1e6:,.0f} MB/s"]


def _measures(session: SparkSession, name_server: str) -> dict[str, Callable[[], float]]:
    return {
        "Spark, default columns, CRC checked": lambda: _with_spark(session, name_server, DEFAULT, "true"),
        "Spark, queueOffset and body, no CRC": lambda: _with_spark(session, name_server, SLIM, "false"),
        "one Python process, default columns, CRC checked": lambda: _in_one_process(name_server),
    }


def _with_spark(session: SparkSession, name_server: str, schema: str, check_crc: str) -> float:
    """One task for each queue."""
    given = {"nameServer": name_server, "subscribe": TOPIC, "checkCRC": check_crc}
    frame = session.read.format("mq").schema(schema).options(**given).load()
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def _in_one_process(name_server: str) -> float:
    with ClusterAddress.parse(name_server).open() as log:
        bounds = log.bounds(log.topics()[TOPIC])
        begin = time.perf_counter()
        for queue, (first, end) in bounds.items():
            for _ in log.scan(QueueRange(queue, first, end), ReadSpec(DEFAULT_COLUMNS, EVERYTHING)):
                pass
        return time.perf_counter() - begin


@contextmanager
def _served(path: Path) -> Iterator[str]:
    command = [sys.executable, "-c", _SERVER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("\n")


@contextmanager
def _broker(folder: Path, count: int) -> Iterator[tuple[RocketMQ, str]]:
    """With default settings and `count` messages of 100 B. Yields it and its name server's address."""
    rocketmq, ports = RocketMQ(_LINE), free_ports()
    name_server = f"127.0.0.1:{ports['namesrvPort']}"
    with rocketmq.broker(folder / "mq", None, topic=TOPIC, queues=QUEUES, **ports):
        with ClusterAddress.parse(name_server).open_writer() as writer:
            for table in messages(count, 100):
                append = writer.begin()
                append.add(TOPIC, table)
                append.publish()
        yield rocketmq, name_server


def _lite_pull(rocketmq: RocketMQ, name_server: str, count: int) -> float:
    (answer,) = rocketmq.run("LitePuller", name_server, TOPIC, str(count))
    return float(answer["seconds"])
