"""Copy a topic while Python workers, committing processes and drivers are killed at random: every row arrives once.

SINK_KILL_ROUNDS sets the number of killed drivers for each place of staged rows (default: 1, and none for S3),
SINK_KILLS of other killed processes of each kind (2), and SINK_SIGNALS of drivers that get Ctrl-C or SIGTERM (0: each
takes ten seconds).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
from fsspec import filesystem

from store import Message, MessageStore
from tests.end_to_end.test_realtime import needs_pipelined_workers
from tests.hidden import hiding_python, needs_hiding, spark_home
from tests.processes import java, kill, kill_tree, open_files, seen, tree
from tests.s3 import environment
from tests.waiting import QUERY_PATIENCE, until

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("SINK_KILL_ROUNDS", "1"))
KILLS = int(os.environ.get("SINK_KILLS", "2"))
SIGNALS = int(os.environ.get("SINK_SIGNALS", "0"))
SPARK_ENDS_SECONDS = 20.0
KEYS = 7

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "source") as it:
        it.create_topic("orders", 2)
        yield it


@pytest.fixture
def target(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path / "target") as it:
        it.create_topic("copies", 3)
    return tmp_path / "target"


class Staged:
    """The rows of tasks: in the store, with tasks in the driver's JVM."""

    def __init__(self, target: Path) -> None:
        self.files = f"{target}/staging/"  # while a task writes them
        self.writing: dict[str, str] = {}
        self.conf: dict[str, str] = {}
        self.environment = {"PYSPARK_PYTHON": sys.executable}

    def left(self) -> list[str]:
        return os.listdir(self.files)


class StagedInBucket(Staged):
    """The rows of tasks on S3, with executors that do not see the store."""

    def __init__(self, target: Path, folder: Path, bucket: str) -> None:
        uploads = folder / "uploads"
        uploads.mkdir()
        self.files = f"{uploads}/"
        self.writing = {"stagingPath": f"{bucket}/staging"}
        self.conf = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"}
        given = {**environment(os.environ["AWS_ENDPOINT_URL"]), "HIDDEN": str(target), "TMPDIR": str(uploads)}
        self.conf["spark.executor.extraJavaOptions"] = os.environ.get("SPARK_SUBMIT_OPTS", "")
        self.conf |= {f"spark.executorEnv.{name}": value for name, value in given.items()}
        python, home = hiding_python(folder), spark_home(folder)
        self.environment = {"PYSPARK_PYTHON": str(python), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}

    def left(self) -> list[str]:
        found: list[str] = filesystem("s3").find(self.writing["stagingPath"])
        return found


ON_DEMAND = pytest.mark.skipif("SINK_KILL_ROUNDS" not in os.environ, reason="takes a minute: set SINK_KILL_ROUNDS")


@pytest.fixture(params=["store", pytest.param("bucket", marks=[needs_hiding, ON_DEMAND])])
def staged(request: pytest.FixtureRequest, target: Path, tmp_path: Path) -> Staged:
    if request.param == "store":
        return Staged(target)
    return StagedInBucket(target, tmp_path, request.getfixturevalue("bucket"))


class Copy:
    """The program sink_query.py, run repeatedly with one checkpoint."""

    def __init__(self, source: MessageStore, target: Path, checkpoint: Path, staged: Staged | None = None) -> None:
        self.target = target
        self.staged = Staged(target) if staged is None else staged
        places = {"source": str(source.path), "target": str(target), "checkpoint": str(checkpoint)}
        self._given = {**places, "writing": self.staged.writing}

    @contextmanager
    def running(self, *, available_now: bool = False, **options: str) -> Iterator[subprocess.Popen[str]]:
        """Run until the block ends, then kill only the driver, not its children."""
        log4j = f"-Dlog4j2.configurationFile={ROOT / 'pyspark_mq' / 'log4j2.properties'}"
        conf = {"spark.driver.extraJavaOptions": log4j, **self.staged.conf}
        given = {**self._given, "options": options, "conf": conf, "availableNow": available_now}
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sink_query.py")), json.dumps(given)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.staged.environment},
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            threading.Thread(target=_tell, args=(process.stdout,), daemon=True).start()
            try:
                yield process
            finally:
                process.kill()

    def drain(self) -> None:
        with self.running(available_now=True) as process:
            assert process.wait(QUERY_PATIENCE) == 0


def _tell(lines: IO[str]) -> None:
    """Print errors of the queries until the last orphan exits."""
    for line in lines:
        print(line, end="", flush=True)


@contextmanager
def steadily_put(store: MessageStore) -> Iterator[None]:
    """Put a message of each key every 50 ms until the block ends; bodies are "key-number"."""
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.wait(0.05):
            store.put_many([Message("orders", b"%d-%d" % (key, number), sharding_key=str(key)) for key in range(KEYS)])
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def bodies(store: MessageStore, topic: str) -> dict[int, list[bytes]]:
    return {
        queue_id: [
            body.as_py()
            for batch in store.scan(topic, queue_id, *store.offsets(topic, queue_id), columns=("body",))
            for body in batch["body"]
        ]
        for queue_id in range(store.topics()[topic])
    }


def check_copies(source: MessageStore, copy: Copy) -> None:
    with MessageStore.open(copy.target) as store:
        copied, put = bodies(store, "copies"), bodies(source, "orders")
    times = Counter(body for queue in copied.values() for body in queue)
    assert times == Counter(body for queue in put.values() for body in queue)
    assert set(times.values()) == {1}
    places: dict[bytes, tuple[int, list[int]]] = {}
    for queue_id, queue in copied.items():
        for body in queue:
            key, _, number = body.partition(b"-")
            place, numbers = places.setdefault(key, (queue_id, []))
            assert place == queue_id
            numbers.append(int(number))
    assert len(places) == KEYS
    assert all(numbers == sorted(numbers) for _, numbers in places.values())
    assert copy.staged.left() == []


def committing(pid: int, target: Path) -> list[int]:
    return [each for each in tree(pid) if any(f"{target}/commits/" in name for name in open_files(each))]


def staging(pid: int, staged: Staged) -> list[int]:
    """Return the task processes below `pid` that stage rows, or are about to commit them."""
    return [each for each in tree(pid) if any(staged.files in name for name in open_files(each))]


def test_every_row_arrives_once_after_kills(source: MessageStore, target: Path, tmp_path: Path, staged: Staged) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    copy = Copy(source, target, tmp_path / "checkpoint", staged)
    sessions = []
    with steadily_put(source):
        for number in range(ROUNDS):
            with copy.running(maxOffsetsPerTrigger="60", minPartitions="4") as process:
                sessions.append(process.pid)
                looks = lambda: staging(process.pid, staged), lambda: committing(process.pid, target)
                for look in chance.choices(looks, k=KILLS):
                    found = seen(look, QUERY_PATIENCE)
                    time.sleep(chance.uniform(0, 0.02))
                    kill(found)
                # Then kill the driver, at a random moment or within a commit, which continues without it.
                if number % 2 == 0:
                    seen(lambda: committing(process.pid, target), QUERY_PATIENCE)
                time.sleep(chance.uniform(0, 0.02 if number % 2 == 0 else 2))
                kill([java(process.pid)])
    copy.drain()
    for pid in sessions:
        kill_tree(pid)
    check_copies(source, copy)


@pytest.mark.skipif(not SIGNALS, reason="SINK_SIGNALS is not set")
def test_every_row_arrives_once_after_signals(source: MessageStore, target: Path, tmp_path: Path) -> None:
    """Ctrl-C at a terminal and SIGTERM by a supervisor reach all processes of a program."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    copy = Copy(source, target, tmp_path / "checkpoint")
    with steadily_put(source):
        for number in range(SIGNALS):
            with copy.running(maxOffsetsPerTrigger="60", minPartitions="4") as process:
                time.sleep(chance.uniform(0, 2))
                os.killpg(process.pid, signal.SIGTERM if number % 2 else signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):  # Spark's own shutdown may hang
                    process.wait(SPARK_ENDS_SECONDS)
            kill_tree(process.pid)
    copy.drain()
    check_copies(source, copy)


@needs_pipelined_workers
def test_sink_follows_a_real_time_source(source: MessageStore, target: Path, tmp_path: Path) -> None:
    copy = Copy(source, target, tmp_path / "checkpoint")
    with (
        steadily_put(source),
        copy.running(realTime="true", batchDuration="2 seconds", realTimePartitions="2") as process,
    ):

        def some_are_there() -> bool:
            with MessageStore.open(target, read_only=True) as store:
                return sum(map(len, bodies(store, "copies").values())) > 3 * KEYS

        until(some_are_there, every=0.2, patience=QUERY_PATIENCE)
        kill_tree(process.pid)
    copy.drain()
    check_copies(source, copy)
