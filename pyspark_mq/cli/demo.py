"""`pyspark-mq demo`: append messages in one process and stream them with Spark in another."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib.resources import files
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa
from tqdm import tqdm

from pyspark_mq.errors import DemoFailed
from pyspark_mq.flights import CARRIER_TOTALS, as_messages, load_flights, totals_by_carrier
from pyspark_mq.requirements import require_java, require_pyspark
from store import MessageStore, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


TOPIC = "flights"
QUEUES = 4
ROWS_PER_APPEND = 2_000
ROWS_PER_TRIGGER = 50_000
STALLED_AFTER_SECONDS = 180


@click.command()
@click.option(
    "--store",
    type=click.Path(file_okay=False),
    help="The directory of the store, which is kept (default: a temporary one).",
)
@click.option(
    "--rate", type=click.IntRange(1), default=25_000, show_default=True, help="Messages to append per second."
)
def demo(store: str | None, rate: int) -> None:
    """Stream the flights that left New York in 2013 through Spark.

    One process appends 336,776 messages while Spark reads them. At the end, their totals are compared with the source.
    """
    try:
        require_pyspark()
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if run_demo(store, rate) else 1)


def run_demo(directory: str | None, rate: int) -> bool:
    """Run the demo. Return whether the query's totals equal the totals of the data set.

    directory: of the store, which then stays; None for a temporary store. Raises `DemoFailed`, `StoreError`.
    """
    require_java()
    flights = load_flights()
    with tempfile.TemporaryDirectory(prefix="pyspark-mq-") as scratch:
        path = directory or os.path.join(scratch, "store")
        with MessageStore.open(path) as store:
            if TOPIC in store.topics():
                raise DemoFailed(f'{path}: topic "{TOPIC}" already exists there. Name a directory without that topic')
            store.create_topic(TOPIC, queues=QUEUES)
        print(f"The store is {path}. Watch it in a browser: pyspark-mq console {path}\nStarting Spark ...", flush=True)
        with quiet_spark(scratch) as spark, spark_errors_in_one_line():
            query = start_query(spark, path, os.path.join(scratch, "checkpoint"))
            read_early = stream_while_appending(query, path, flights.num_rows, rate)
            query.stop()
            totals = spark.table(TOPIC).orderBy("carrier").toArrow()
    return report(totals, totals_by_carrier(flights), read_early)


@contextlib.contextmanager
def spark_errors_in_one_line() -> Iterator[None]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise failed_in_spark(str(error)) from error
    except Py4JJavaError as error:  # an error of Java for which PySpark has no exception
        raise failed_in_spark(error.java_exception.toString()) from error


def failed_in_spark(error: str) -> DemoFailed:
    advice = ""
    if "failed to connect back" in error:
        advice = (
            ". This machine was too slow: Spark waits ten seconds for a Python process to start. Run the demo again"
        )
    return DemoFailed(f"Spark failed: {error.splitlines()[0].removesuffix('.')}{advice}")


def append_flights(path: str, rate: int, reading: Event) -> None:
    """Append all flights, `rate` a second.

    After the first append, wait until the query is `reading`, because Spark's first batch takes seconds.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    messages = as_messages(load_flights())
    try:
        with MessageStore.open(path, create=False) as store:
            store.append_table(TOPIC, messages.slice(0, ROWS_PER_APPEND))
            reading.wait()
            began = time.monotonic()
            for start in range(ROWS_PER_APPEND, messages.num_rows, ROWS_PER_APPEND):
                time.sleep(max(0.0, began + start / rate - time.monotonic()))
                store.append_table(TOPIC, messages.slice(start, ROWS_PER_APPEND))
    except StoreError as error:
        sys.exit(f"Appending failed: {error}")


@contextlib.contextmanager
def quiet_spark(scratch: str) -> Iterator[SparkSession]:
    """Start a Spark session that logs only errors, to `scratch`/spark.log.

    The JVM's standard error goes to this file, too, because a log configuration does not silence all of it.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    logging.disable(logging.ERROR)  # py4j logs a stack trace for each call that Ctrl-C interrupts
    # Workers run this Python, not the first "python3" on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log = Path(scratch, "spark.log")
    builder = (
        SparkSession.builder.master("local[*]")
        .appName("pyspark-mq demo")
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dlog4j2.configurationFile={files('pyspark_mq') / 'log4j2.properties'}",
        )
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(QUEUES))
        .config("spark.sql.warehouse.dir", os.path.join(scratch, "warehouse"))
    )
    try:
        with standard_error_to(log):
            spark = builder.getOrCreate()
    except RuntimeError as error:
        raise DemoFailed(f"Spark did not start: {error}\n{log.read_text()}") from error
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def standard_error_to(log: Path) -> Iterator[None]:
    """Redirect standard error to a file in the block. Processes that the block starts keep it afterwards."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def start_query(spark: SparkSession, path: str, checkpoint: str) -> StreamingQuery:
    from pyspark.sql import functions as F

    messages = (
        spark.readStream.format("mq")
        .option("path", path)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "demo")
        .option("maxOffsetsPerTrigger", ROWS_PER_TRIGGER)
        .load()
    )
    flight = F.from_json(F.col("body").cast("string"), "carrier string, arr_delay int")
    totals = (
        messages.select(flight.alias("flight"))
        .groupBy("flight.carrier")
        .agg(F.count("*"), F.count("flight.arr_delay"), F.sum("flight.arr_delay"))
        .toDF(*CARRIER_TOTALS)
    )
    sink = totals.writeStream.format("memory").queryName(TOPIC).outputMode("complete")
    return sink.option("checkpointLocation", checkpoint).start()


def stream_while_appending(query: StreamingQuery, path: str, total: int, rate: int) -> int:
    """Append the flights in another process until the query has read all.

    Return how many messages the query had read when the last was appended.
    """
    processes = multiprocessing.get_context("spawn")
    reading = processes.Event()
    appender = processes.Process(target=append_flights, args=(path, rate, reading), daemon=True)
    appender.start()
    with (
        MessageStore.open(path, read_only=True) as store,
        progress_bar(total, "appended", 0) as appended_bar,
        progress_bar(total, "streamed", 1) as streamed_bar,
    ):
        appended = streamed = read_early = 0
        progressed = time.monotonic()
        while streamed < total:
            query.awaitTermination(0.1)  # type: ignore[arg-type]  # seconds, a fraction too; raises what failed the query
            before = appended, streamed
            streamed = messages_read(query)
            appended = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))
            appended_bar.update(appended - before[0])
            streamed_bar.update(streamed - before[1])
            if streamed:
                reading.set()
            if appended < total:
                read_early = streamed
            progressed = time.monotonic() if (appended, streamed) != before else progressed
            check_running(appender, progressed)
    appender.join()
    return read_early


def progress_bar(total: int, name: str, position: int) -> tqdm[None]:
    seldom = 0.1 if sys.stderr.isatty() else 2.0
    return tqdm(total=total, desc=name, unit=" messages", unit_scale=True, position=position, mininterval=seldom)


def messages_read(query: StreamingQuery) -> int:
    """Return the number of messages in finished batches: the sum of the next offsets."""
    progress = query.lastProgress
    if progress is None or not progress.sources[0].endOffset:
        return 0
    return sum(json.loads(progress.sources[0].endOffset).get(TOPIC, {}).values())


def check_running(appender: BaseProcess, progressed: float) -> None:
    if appender.exitcode:
        raise DemoFailed(
            f"The appending process stopped with exit code {appender.exitcode}. Its error is printed above"
        )
    if time.monotonic() - progressed > STALLED_AFTER_SECONDS:
        raise DemoFailed(
            f"The demo stopped: no message was appended or read for {STALLED_AFTER_SECONDS} s. This machine may be "
            "too busy: run the demo again when it is idle"
        )


def report(streamed: pa.Table, expected: pa.Table, read_early: int) -> bool:
    print("carrier  flights   landed  arrival delay, minutes   mean")
    for carrier, flights, landed, delay in zip(*(column.to_pylist() for column in streamed.columns), strict=True):
        print(f"{carrier:7} {flights:8,} {landed:8,} {delay:23,} {delay / landed:6.1f}")
    rows_in, rows_out = (sum(table["flights"].to_pylist()) for table in (expected, streamed))
    equal: bool = streamed.to_pylist() == expected.to_pylist()
    print(f"{read_early:,} were read while the other process was still appending.")
    print(f"{rows_in:,} in, {rows_out:,} out, totals {'equal' if equal else 'DIFFER'}")
    if not equal:
        for wanted in expected.to_pylist():
            if wanted not in streamed.to_pylist():
                print(f"expected {wanted}", file=sys.stderr)
    return equal
