from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.end_to_end.test_realtime import Query
from tests.end_to_end.test_stream_query import Sink
from tests.rocketmq.harness import Broker, Json, RocketMQ
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.rocketmq

SEGMENT = 1 << 15
SMALL = {"mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 2000}
BODY_BYTES = 150
QUEUES = 4

Place = tuple[int, int]


class Sent(NamedTuple):
    number: int
    physical_offset: int

    @property
    def body(self) -> bytes:
        return bytes(self.number >> i % 4 * 8 & 0xFF for i in range(BODY_BYTES))


class Client:
    """The broker's client and retention. A thread records the acknowledged messages."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.sent: dict[Place, Sent] = {}
        self._broker = broker
        self._log = directory / "commitlog"
        self._answers: SimpleQueue[Json] = SimpleQueue()
        self._thread = threading.Thread(target=self._note)
        self._thread.start()

    def send(self, messages: int, per_second: float) -> None:
        self._broker.ask("send", messages=messages, perSecond=per_second)

    def wait_for(self, messages: int) -> None:
        until(lambda: len(self.sent) == messages)

    def delete_below(self, physical_offset: int) -> int:
        """Let the broker delete the segments before this log offset, ten at a time; return the log's first offset."""
        for segment in self._log.iterdir():
            if int(segment.name) + SEGMENT <= physical_offset:
                os.utime(segment, (0, 0))
        minimum = 0
        while minimum + SEGMENT <= physical_offset:
            self._broker.ask("clean")
            minimum = int(self._answers.get(timeout=PATIENCE)["min"])
        return minimum

    def oldest_unread(self, read: Counter[Place]) -> int:
        """Return the log offset of the first message that is not in `read`."""
        offsets = [sent.physical_offset for place, sent in self.sent.copy().items() if place not in read]
        return min(offsets, default=max(sent.physical_offset for sent in self.sent.copy().values()))

    def join(self) -> None:
        self._thread.join()

    def _note(self) -> None:
        for line in self._broker:
            if line["kind"] == "sent":
                place = line["queueId"], line["queueOffset"]
                assert place not in self.sent
                self.sent[place] = Sent(line["number"], int(line["offsetMsgId"][-16:], 16))
            elif line["kind"] != "done":
                self._answers.put(line)


@contextmanager
def client(rocketmq: RocketMQ, directory: Path) -> Iterator[Client]:
    with rocketmq.broker(directory, SMALL, topic="orders", queues=QUEUES, bodyBytes=BODY_BYTES) as broker:
        it = Client(broker, directory)
        yield it
    it.join()


def delete_what_is_read(
    it: Client, messages: int, batches: Callable[[], int], read: Callable[[], Counter[Place]]
) -> int:
    """Delete read segments, batch by batch, until `messages` are read; return the log's first offset."""
    seen = minimum = 0

    def all_read() -> bool:
        nonlocal seen, minimum
        if batches() == seen or not it.sent:
            return False
        seen, places = batches(), read()
        if it.oldest_unread(places) >= minimum + SEGMENT:
            minimum = it.delete_below(it.oldest_unread(places))
        return places.total() >= messages

    until(all_read, every=0.05)
    return minimum


def start(spark: SparkSession, path: Path, sink: Sink, fail: str = "true", *, end: bool = False) -> StreamingQuery:
    options = {"subscribe": "orders", "startingOffsets": "earliest", "failOnDataLoss": fail}
    frame = spark.readStream.format("mq").options(**options).load(str(path))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(path.with_name("checkpoint")))
    return (writer.trigger(availableNow=True) if end else writer).start()


def rows(sink: Sink) -> Counter[Place]:
    return Counter((row[1], row[2]) for batch in list(sink.batches.values()) for row in batch)


def bodies(sink: Sink) -> dict[Place, bytes]:
    return {(row[1], row[2]): row[3] for row in sink.rows}


def test_query_reads_each_message_once_despite_retention(
    rocketmq5: RocketMQ, spark: SparkSession, tmp_path: Path
) -> None:
    sink, path = Sink(), tmp_path / "mq"
    with client(rocketmq5, path) as it:
        it.send(2000, per_second=400)
        query = start(spark, path, sink)
        minimum = delete_what_is_read(it, 2000, lambda: len(sink.batches), lambda: rows(sink))
        query.stop()
        assert query.exception() is None
        assert minimum > 5 * SEGMENT
        assert rows(sink) == Counter(it.sent.keys())
        assert bodies(sink) == {place: sent.body for place, sent in it.sent.items()}

        read = set(it.sent)
        it.send(1000, per_second=5000)
        it.wait_for(3000)
        minimum = it.delete_below(max(sent.physical_offset for sent in it.sent.values()))
        left = {
            place: sent.body for place, sent in it.sent.items() if place not in read and sent.physical_offset >= minimum
        }
        assert 0 < len(left) < 500
        with pytest.raises(StreamingQueryException, match=r"is lost.*failOnDataLoss"):
            start(spark, path, sink, end=True).awaitTermination(PATIENCE)
        sink.batches.clear()
        assert start(spark, path, sink, fail="false", end=True).awaitTermination(PATIENCE)
        assert rows(sink) == Counter(left.keys())
        assert bodies(sink) == left


def test_real_time_query_reads_messages_once_despite_retention(rocketmq5: RocketMQ, tmp_path: Path) -> None:
    query = Query(tmp_path)
    with client(rocketmq5, tmp_path / "mq") as it:
        with query.running(batchDuration="1 second", ledgerPath=str(tmp_path / "ledger")):
            it.send(1000, per_second=200)
            minimum = delete_what_is_read(it, 1000, query.committed, query.rows)
        assert minimum > SEGMENT
        assert query.rows() == Counter(it.sent.keys())
