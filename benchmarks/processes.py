"""How much memory do the Python processes of a query take, by backlog, and how much CPU while idle?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from pyspark.sql import SparkSession

from benchmarks.bench import QUEUES, TOPIC, filled, show, spark
from benchmarks.reading import DEFAULT, Frames, batch_seconds
from store import MessageStore

_SAMPLE_SECONDS = 0.02
_IDLE_SECONDS = 20


def main(small_bytes: int, large_bytes: int, idle_seconds: float = _IDLE_SECONDS) -> None:
    session = spark()
    rows = []
    for backlog in (small_bytes, large_bytes):
        with filled(backlog // 1000, 1000) as path:
            frames = Frames(session, "mq", {"path": str(path), "subscribe": TOPIC}, DEFAULT)
            peak = _peak_anonymous(partial(batch_seconds, frames))
        rows.append([f"{backlog / 1e6:,.0f} MB", f"{peak / 1e6:,.0f} MB"])
    show("Memory of a reading worker", ["backlog", "largest anonymous memory of one Python process"], rows)
    _idle(session, idle_seconds)


def _peak_anonymous(work: Callable[[], object]) -> int:
    """Return the largest RssAnon in bytes of any Python child process."""
    peak, done = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(_SAMPLE_SECONDS):
            peak = max([peak, *(_status(process, "RssAnon") * 1024 for process in _pythons())])

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        done.set()
        sampler.join()
    return peak


def _idle(session: SparkSession, seconds: float) -> None:
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        path = Path(folder) / "store"
        with MessageStore.open(path) as store:
            store.create_topic(TOPIC, QUEUES)
        with _running_query(session, path, folder):
            time.sleep(min(10.0, 2 * seconds))  # skip the start-up
            before, begin = _usage(), time.monotonic()
            time.sleep(seconds)
            after, taken = _usage(), time.monotonic() - begin
    cpu = sum(after[pid][0] - before[pid][0] for pid in after.keys() & before.keys()) / taken
    wakes = sum(after[pid][1] - before[pid][1] for pid in after.keys() & before.keys()) / taken
    head = ["CPU of one core", "wake-ups a second"]
    show(f"An idle streaming query over {seconds:.0f} s, its Python processes", head, [[f"{cpu:.2%}", f"{wakes:.1f}"]])


@contextmanager
def _running_query(session: SparkSession, path: Path, folder: str) -> Iterator[None]:
    frame = session.readStream.format("mq").option("path", str(path)).option("subscribe", TOPIC).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint").start()
    try:
        yield
    finally:
        query.stop()


def _usage() -> dict[int, tuple[float, int]]:
    """Return CPU seconds and voluntary context switches of each Python process, by pid."""
    usage = {}
    for process in _pythons():
        try:
            times = process.cpu_times()
            threads = Path(f"/proc/{process.pid}/task").iterdir()
            switches = sum(_field(thread / "status", "voluntary_ctxt_switches") for thread in threads)
            usage[process.pid] = (times.user + times.system, switches)
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue
    return usage


def _pythons() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "python" in child.name()]


def _status(process: psutil.Process, name: str) -> int:
    try:
        return _field(Path(f"/proc/{process.pid}/status"), name)
    except (FileNotFoundError, ProcessLookupError):
        return 0  # the process ended concurrently


def _field(status: Path, name: str) -> int:
    lines = (line.split() for line in status.read_text().splitlines())
    return next((int(words[1]) for words in lines if words[0] == f"{name}:"), 0)
