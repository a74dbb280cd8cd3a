"""One of a query's two brokers is down: the other is read, and no message is lost or read twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import DataLossError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.batch_reader import MqBatchReader
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader, stream_reader
from pyspark_mq.stats.measures import group_lags
from store import BrokerMissing
from store.cluster.address import ClusterAddress
from tests.pair import Pair
from tests.waiting import until


def options_of(pair: Pair, **more: str) -> SourceOptions:
    given = {"nameServer": pair.names, "subscribe": "t", "startingOffsets": "earliest", "holdTimeoutMs": "20"}
    return SourceOptions.parse({**given, **more})


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, tmp_path)


class Query:
    def __init__(self, options: SourceOptions, start: Any = None) -> None:
        self.reader: MqStreamReader = stream_reader(options, default_schema(False))
        self.at = self.reader.initialOffset() if start is None else start
        self.rows: list[int] = []

    def step(self) -> bool:
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        if end == self.at:
            return False
        for partition in self.reader.partitions(self.at, end):
            for batch in self.reader.read(partition):
                self.rows += map(int, batch["body"].to_pylist())
        self.at = end
        return True

    def until(self, *rows: int) -> None:
        def are_read() -> bool:
            self.step()
            return sorted(self.rows) == sorted(rows)

        until(are_read)


@pytest.fixture
def begin() -> Iterator[Callable[..., Query]]:
    queries: list[Query] = []

    def begin(*arguments: Any) -> Query:
        queries.append(Query(*arguments))
        return queries[-1]

    yield begin
    for query in queries:
        query.reader.stop()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_stream_reads_healthy_broker_and_keeps_position(
    pair: Pair, begin: Callable[..., Query], is_restarted: bool, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        pair.put(name, 1)
    options = options_of(pair, failOnDataLoss=fails)
    query = begin(options)
    query.until(1, 1)
    pair.serving["b"].close()
    if is_restarted:
        query.reader.stop()
        query = begin(options, query.at)
        query.rows = [1, 1]
    pair.put("a", 2)
    query.until(1, 1, 2)
    assert "broker b has been missing since" in caplog.text
    pair.put("b", 3)
    pair.start("b")
    query.until(1, 1, 2, 3)
    assert "broker b is back after" in caplog.text


def test_stream_ends_after_broker_timeout_with_remedy(pair: Pair, begin: Callable[..., Query]) -> None:
    query = begin(options_of(pair, brokerTimeout="1 second"))
    pair.put("b", 1)
    query.until(1)
    pair.serving["b"].close()
    with pytest.raises(
        BrokerMissing, match=r"broker b has been missing since .* Start the broker, then start the query"
    ):
        until(lambda: query.step())
    pair.put("a", 2)
    skipping = begin(options_of(pair, brokerTimeout="1 second", whenBrokerMissing="skip"), query.at)
    skipping.until(2)


def test_stream_that_names_its_brokers_reads_the_healthy_one(pair: Pair, begin: Callable[..., Query]) -> None:
    query = begin(options_of(pair, brokers="a,b"))
    pair.put("b", 1)
    query.until(1)
    pair.serving["b"].close()
    pair.put("a", 2)
    query.until(1, 2)


def test_query_that_begins_waits_for_queues_of_a_named_broker(pair: Pair, begin: Callable[..., Query]) -> None:
    pair.put("b", 1)
    pair.serving["b"].close()
    starting = threading.Timer(0.5, pair.start, ["b"])
    starting.start()
    query = begin(options_of(pair, brokers="a,b", startingOffsets="latest"))
    starting.join()
    pair.put("b", 2)
    query.until(2)


def test_queue_of_an_unnamed_broker_is_lost(pair: Pair, begin: Callable[..., Query]) -> None:
    query = begin(options_of(pair))
    pair.put("b", 1)
    query.until(1)
    pair.serving["b"].close()
    with pytest.raises(DataLossError, match="t/b:0 from offset 1 on is lost: the queue was deleted"):
        begin(options_of(pair, brokers="a"), query.at).step()


def test_batch_raises_for_a_named_missing_broker(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.put("a", 1)
    pair.put("b", 2)
    pair.serving["b"].close()

    def planned(**more: str) -> list[str]:
        reader = MqBatchReader(options_of(pair, brokers="a,b", brokerTimeout="1 second", **more), default_schema(False))
        return [str(each) for partition in reader.partitions() for each in partition.value.ranges]

    with pytest.raises(BrokerMissing, match="broker b has been missing since"):
        planned()
    assert planned(whenBrokerMissing="skip") == ["t/a:0 [0, 1)"]
    assert "broker b has been missing since" in caplog.text


def test_lags_of_groups_name_the_missing_broker(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        pair.put(name, 1, 2)
        pair.stores[name].commit_offsets("g", "t", {0: 1})
    address = ClusterAddress.parse(f"{pair.names}?brokers=a,b")
    with address.open() as log:
        assert [str(each.queue) for each in group_lags(log)] == ["t/a:0", "t/b:0"]
    pair.serving["b"].close()
    with address.open() as log:
        assert [str(each.queue) for each in group_lags(log)] == ["t/a:0"]
    assert "broker b has been missing since" in caplog.text


def test_real_time_batch_of_healthy_broker_does_not_wait(
    pair: Pair, begin: Callable[..., Query], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    more = {"realTime": "true", "batchDuration": "1 second", "ledgerPath": str(tmp_path / "ledger")}
    query = begin(options_of(pair, realTimePartitions="2", **more))
    pair.put("b", 1)
    query.until(1)
    pair.serving["b"].close()
    pair.put("a", 2)
    since = time.monotonic()
    query.until(1, 2)
    assert time.monotonic() - since < 5.0, "two batches, with one attempt to connect each"
    pair.put("b", 3)
    pair.start("b")
    query.until(1, 2, 3)
