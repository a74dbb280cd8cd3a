"""How long does a message take from `put` to a reader: held pulls, real-time queries, micro-batch queries?

Real-time queries need settings from Spark's start, so this runs on its own: `python -m benchmarks.latency [--small]`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import click
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.bench import QUEUES, TOPIC, filled, show
from benchmarks.processes import _usage
from benchmarks.stamping_sink import StampingSink
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import stream_reader
from store import Message, MessageStore, TagFilter
from store.broker.hold import HeldRequest, PullRequestHoldService, Wake

CONF = Path(__file__).parents[1] / "conf" / "spark-realtime.conf"
Floats = npt.NDArray[np.float64]


# with default settings and with those suggested in conf/spark-realtime.conf
STAGES = ("mapInArrow", "a sink in Python", "foreachBatch that writes from the JVM")
HANDED_ON: tuple[dict[str, str], ...] = (
    {},
    {"spark.sql.execution.arrow.maxRecordsPerBatch": "1", "spark.buffer.size": "256"},
)


@click.command()
@click.option("--small", is_flag=True, help="See that everything runs; the numbers mean nothing.")
@click.option("--stages", type=int, hidden=True, help="Measure only STAGES, with HANDED_ON[n]: a Spark of its own.")
def main(small: bool, stages: int | None) -> None:
    seconds, batch_seconds = (3, 1) if small else (20, 5)
    if stages is not None:
        session = realtime_session(HANDED_ON[stages])
        session.dataSource.register(StampingSink)
        measured = [percentiles(measure(session, 100, seconds, batch_seconds, stage=stage)[0]) for stage in STAGES]
        print(json.dumps(measured))
        return
    pulls(100 if small else 3000)
    thousand(1000, 10 if small else 100)
    driver_hold(5 if small else 100)
    session = realtime_session()
    queries(session, (100,) if small else (100, 1_000, 10_000), seconds, batch_seconds)
    backlog(session, 20_000 if small else 6_000_000, 1 if small else 3)
    idle(session, seconds)
    session.stop()
    python_stages(small)


def percentiles(milliseconds: Floats) -> list[str]:
    return [f"{value:,.2f}" for value in np.percentile(milliseconds, [50, 90, 99])] if len(milliseconds) else ["-"] * 3


# --- plain Python --------------------------------------------------------------------------------------------


def pulls(count: int) -> None:
    """Another process puts at 1,000/s. A held request gets all that arrived together."""
    with store_with(queues=QUEUES) as path, MessageStore.open(path, read_only=True) as store:
        writer = start_writer(path, 1000, count / 1000)
        latencies: list[float] = []
        with PullRequestHoldService(store) as hold:
            offset, woken = 0, SimpleQueue[Wake]()
            while writer.poll() is None or offset < store.max_offset(TOPIC, 0):
                hold.hold(TOPIC, 0, offset, 1.0, lambda held, why: woken.put(why))
                woken.get()
                got = store.get_message("bench", TOPIC, 0, offset)
                now = time.time_ns() // 1000
                latencies += [(now - int(message.body)) / 1000 for message in got.messages]
                offset = got.next_begin_offset
    show("put to a held request in another process, ms", ["p50", "p90", "p99"], [percentiles(np.array(latencies))])


def thousand(requests: int, arrivals: int) -> None:
    """Many filtered requests, on few queues or on one queue each. Each arrival matches one request.

    Every queue has a message already, so the creation of its first file is not measured.
    """
    rows = []
    for title, queues in (("4 queues", 4), (f"{requests} queues", requests)):
        with store_with(queues) as path, MessageStore.open(path) as store, PullRequestHoldService(store) as service:
            woken: SimpleQueue[float] = SimpleQueue()

            def wake(held: HeldRequest, why: Wake) -> None:
                woken.put(time.perf_counter())  # noqa: B023

            store.put_many([Message(TOPIC, b"", queue_id=queue_id) for queue_id in range(queues)])
            tags = [f"t{number // queues}" for number in range(requests)]
            for number in range(requests):
                service.hold(TOPIC, number % queues, 1, 600, wake, TagFilter.parse(tags[number]))
            puts, delays = [], []
            for number in range(0, requests, requests // arrivals):
                time.sleep(0.02)
                message = Message(TOPIC, b"", tags=tags[number], queue_id=number % queues)
                begin = time.perf_counter()
                store.put(message)
                puts.append((time.perf_counter() - begin) * 1000)
                delays.append((woken.get() - begin) * 1000)
            others = requests - len(delays) - service.held
        rows.append([title, *percentiles(np.array(delays)), f"{np.median(puts):.2f}", str(others)])
    show(f"{requests} held requests, put to the wake of the matching one, ms",
         ["over", "p50", "p90", "p99", "put alone, p50", "others woken"], rows)  # fmt: skip


def driver_hold(arrivals: int) -> None:
    """An idle micro-batch query held in the driver, from the publish to the return of `latestOffset`."""
    with store_with(QUEUES) as path, MessageStore.open(path) as store:
        options = {"path": str(path), "subscribe": TOPIC, "holdTimeoutMs": "10000"}
        reader = stream_reader(SourceOptions.parse(options), default_schema(False))
        offset, delays = reader.initialOffset(), []
        for _ in range(arrivals):
            published = SimpleQueue[float]()

            def put() -> None:
                store.put(Message(TOPIC, b""))
                published.put(time.perf_counter())  # noqa: B023

            timer = threading.Timer(0.02, put)
            timer.start()
            offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
            returned = time.perf_counter()
            delays.append((returned - published.get()) * 1000)
        reader.stop()
    title = "micro-batch, idle query: publish to the batch's end offset, ms"
    show(title, ["p50", "p90", "p99"], [percentiles(np.array(delays))])


# --- queries -------------------------------------------------------------------------------------------------


def queries(session: SparkSession, rates: tuple[int, ...], seconds: float, batch_seconds: float) -> None:
    """From `put` to the sink's stage, by the JVM's clock for each row, after the first batch."""
    rows = []
    for rate in rates:
        for mode in ("micro-batch", "real-time"):
            latency, inside, holes = measure(session, rate, seconds, batch_seconds, real_time=mode == "real-time")
            hole = f"{np.median(holes):,.0f} / {holes.max():,.0f}" if mode == "real-time" and len(holes) else "-"
            within = percentiles(inside) if mode == "real-time" else ["-"] * 3
            rows.append([f"{rate:,}/s", mode, *percentiles(latency), *within, hole])
    head = ["rate", "mode", "all p50", "p90", "p99", "inside a batch p50", "p90", "p99", "hole median / max"]
    show("put to a row in a JVM stage, ms", head, rows)


def measure(
    session: SparkSession,
    rate: int,
    seconds: float,
    batch_seconds: float,
    *,
    real_time: bool = True,
    stage: str | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Return, in ms, latencies of all rows, of rows put while a batch was reading, and the gaps between batches."""
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        store, out = Path(folder) / "store", Path(folder) / "out"
        with MessageStore.open(store) as created:
            created.create_topic(TOPIC, QUEUES)
        rows = source(session, store, batch_seconds if real_time else None)
        query = stage_writer(rows, out, stage).option("checkpointLocation", f"{folder}/checkpoint").start()
        feed(query, store, rate, seconds, batch_seconds)
        return stamped(out)


def stamped(out: Path) -> tuple[Floats, Floats, Floats]:
    batches = [stamps for files in sink_files(out) if len(stamps := pq.read_table(files))][1:]
    if not batches:
        return np.empty(0), np.empty(0), np.empty(0)
    pairs = [[batch[name].to_numpy().astype(np.float64) for name in ("sent", "seen")] for batch in batches]
    everything = np.concatenate([seen - sent for sent, seen in pairs]) / 1000
    inside = np.concatenate([(seen - sent)[sent >= seen.min()] for sent, seen in pairs]) / 1000
    holes = [(after[1].min() - before[1].max()) / 1000 for before, after in itertools.pairwise(pairs)]
    return everything, inside, np.array(holes)


def source(session: SparkSession, store: Path, batch_seconds: float | None) -> DataFrame:
    """Return a stream of `sent` (µs), in real-time batches of `batch_seconds`, or in micro-batches if None."""
    options = {"subscribe": TOPIC, "startingOffsets": "earliest"}
    if batch_seconds is not None:
        options |= {"realTime": "true", "batchDuration": f"{batch_seconds}s"}
    rows = session.readStream.format("mq").schema("body binary").options(**options).load(str(store))
    return rows.selectExpr("cast(cast(body as string) as bigint) sent")


def stage_writer(rows: DataFrame, out: Path, stage: str | None) -> DataStreamWriter:
    """Write (sent, seen) to Parquet files, stamped in the JVM or by a Python sink."""
    if stage == "a sink in Python":
        return rows.writeStream.format("stamping").option("path", str(out))
    if stage == "mapInArrow":
        rows = rows.mapInArrow(lambda batches: batches, rows.schema)
    both = rows.selectExpr("sent", "unix_micros(cast(reflect('java.time.Instant', 'now') as timestamp)) seen")
    if stage is not None and stage.startswith("foreachBatch"):
        return both.writeStream.foreachBatch(lambda frame, batch: frame.write.parquet(f"{out}/{batch}"))
    return both.writeStream.format("parquet").option("path", str(out))


def feed(query: StreamingQuery, store: Path, rate: float, seconds: float, batch_seconds: float) -> None:
    start_writer(store, 1, 0.1).wait()
    while not any(progress["numInputRows"] for progress in query.recentProgress) and query.isActive:
        time.sleep(0.1)  # the first batch starts all processes
    start_writer(store, rate, seconds).wait()
    time.sleep(batch_seconds + 2)
    query.stop()


def sink_files(out: Path) -> Iterator[list[str]]:
    """Yield the files of each non-empty batch, in order. The Parquet sink lists them in its manifests."""
    manifests = out / "_spark_metadata"
    numbers = sorted(
        int(path.name) for path in (manifests if manifests.exists() else out).iterdir() if path.name.isdigit()
    )
    for number in numbers:
        if manifests.exists():
            lines = (manifests / str(number)).read_text().splitlines()[1:]
            files = [json.loads(line)["path"].removeprefix("file://") for line in lines]
        else:
            files = [str(path) for path in (out / str(number)).glob("*.parquet")]
        if files:
            yield files


def python_stages(small: bool) -> None:
    """As `queries`, real-time at 100/s, with a Python stage between the source and the stamps."""
    rows = []
    for number, settings in enumerate(HANDED_ON):
        program = [sys.executable, "-m", "benchmarks.latency", "--stages", str(number), *(["--small"] if small else [])]
        answer = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout
        names = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in settings.items()) or "-"
        measured = json.loads(answer.splitlines()[-1])
        rows += [[stage, names, *numbers] for stage, numbers in zip(STAGES, measured, strict=True)]
    title = "put to a row behind a stage in Python, real-time at 100/s, all rows, ms"
    show(title, ["", "settings", "p50", "p90", "p99"], rows)


def backlog(session: SparkSession, count: int, batch_seconds: float) -> None:
    """Rows per second over one backlog: AvailableNow, and real-time batches."""
    with filled(count, 100) as path:
        rates = {}
        for mode in ("warm-up", "micro-batch", "real-time"):
            options = {"path": str(path), "subscribe": TOPIC, "startingOffsets": "earliest"}
            if mode == "real-time":
                options |= {"realTime": "true", "batchDuration": f"{batch_seconds}s"}
            with TemporaryDirectory() as checkpoint:
                writer = session.readStream.format("mq").options(**options).load().writeStream.format("noop")
                writer = writer.option("checkpointLocation", checkpoint)
                query = (writer if mode == "real-time" else writer.trigger(availableNow=True)).start()
                while query.isActive and not any(p["numInputRows"] for p in query.recentProgress):
                    time.sleep(0.05)
                query.stop()
                first = next(p for p in query.recentProgress if p["numInputRows"])
                # It then waited, so its rate is a lower bound.
                rates[mode] = first["numInputRows"] / (first["durationMs"]["addBatch"] / 1000)
    micro, real_time = rates["micro-batch"], rates["real-time"]
    head = ["micro-batch rows/s", "real-time rows/s", "ratio"]
    show("full backlog, 100 B bodies", head, [[f"{micro:,.0f}", f"{real_time:,.0f}", f"{real_time / micro:.2f}"]])


def idle(session: SparkSession, seconds: float) -> None:
    """A real-time query that holds 16 idle queues."""
    with store_with(queues=16) as path, TemporaryDirectory() as checkpoint:
        frame = session.readStream.format("mq").option("subscribe", TOPIC).option("realTime", "true").load(str(path))
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        time.sleep(min(10.0, 2 * seconds))  # skip the start-up
        before, begin = _usage(), time.monotonic()
        time.sleep(seconds)
        after, taken = _usage(), time.monotonic() - begin
        query.stop()
    cpu = sum(after[pid][0] - before[pid][0] for pid in after.keys() & before.keys()) / taken
    wakes = sum(after[pid][1] - before[pid][1] for pid in after.keys() & before.keys()) / taken
    show("16 held queues, idle", ["CPU of one core", "wake-ups a second"], [[f"{cpu:.2%}", f"{wakes:.1f}"]])


# --- shared ----------------------------------------------------------------------------------------------------


@contextmanager
def store_with(queues: int) -> Iterator[Path]:
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        path = Path(folder) / "store"
        with MessageStore.open(path) as store:
            store.create_topic(TOPIC, queues)
        yield path


def start_writer(path: Path, rate: float, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.latency_writer", str(path), str(rate), str(seconds)])


def realtime_session(more: dict[str, str] | None = None) -> SparkSession:
    """Start a local session with the settings of conf/spark-realtime.conf, and `more`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("pyspark-mq latency").config("spark.ui.enabled", "false")
    for line in CONF.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, value = line.split(maxsplit=1)
            builder = builder.config(name, value.replace("conf/log4j2", f"file:{CONF.parent}/log4j2"))
    for name, value in (more or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
