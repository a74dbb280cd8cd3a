from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from store import MessageStore, StoreError
from store.cluster.address import ClusterAddress
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from tests.end_to_end.test_stream_query import Sink
from tests.rocketmq.harness import Broker, RocketMQ, free_port, free_ports
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

COUNT = 500
A0 = Queue("orders", 0, broker="broker-a")
SMALL = {"mappedFileSizeCommitLog": 8 << 20, "mappedFileSizeConsumeQueue": 20_000}


class Pair(NamedTuple):
    """A master and its slave, each with its own name server that knows both."""

    master: Broker
    slave_path: Path
    address: ClusterAddress

    def write(self, numbers: range) -> None:
        with self.address.open_writer() as writer:
            append = writer.begin()
            append.add("orders", pa.table({"body": [str(n) for n in numbers]}))
            append.publish()

    def wait_for_copies(self, count: int) -> None:
        def has_all() -> bool:
            try:
                with MessageStore.open(self.slave_path, read_only=True) as store:
                    return "orders" in store.topics() and store.max_offset("orders", 0) == count
            except StoreError:
                return False

        until(has_all)


@pytest.fixture
def pair(rocketmq: RocketMQ, tmp_path: Path) -> Iterator[Pair]:
    ports = free_ports(), free_ports()
    servers = [f"127.0.0.1:{each['namesrvPort']}" for each in ports]
    names = {"brokerName": "broker-a", "namesrvAddr": ";".join(servers), "registerNameServerPeriod": "10000"}
    usual = {"topic": "orders", "queues": 1}
    its = {**SMALL, "haListenPort": free_port()}
    with rocketmq.broker(
        tmp_path / "master", {**its, "brokerRole": "ASYNC_MASTER"}, brokerConfig=names, **usual, **ports[0]
    ) as master:
        of_slave = {**names, "brokerId": "1", "slaveReadEnable": "true"}
        own = {**SMALL, "haListenPort": free_port(), "brokerRole": "SLAVE"}
        with rocketmq.broker(tmp_path / "slave", own, brokerConfig=of_slave, **usual, **ports[1]):
            yield Pair(master, tmp_path / "slave", ClusterAddress(tuple(servers)))


def test_query_and_log_continue_on_the_slave(pair: Pair, spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    pair.write(range(COUNT))
    pair.wait_for_copies(COUNT)
    given = {"nameServer": ";".join(pair.address.name_servers), "subscribe": "orders", "startingOffsets": "earliest"}
    frame = spark.readStream.format("mq").options(**given).option("maxOffsetsPerTrigger", COUNT // 10).load()
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pair.address.open() as log, log.hold({A0: COUNT - 1}, time.monotonic() + 600, EVERYTHING, 600) as held:
        assert next(held) == QueueRange(A0, COUNT - 1, COUNT)
        until(lambda: len(sink.batches) > 1 or query.exception() is not None)
        pair.master.kill()
        assert len(sink.rows) < COUNT
        held.again(A0, COUNT - 1)
        assert next(held) == QueueRange(A0, COUNT - 1, COUNT)
        batches = log.scan(QueueRange(A0, 0, COUNT), ReadSpec(("body",), EVERYTHING))
        assert [int(body) for batch in batches for body in batch["body"].to_pylist()] == [*range(COUNT)]
    until(lambda: len(sink.rows) == COUNT or query.exception() is not None)
    query.stop()
    assert query.exception() is None
    assert [int(row[3]) for row in sink.rows] == [*range(COUNT)]
    with replace(pair.address, patience=1.0, broker_timeout=1.0).open_writer() as writer:
        append = writer.begin()
        append.add("orders", pa.table({"body": ["x"]}))
        with pytest.raises(
            StoreError, match=r"topic 'orders' that can be written|no master broker of orders/broker-a:0"
        ):
            append.publish()
