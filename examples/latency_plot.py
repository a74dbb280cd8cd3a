"""Plot the latency from `put` to a row in a JVM stage, for micro-batches and real-time reads.

pip install 'pyspark-mq[bench]'
python examples/latency_plot.py --out latency.png
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from store import Message, MessageStore

TOPIC = "clock"
QUEUES = 2
MODES = {"micro-batch": {}, "real-time": {"realTime": "true", "batchDuration": "5 seconds"}}
COLOURS = {"micro-batch": "tab:orange", "real-time": "tab:blue"}


def write(path: str, rate: float, seconds: float) -> None:
    """Append at a steady rate. A body is the time in microseconds since 1970, in decimal digits."""
    with MessageStore.open(path) as store:
        begin = time.monotonic()
        for n in range(int(rate * seconds)):
            time.sleep(max(0.0, begin + n / rate - time.monotonic()))
            store.put(Message(TOPIC, b"%d" % (time.time_ns() // 1000), queue_id=n % QUEUES))


def measure(
    spark: SparkSession, folder: Path, options: dict[str, str], rate: float, seconds: float
) -> npt.NDArray[np.int64]:
    """Return (sent, seen) in microseconds since 1970, int64, shape (n, 2), in order of arrival."""
    path = str(folder / "store")
    with MessageStore.open(path) as store:
        store.create_topic(TOPIC, QUEUES)
    messages = spark.readStream.format("mq").schema("body binary").option("subscribe", TOPIC)
    rows = messages.option("startingOffsets", "earliest").options(**options).load(path)
    stamped = rows.selectExpr(
        "cast(cast(body as string) as bigint) sent",
        "unix_micros(cast(reflect('java.time.Instant', 'now') as timestamp)) seen",
    )
    sink = stamped.writeStream.format("parquet").option("path", str(folder / "out"))
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        write(path, 1, 1)  # the first message starts Spark's processes
        wait_for(query, 1)
        writer = [sys.executable, __file__, "--write", path, "--rate", str(rate), "--seconds", str(seconds)]
        subprocess.run(writer, check=True)
        wait_for(query, 1 + int(rate * seconds))
    finally:
        query.stop()
    table = spark.read.parquet(str(folder / "out")).orderBy("seen").toArrow()
    return np.stack([table["sent"].to_numpy(), table["seen"].to_numpy()], axis=1)[1:]


def wait_for(query: StreamingQuery, rows: int) -> None:
    """Wait until finished batches have read `rows`."""
    while sum(progress["numInputRows"] for progress in query.recentProgress) < rows:
        if not query.isActive:
            query.awaitTermination()  # raises the query's error
        time.sleep(0.1)


def plot(measured: dict[str, npt.NDArray[np.int64]], out: Path) -> None:
    figure, (over_time, distribution) = plt.subplots(2, 1, figsize=(9, 7), layout="constrained")
    for mode, times in measured.items():
        sent, latency = times[:, 0], (times[:, 1] - times[:, 0]) / 1000
        p50, p99 = np.percentile(latency, [50, 99])
        label = f"{mode}: p50 {p50:,.1f} ms, p99 {p99:,.0f} ms"
        over_time.plot((sent - sent.min()) / 1e6, latency, ".", markersize=2, color=COLOURS[mode], label=label)
        share = np.arange(1, len(latency) + 1) / len(latency)
        distribution.plot(np.sort(latency), 100 * share, color=COLOURS[mode], label=mode)
    over_time.set(xlabel="put at, s", ylabel="latency, ms", yscale="log", title="From put to a row in a JVM stage")
    distribution.set(xlabel="latency, ms", ylabel="% of messages within", xscale="log")
    over_time.legend(loc="upper right")
    for axes in (over_time, distribution):
        axes.grid(alpha=0.3)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("latency.png"))
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each of the two modes")
    parser.add_argument("--write", metavar="STORE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write, arguments.rate, arguments.seconds)
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # use this Python for Spark's workers
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.python.udf.pipelined.enabled", "true")
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")  # for `wait_for`
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    measured = {}
    for mode, options in MODES.items():
        with TemporaryDirectory(prefix="mq-latency-") as folder:
            measured[mode] = measure(spark, Path(folder), options, arguments.rate, arguments.seconds)
        p50, p99 = np.percentile(np.diff(measured[mode], axis=1), [50, 99]) / 1000
        print(f"{mode}: {len(measured[mode]):,} messages, p50 {p50:,.1f} ms, p99 {p99:,.1f} ms")
    spark.stop()
    plot(measured, arguments.out)
    print(f"See {arguments.out}")


if __name__ == "__main__":
    main()
