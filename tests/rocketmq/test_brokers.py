from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from store.cluster.address import ClusterAddress
from tests.end_to_end.test_stream_query import Sink
from tests.rocketmq.harness import RocketMQ, free_ports
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

COUNT = 2000
QUEUES = 2
SMALL = {"mappedFileSizeCommitLog": 8 << 20, "mappedFileSizeConsumeQueue": 20_000}


@contextmanager
def running(rocketmq: RocketMQ, directory: Path, broker: str, name_server: str = "") -> Iterator[str]:
    """Run a broker; yield its name server's address. The broker also registers at `name_server`."""
    ports = free_ports()
    own = f"127.0.0.1:{ports['namesrvPort']}"
    config = {"brokerName": broker, "namesrvAddr": f"{own};{name_server}" if name_server else own}
    with rocketmq.broker(directory, SMALL, topic="orders", queues=QUEUES, brokerConfig=config, **ports):
        yield own


def write(name_server: str, numbers: range) -> None:
    with ClusterAddress.parse(name_server).open_writer() as writer:
        append = writer.begin()
        append.add("orders", pa.table({"body": [str(n) for n in numbers]}))
        append.publish()


def test_spark_reads_a_topic_of_two_brokers(rocketmq5: RocketMQ, spark: SparkSession, tmp_path: Path) -> None:
    with (
        running(rocketmq5, tmp_path / "a", "broker-a") as name_server,
        running(rocketmq5, tmp_path / "b", "broker-b", name_server),
    ):
        with ClusterAddress.parse(name_server).open() as log:
            until(lambda: len(log.topics()["orders"]) == 2 * QUEUES)
        write(name_server, range(COUNT))
        given = {"nameServer": name_server, "subscribe": "orders", "startingOffsets": "earliest"}
        reader = spark.read.format("mq").options(**given).schema("brokerName string, queueId int, body binary")
        rows = reader.load().collect()
        assert sorted(int(row.body) for row in rows) == [*range(COUNT)]
        places = {(row.brokerName, row.queueId) for row in rows}
        assert places == {(broker, queue) for broker in ("broker-a", "broker-b") for queue in range(QUEUES)}

        sink, group = Sink(), {"consumerGroup": "billing"}
        frame = spark.readStream.format("mq").options(**given, **group, maxOffsetsPerTrigger="700").load()
        to = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = to.start()
        until(lambda: len(sink.rows) == COUNT or query.exception() is not None)
        spark.range(COUNT, COUNT + 100, numPartitions=1).selectExpr("string(id) AS body").write.format("mq").mode(
            "append"
        ).options(nameServer=name_server, topic="orders", delivery="at-least-once").save()
        until(lambda: len(sink.rows) == COUNT + 100 or query.exception() is not None)
        query.processAllAvailable()
        offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])["orders"]
        query.stop()
        assert query.exception() is None
        assert sorted(int(row[3]) for row in sink.rows) == [*range(COUNT + 100)]
        with ClusterAddress.parse(name_server).open() as log:
            queues = log.topics()["orders"]
            until(lambda: {q.name: at for q, at in log.committed("billing", queues).items()} == offsets)
