from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from store import Message, MessageStore, StoreConfig, StoreReplaced
from tests.end_to_end.dying_writers import QUEUES, TOPIC
from tests.end_to_end.test_kill import bodies
from tests.end_to_end.test_stream_query import Sink
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import INDEX
from tests.takeover import PATIENCE, Follower, die
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

MESSAGES = 150
SIZES = {"mappedFileSizeCommitLog": 32 << 10, "mappedFileSizeConsumeQueue": 2000, **INDEX}


def put(path: Path, what: str) -> None:
    with MessageStore.open(path, config=StoreConfig(**SIZES)) as store:
        if TOPIC not in store.topics():
            store.create_topic(TOPIC, QUEUES)
        store.put_many([Message(TOPIC, f"{what} {n}".encode(), queue_id=n % QUEUES) for n in range(20)])


def test_readers_raise_at_each_change_of_the_owner(rocketmq5: RocketMQ, spark: SparkSession, tmp_path: Path) -> None:
    """Open readers raise StoreReplaced, and new ones continue. The second time, the broker continues where our writer
    died, before the end that the writer had announced."""
    path, sink = tmp_path / "mq", Sink()
    put(path, "ours")

    def started() -> StreamingQuery:
        stream = spark.readStream.format("mq").options(subscribe=TOPIC, startingOffsets="earliest").load(str(path))
        return stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def read() -> dict[tuple[int, int], bytes]:
        assert len({(row[1], row[2]) for row in sink.rows}) == len(sink.rows), "a message was read twice"
        return {(row[1], row[2]): row[3] for row in sink.rows}

    def must_fail(query: StreamingQuery, reader: MessageStore) -> None:
        with pytest.raises(StreamingQueryException, match=r"StoreReplaced.*the directory changed owner"):
            query.awaitTermination(PATIENCE)
        with reader, pytest.raises(StoreReplaced):
            bodies(reader)

    def all_read_by(query: StreamingQuery) -> MessageStore:
        """Return a reader that has seen everything, as the query has."""
        reader = MessageStore.open(path, read_only=True)
        query.processAllAvailable()
        assert read() == bodies(reader)
        return reader

    query = started()
    reader = all_read_by(query)
    for number in range(2):
        if number:
            die(path)
        with rocketmq5.broker(path, SIZES, topic=TOPIC, bodyBytes=50) as broker:
            broker.ask("send", messages=MESSAGES, perSecond=200)
            answers = list(iter(broker.__next__, {"kind": "done"}))
            must_fail(query, reader)
            query = started()
            with MessageStore.open(path, read_only=True) as follower:
                sent = {(line["queueId"], line["queueOffset"]) for line in answers}
                assert len(sent) == MESSAGES
                until(lambda: sent <= bodies(follower).keys())  # noqa: B023
                Follower(follower).until(bodies(follower))
            reader = all_read_by(query)
        put(path, f"again {number}")
        must_fail(query, reader)
        query = started()
        reader = all_read_by(query)
    query.stop()
    reader.close()
    assert len(sink.rows) > 60 + 2 * MESSAGES, "messages of the dead append that RocketMQ kept"
