from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_mq.stats.query_lag import QueryLag, query_lags
from store import Message, MessageStore
from store.model.log_protocol import Queue
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import Serving, serve
from tests.end_to_end.test_stream_query import Sink
from tests.waiting import PATIENCE, until

BROKER = BrokerConfig.brokerName


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 2)
        it.create_topic("copy", 1)
        yield it


@pytest.fixture
def serving(store: MessageStore) -> Iterator[Serving]:
    with serve(store, "127.0.0.1:0") as it:
        yield it


def put(store: MessageStore, numbers: range) -> None:
    store.put_many([Message("orders", b"%d" % n, tags="AB"[n % 2], queue_id=n % 2) for n in numbers])


def start(spark: SparkSession, serving: Serving, sink: Any, checkpoint: Path, **options: str) -> StreamingQuery:
    given = {"nameServer": serving.address, "subscribe": "orders", "startingOffsets": "earliest", **options}
    frame = spark.readStream.format("mq").options(**given).load()
    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()


def test_batch_query_reads_a_cluster(spark: SparkSession, store: MessageStore, serving: Serving) -> None:
    put(store, range(100))
    reader = spark.read.format("mq").options(nameServer=serving.address, subscribe="orders", subExpression="A")
    rows = reader.schema("brokerName string, queueId int, queueOffset bigint, body binary, tags string").load()
    assert sorted((row.brokerName, row.queueId, row.queueOffset, bytes(row.body)) for row in rows.collect()) == [
        (BROKER, 0, n, b"%d" % (2 * n)) for n in range(50)
    ]
    assert rows.where("queueId = 1").count() == 0
    offsets = json.dumps({"orders": {f"{BROKER}:0": 48, f"{BROKER}:1": 50}})
    some = reader.option("startingOffsets", offsets).load()
    assert sorted(row.queueOffset for row in some.collect()) == [48, 49]


def test_streaming_query_reads_a_cluster(
    spark: SparkSession, store: MessageStore, serving: Serving, tmp_path: Path
) -> None:
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    options = {"consumerGroup": "billing", "maxOffsetsPerTrigger": "8"}
    put(store, range(20))
    query = start(spark, serving, sink, checkpoint, **options)
    until(lambda: len(sink.rows) == 20)
    put(store, range(20, 30))
    query.processAllAvailable()
    assert [row[3] for row in sorted(sink.rows, key=lambda row: int(row[3]))] == [b"%d" % n for n in range(30)]
    assert len(sink.batches) > 3
    offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert offsets["orders"] == {f"{BROKER}:0": 15, f"{BROKER}:1": 15}
    assert query_lags(query.lastProgress["sources"][0]) == {
        Queue("orders", n, broker=BROKER): QueryLag(0, 0, 0.0) for n in range(2)
    }
    query.stop()
    until(lambda: [store.consumer_offset("billing", "orders", n) for n in range(2)] == [15, 15])

    put(store, range(30, 40))
    again = Sink()
    query = start(spark, serving, again, checkpoint, **options)
    query.processAllAvailable()
    query.stop()
    assert sorted(int(row[3]) for row in again.rows) == [*range(30, 40)]


def test_query_continues_after_its_broker_restarts(
    spark: SparkSession, store: MessageStore, serving: Serving, tmp_path: Path
) -> None:
    sink = Sink()
    put(store, range(10))
    query = start(spark, serving, sink, tmp_path / "checkpoint")
    until(lambda: len(sink.rows) == 10)
    serving.close()
    put(store, range(10, 20))
    with serve(store, serving.address):
        until(lambda: len(sink.rows) == 20 or query.exception() is not None)
        query.stop()
    assert query.exception() is None
    assert sorted(int(row[3]) for row in sink.rows) == [*range(20)]


def test_missing_messages_fail_a_query(
    spark: SparkSession, store: MessageStore, serving: Serving, tmp_path: Path
) -> None:
    put(store, range(10))
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    query = start(spark, serving, sink, checkpoint)
    query.processAllAvailable()
    query.stop()
    ahead = {"orders": {f"{BROKER}:0": 999, f"{BROKER}:1": 5}}
    query = start(spark, serving, sink, tmp_path / "other", startingOffsets=json.dumps(ahead))
    with pytest.raises(StreamingQueryException, match="says 999 for orders/broker-a:0, which ends at 5"):
        query.awaitTermination(PATIENCE)


def test_sink_writes_to_a_cluster(spark: SparkSession, store: MessageStore, serving: Serving, tmp_path: Path) -> None:
    put(store, range(20))
    given = {"nameServer": serving.address, "subscribe": "orders", "startingOffsets": "earliest"}
    rows = spark.readStream.format("mq").options(**given).load().select("body", "tags")
    writer = rows.writeStream.format("mq").options(
        nameServer=serving.address, topic="copy", delivery="at-least-once", checkpointLocation=str(tmp_path / "c")
    )
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    copied = spark.read.format("mq").options(nameServer=serving.address, subscribe="copy").load().collect()
    assert sorted((int(row.body), row.tags) for row in copied) == [(n, "AB"[n % 2]) for n in range(20)]


def test_reader_drops_rows_of_a_batch_that_ran_twice(
    spark: SparkSession, store: MessageStore, serving: Serving, tmp_path: Path
) -> None:
    put(store, range(20))
    given = {"nameServer": serving.address, "subscribe": "orders", "startingOffsets": "earliest"}
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        rows = spark.readStream.format("mq").options(**given).load().select("body")
        writer = rows.writeStream.format("mq").options(
            nameServer=serving.address, topic="copy", delivery="at-least-once", checkpointLocation=str(checkpoint)
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        for file in (checkpoint / "commits").glob("*0*"):
            file.unlink()
    copied = spark.read.format("mq").options(nameServer=serving.address, subscribe="copy")
    frame = copied.schema("msgId string, body binary").load()
    assert frame.count() == 40
    once = frame.dropDuplicates(["msgId"]).collect()
    assert sorted(int(row.body) for row in once) == [*range(20)]


def test_unknown_topic_and_exactly_once_are_refused(spark: SparkSession, serving: Serving) -> None:
    with pytest.raises(PySparkException, match=r"no nowhere; it has copy \(1 queue\), orders \(2 queues\)"):
        spark.read.format("mq").options(nameServer=serving.address, subscribe="nowhere").load().count()
    rows = spark.range(1).selectExpr("'x' AS body")
    with pytest.raises(PySparkException, match="Set delivery to at-least-once"):
        rows.write.format("mq").mode("append").options(nameServer=serving.address, topic="copy").save()
