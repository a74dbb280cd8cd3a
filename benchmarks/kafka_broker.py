"""A local Kafka broker with a single node, as a baseline. `confluent-kafka` sends the same messages through it.

Needs a JDK, Maven, which downloads the broker, and `pip install confluent-kafka`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

from benchmarks.bench import QUEUES, TOPIC, messages

_POM = Path(__file__).parent / "kafka" / "pom.xml"
_CONNECTOR = Path(__file__).parent / "kafka" / "connector.xml"
_CLUSTER_ID = "cHlzcGFyay1tcS1iZW5jaA"  # any 16 bytes
_START_SECONDS = 120.0
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def unavailable() -> str | None:
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    missing += ["confluent-kafka"] if find_spec("confluent_kafka") is None else []
    return f"needs {' and '.join(missing)}" if missing else None


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker with default settings and yield its `bootstrap.servers`."""
    with TemporaryDirectory(prefix="mq-kafka-") as folder:
        port, controller = _free_port(), _free_port()
        settings = Path(folder) / "server.properties"
        settings.write_text(_PROPERTIES.format(port=port, controller=controller, logs=Path(folder) / "logs"))
        java = ["java", "-Xmx1g", "-cp", _classpath(_POM)]
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
        subprocess.run(formatting, check=True, capture_output=True)
        with (Path(folder) / "output").open("w") as output:
            process = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=output, stderr=output)
        try:
            _wait_for(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def produced(servers: str, count: int, body_bytes: int) -> str:
    """Create a Kafka topic with the messages of `bench.messages`, partitioned by key."""
    kafka, kafka_admin = import_module("confluent_kafka"), import_module("confluent_kafka.admin")
    topic = f"{TOPIC}-{body_bytes}"
    admin = kafka_admin.AdminClient({"bootstrap.servers": servers})
    admin.create_topics([kafka_admin.NewTopic(topic, QUEUES, 1)])[topic].result()
    producer = kafka.Producer({"bootstrap.servers": servers})
    for table in messages(count, body_bytes):
        for row in table.to_pylist():
            producer.produce(topic, row["body"], row["keys"])
        producer.flush()
    return topic


def connector() -> dict[str, str]:
    jars = _classpath(_CONNECTOR).split(":")
    return {"spark.jars": ",".join(jar for jar in jars if "kafka" in jar or "commons-pool2" in jar)}


def _classpath(pom: Path) -> str:
    """Maven downloads the jars once."""
    with NamedTemporaryFile("r") as file:
        goal = f"-Dmdep.outputFile={file.name}"
        subprocess.run(["mvn", "-q", "-B", "-f", pom, "dependency:build-classpath", goal], check=True)
        return file.read().strip()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"Kafka's broker did not start within {_START_SECONDS:.0f} s")
