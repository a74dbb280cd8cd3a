"""Fixtures for all tests: one Spark session for the run, and small stores to read."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.filled import Filled
from tests.s3 import environment, new_bucket, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline, for busy machines. A long run: EXAMPLES=1000
settings.register_profile("any machine", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "40")))
settings.load_profile("any machine")

ROOT = Path(__file__).parent.parent

# Test directories are in memory if possible: on a disk, tests would mostly wait for flushes. Tests kill processes or
# simulate crashed devices, so they need no real disk. PYTEST_DEBUG_TEMPROOT chooses another place.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Spark lives for seconds in a test, so the second JIT compiler costs more time than it saves. The stack is for a
# regular expression that Spark applies to errors of foreachBatch: a long text overflows the default stack, and the
# query ends without a message. Half of Spark's start is loading classes: see spark_classes.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -Xss16m"
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
if CLASSES.exists():  # a JVM that cannot map the archive would print a warning into the tested output
    JAVA_OPTIONS += f' -XX:SharedArchiveFile="{CLASSES}" -Xlog:disable -Xlog:all=error:stderr'
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)

# Some container images forbid bytecode files: each Python that a test starts would compile the packages again, half of
# its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts a run in the background lets it and its children ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, UTC, no UI. Its Python processes find this checkout through PYTHONPATH."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    log4j = f"-Dlog4j2.configurationFile={ROOT / 'pyspark_mq' / 'log4j2.properties'}"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("pyspark-mq tests")
        .config("spark.driver.extraJavaOptions", f"{log4j} -Duser.timezone=UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    """A store with topic "orders": 3 messages in queue 0, 5 in queue 1."""
    it = Filled(tmp_path / "mq", {"orders": 2})
    with it.store:
        it.put("orders", 0, 3)
        it.put("orders", 1, 5)
        yield it


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket as `s3://name`. The environment has its credentials, also for child processes."""
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return new_bucket()
