"""What tests share: one Spark session for the run, and small stores to read."""

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

# A busy machine takes its time. A long run: EXAMPLES=1000
settings.register_profile("any machine", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "40")))
settings.load_profile("any machine")

ROOT = Path(__file__).parent.parent

# Where there is room, tests' directories are in memory: flushes to a disk would be most of what they wait for. What
# they kill are processes, and machines whose devices they imitate; PYTEST_DEBUG_TEMPROOT names another place.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Every Spark that the tests start lives for seconds: compiling its code well takes longer than it gains. The stack is
# for a regular expression with which Spark looks at what foreachBatch raises: a long text overflows the usual one, and
# the query ends without a word. And half of what it does is loading classes: `make test` keeps them, see spark_classes.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -Xss16m"
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
if CLASSES.exists():  # where they do not suit, a Java machine would say so where a program's output is expected
    JAVA_OPTIONS += f' -XX:SharedArchiveFile="{CLASSES}" -Xlog:disable -Xlog:all=error:stderr'
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)

# Some images of containers let no Python keep what it compiles: each of the many that tests start would compile the
# store and the source anew, which is half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts a run in the background lets it ignore Ctrl-C, and with it all that it starts: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, UTC, no UI. Its Python processes find this checkout through PYTHONPATH, as an install would
    be."""
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
    """The URL of a server that speaks S3, in this process."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, as `s3://name`; the environment says how to get in, for child processes, too."""
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return new_bucket()
