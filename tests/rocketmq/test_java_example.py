"""Run examples/java_producer on a served store and on RocketMQ brokers, while examples/count_orders.py counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store import MessageStore
from store.cluster.address import ClusterAddress
from store.remoting.serving import serve
from tests.rocketmq.harness import COMMAND_SECONDS, RocketMQ, unavailable
from tests.rocketmq.test_brokers import running

pytestmark = pytest.mark.rocketmq

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDERS = 30


@pytest.fixture
def classpath(tmp_path: Path) -> str:
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    path = tmp_path / "classpath.txt"
    built = ["mvn", "-q", "-B", "-f", str(EXAMPLES / "java_producer"), "dependency:build-classpath"]
    subprocess.run([*built, f"-Dmdep.outputFile={path}"], check=True, timeout=COMMAND_SECONDS)
    return path.read_text()


def count_what_is_sent(tmp_path: Path, classpath: str, *where: str, name_server: str) -> None:
    count = [sys.executable, str(EXAMPLES / "count_orders.py"), *where, "--orders", str(ORDERS)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(count, stdout=subprocess.PIPE, text=True, env=environment) as counting:
        try:
            produce = ["java", f"-Duser.home={tmp_path}", "-cp", classpath]
            source = str(EXAMPLES / "java_producer" / "OrderProducer.java")
            done = subprocess.run(
                [*produce, source, name_server, str(ORDERS)],
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
            )
            assert f"{ORDERS} orders sent, the last one is SendResult [sendStatus=SEND_OK" in done.stdout, done.stderr
            said, _ = counting.communicate(timeout=COMMAND_SECONDS)
        finally:
            counting.kill()  # otherwise leaving the block would wait for orders that never arrive
    last = said.splitlines()[-1]
    assert last == "open: 10 orders, 135, paid: 10 orders, 145, shipped: 10 orders, 155"


def test_spark_counts_orders_of_a_java_producer(tmp_path: Path, classpath: str) -> None:
    path = tmp_path / "orders"
    with MessageStore.open(path) as store, serve(store, "127.0.0.1:0") as serving:
        count_what_is_sent(tmp_path, classpath, "--path", str(path), name_server=serving.address)


def test_spark_counts_orders_on_two_brokers(rocketmq5: RocketMQ, tmp_path: Path, classpath: str) -> None:
    with (
        running(rocketmq5, tmp_path / "a", "broker-a") as name_server,
        running(rocketmq5, tmp_path / "b", "broker-b", name_server),
    ):
        count_what_is_sent(tmp_path, classpath, "--nameServer", name_server, name_server=name_server)
        with ClusterAddress.parse(name_server).open() as log:
            bounds = log.bounds(log.topics()["orders"])
    assert {queue.broker for queue, each in bounds.items() if each.max_offset} == {"broker-a", "broker-b"}
