"""Real-time queries in separate processes: rows arrive before the batch ends, and each message once despite kills."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from store import Message, MessageStore
from store.remoting.serving import serve
from tests.end_to_end.realtime_query import writer
from tests.processes import java, kill, kill_tree, open_files, seen, tree
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
QUEUES = 2

needs_pipelined_workers = pytest.mark.skipif(
    tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 3), reason="realTime needs PySpark 4.3, and says so"
)
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    needs_pipelined_workers,
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", QUEUES)
        yield it


class Program:
    """realtime_query.py: a driver with its own Spark session for successive queries."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - one process after the other has it
        self._begin()

    def _begin(self) -> None:
        log4j = f"-Dlog4j2.configurationFile={ROOT / 'pyspark_mq' / 'log4j2.properties'}"
        conf = {"spark.driver.extraJavaOptions": log4j}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("realtime_query.py")), json.dumps(conf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
        self.pid = self._process.pid

    def start(self, query: dict[str, Any]) -> None:
        """Start in a new session if the last one ended, so that a failed test can be repeated."""
        if self._process.poll() is not None:
            self._begin()
        assert self._ask(json.dumps(query)) == "started\n"

    def stop(self) -> float:
        return float(self._ask("stop"))

    def kill(self) -> None:
        kill_tree(self.pid)
        self._process.communicate()

    def _ask(self, line: str) -> str:
        """Return the answer. If the program exits instead, fail with its last output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self.kill()
            self._said.seek(0)
            pytest.fail(self._said.read())
        return answer


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """Shared by the tests that kill no driver."""
    it = Program()
    yield it
    it.kill()


together = pytest.mark.xdist_group("one program for real-time queries")


class Query:
    """The query of realtime_query.py over one store, checkpoint and sink."""

    def __init__(self, directory: Path, sink: str = "parquet", select: tuple[str, ...] = ("queueId", "queueOffset")):
        self.out, self.checkpoint = directory / "out", directory / "checkpoint"
        self._given = {
            "path": str(directory / "mq"),
            "out": str(self.out),
            "checkpoint": str(self.checkpoint),
            "sink": sink,
            "select": select,
        }
        self.seconds_to_stop = 0.0

    @contextmanager
    def running(self, **options: str) -> Iterator[int]:
        """Run in real time in its own process, killed at the end of the block. Yields the process id."""
        program = Program()
        try:
            program.start(self._in_real_time("", options))
            yield program.pid
        finally:
            program.kill()

    @contextmanager
    def running_in(self, program: Program, failing: Path | None = None, **options: str) -> Iterator[None]:
        """Run in real time until the block ends. failing: see realtime_query.failing_once."""
        program.start(self._in_real_time(str(failing or ""), options))
        try:
            yield
        finally:
            self.seconds_to_stop = program.stop()

    def _in_real_time(self, failing: str, options: dict[str, str]) -> dict[str, Any]:
        given = {"realTime": "true", "realTimePartitions": "2", **options}
        return {**self._given, "options": given, "failing": failing}

    def copy(self, directory: Path) -> Query:
        it = Query(directory)
        for ours, theirs in ((self.out, it.out), (self.checkpoint, it.checkpoint)):
            shutil.copytree(ours, theirs)
        it._given["path"] = self._given["path"]
        return it

    def drain(self, spark: SparkSession) -> None:
        given = {**self._given, "options": {}, "failing": ""}
        assert writer(spark, given).trigger(availableNow=True).start().awaitTermination(PATIENCE)

    def committed(self) -> int:
        folder = self.checkpoint / "commits"
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0

    def logged(self) -> int:
        folder = self.checkpoint / "offsets"
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0

    def rows(self) -> Counter[tuple[int, int]]:
        files: dict[str, bool] = {}
        for manifest in sorted((self.out / "_spark_metadata").glob("[0-9]*")):
            for line in manifest.read_text().splitlines()[1:]:
                entry = json.loads(line)
                files[entry["path"].removeprefix("file://")] = entry["action"] == "add"
        tables = [pq.read_table(path) for path, there in files.items() if there]
        return Counter(
            pair for t in tables for pair in zip(t["queueId"].to_pylist(), t["queueOffset"].to_pylist(), strict=True)
        )


def put(store: MessageStore, count: int, body: bytes = b"x") -> None:
    store.put_many([Message("orders", body, queue_id=n % QUEUES) for n in range(count)])


@contextmanager
def steadily_put(store: MessageStore) -> Iterator[None]:
    """Put two messages every 2 ms until the block ends."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.002):
            put(store, QUEUES)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def everything(store: MessageStore) -> Counter[tuple[int, int]]:
    return Counter((q, offset) for q in range(QUEUES) for offset in range(store.max_offset("orders", q)))


def holders(pid: int) -> list[int]:
    """Return the processes below `pid` that wait for the store: they have an inotify instance."""
    return [each for each in tree(pid) if any("inotify" in target for target in open_files(each))]


def records(store: MessageStore) -> set[str]:
    return {path.name for path in (Path(store.path) / "ledger").glob("*/*.json") if not path.name.startswith(".")}


@together
def test_rows_arrive_before_the_batch_ends_and_stopping_is_quick(
    program: Program, store: MessageStore, tmp_path: Path
) -> None:
    query = Query(tmp_path, "text", ("cast(body as string)",))
    with query.running_in(program, batchDuration="1h"):
        until(lambda: len(holders(program.pid)) == 2)
        put(store, QUEUES, b"arrived " * (1 << 15))

        def written() -> bool:
            return any(path.stat().st_size > 10_000 for path in query.out.glob("part-*.txt"))

        until(written)
        assert query.committed() == 0
    assert query.seconds_to_stop < PATIENCE
    until(lambda: not holders(program.pid))


@together
def test_real_time_query_reads_a_cluster(program: Program, store: MessageStore, tmp_path: Path) -> None:
    query = Query(tmp_path)
    put(store, 10)
    ledger = str(tmp_path / "ledger")
    with serve(store, "127.0.0.1:0") as serving:
        options = {"nameServer": serving.address, "ledgerPath": ledger, "batchDuration": "1 second"}
        with query.running_in(program, **options):
            until(lambda: query.rows().total() >= 10)
            put(store, 10)
            until(lambda: query.rows().total() >= 20)
    assert query.rows() == everything(store)


@together
def test_killed_worker_is_replaced_without_repeated_rows(
    program: Program, spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    query = Query(tmp_path)
    with steadily_put(store), query.running_in(program, batchDuration="4s"):
        until(lambda: len(holders(program.pid)) == 2)
        kill(seen(lambda: holders(program.pid))[:1])
        until(lambda: query.committed() >= 2)
    query.drain(spark)
    assert query.rows() == everything(store)


@together
def test_retried_task_reads_its_recorded_input(
    program: Program, spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    query, marks = Query(tmp_path), tmp_path / "marks"
    marks.mkdir()
    with steadily_put(store), query.running_in(program, marks, batchDuration="1s"):
        until(lambda: query.committed() >= 2)
    seen = {tuple(map(int, mark.name.split("-"))) for mark in marks.iterdir()}
    assert {(batch, task, attempt) for batch in (0, 1) for task in range(QUEUES) for attempt in (0, 1)} <= seen
    query.drain(spark)
    assert query.rows() == everything(store)


@together
def test_copied_checkpoint_continues_beside_the_original(
    program: Program, spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    query = Query(tmp_path)
    with steadily_put(store):
        with query.running_in(program, batchDuration="1s"):
            until(lambda: query.committed() >= 2)
        copy = query.copy(tmp_path / "copy")
        for each in (copy, query):
            before = each.committed()
            with each.running_in(program, batchDuration="1s"):
                until(lambda each=each, before=before: each.committed() >= before + 2)
    for each in (query, copy):
        each.drain(spark)
        assert each.rows() == everything(store)


def test_killed_driver_loses_and_repeats_nothing(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    query = Query(tmp_path)
    with steadily_put(store):
        with query.running(batchDuration="1h") as driver:  # killed before any task recorded its end
            until(lambda: query.logged() == 1 and len(holders(driver)) == QUEUES)
            read = everything(store)
            until(lambda: everything(store) > read)
            kill([java(driver)])
            until(lambda: not holders(driver))
        assert records(store) == set()
        assert (query.logged(), query.committed()) == (1, 0)
        with query.running(batchDuration="2s") as driver:  # in the middle of a held batch
            until(lambda: query.committed() >= 2 and len(holders(driver)) == QUEUES)
            kill([java(driver)])
            until(lambda: not holders(driver))
        begun = query.committed()
        with query.running(batchDuration="2s") as driver:  # between a task's record and the commit
            until(lambda: query.committed() > begun)
            before = records(store)
            until(lambda: bool(records(store) - before))
            committed = query.committed()
            kill_tree(driver)
            assert query.committed() == committed
    query.drain(spark)
    assert query.rows() == everything(store)
