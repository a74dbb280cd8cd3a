"""A real broker takes a directory over under a reader and a streaming query that stay open; and back again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store import Message, MessageStore, StoreConfig
from tests.end_to_end.dying_writers import QUEUES, TOPIC
from tests.end_to_end.test_kill import bodies
from tests.end_to_end.test_stream_query import Sink
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import INDEX
from tests.takeover import Follower, die
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

MESSAGES = 150  # of the broker, each time it has the directory
SIZES = {"mappedFileSizeCommitLog": 32 << 10, "mappedFileSizeConsumeQueue": 2000, **INDEX}


def put(path: Path, what: str) -> None:
    with MessageStore.open(path, config=StoreConfig(**SIZES)) as store:
        if TOPIC not in store.topics():
            store.create_topic(TOPIC, QUEUES)
        store.put_many([Message(TOPIC, f"{what} {n}".encode(), queue_id=n % QUEUES) for n in range(20)])


def test_readers_go_on_behind_a_broker_and_back(rocketmq: RocketMQ, spark: SparkSession, tmp_path: Path) -> None:
    """The second time the broker goes on where a writer of ours died, below the end that it had announced."""
    path, sink = tmp_path / "mq", Sink()
    put(path, "ours")
    stream = spark.readStream.format("mq").options(subscribe=TOPIC, startingOffsets="earliest").load(str(path))
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with MessageStore.open(path, read_only=True) as reader:
        follower = Follower(reader)
        expected = bodies(reader)
        sent: set[tuple[int, int]] = set()

        def all_is_read() -> bool:
            follower.read_on()
            places = Counter((row[1], row[2]) for row in sink.rows)
            assert all(count == 1 for count in places.values())
            return expected.keys() | sent <= follower.read.keys() == places.keys()

        until(all_is_read, every=0.01)
        for number in range(2):
            if number:
                die(path)
            with rocketmq.broker(path, SIZES, topic=TOPIC, bodyBytes=50) as broker:
                broker.ask("send", messages=MESSAGES, perSecond=200)
                answers = list(iter(broker.__next__, {"kind": "done"}))
                sent |= {(line["queueId"], line["queueOffset"]) for line in answers}
                assert len(sent) == (number + 1) * MESSAGES
                until(all_is_read, every=0.01)
            put(path, f"again {number}")
            with MessageStore.open(path, read_only=True) as late:
                expected |= bodies(late)
            until(all_is_read, every=0.01)
            assert follower.read == expected
            assert {(row[1], row[2]): row[3] for row in sink.rows} == expected
    query.stop()
    assert query.exception() is None
    assert len(expected) > 60 + 2 * MESSAGES, "what RocketMQ kept of the dead append"
