"""A served store as a log; readers know only the name server's address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from store import MessageStore, StoreConfig, UnsupportedStore
from store.cluster.address import ClusterAddress
from store.model.log_protocol import Log, LogWriter, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.logs.conformance import WriterTests
from tests.logs.test_local import Directory

BROKER = BrokerConfig.brokerName
COLUMNS_OF_PRODUCERS = ("bornTimestamp", "flag", "tags")


class Served(Directory):
    def __init__(self, store: MessageStore, name_server: str) -> None:
        super().__init__(store)
        self.address = ClusterAddress((name_server,), patience=2.0, broker_timeout=2.0)  # type: ignore[assignment]


def of_broker(topic: str, number: int) -> Queue:
    return Queue(topic, number, broker=BROKER)


class ClusterTests(WriterTests):
    def test_condition_is_checked_while_others_cannot_append(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        append.add("a", pa.table({"body": ["10"]}))
        with pytest.raises(UnsupportedStore, match="conditional appends"):
            append.publish(unless=lambda: False)
        queue = self.queue("a", 0)
        assert log.bounds([queue]) == {queue: (0, 10)}

    def test_rows_with_own_times_and_flags_are_kept(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        born = [1_700_000_000_000, 1_700_000_000_001]
        append.add("b", pa.table({"body": ["3", "4"], "bornTimestamp": born, "flag": [7, 8], "tags": ["x", None]}))
        append.publish()
        (batch,) = log.scan(QueueRange(self.queue("b", 0), 3, 5), ReadSpec(COLUMNS_OF_PRODUCERS, EVERYTHING))
        times = [int(at) // 1000 for at in batch["bornTimestamp"].cast(pa.int64()).to_pylist()]
        assert (times, batch["flag"].to_pylist(), batch["tags"].to_pylist()) == (born, [7, 8], ["x", None])


class TestServedLog(ClusterTests):
    queue = staticmethod(of_broker)

    @pytest.fixture
    def making(self, tmp_path: Path) -> Iterator[Served]:
        config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
        with MessageStore.open(tmp_path / "mq", config=config) as store, serve(store, "127.0.0.1:0") as serving:
            yield Served(store, serving.address)

    def test_many_rows_are_sent_in_several_batches(self, log: Log, writer: LogWriter) -> None:
        append = writer.begin()
        bodies = [b"%d" % n + bytes(30_000) for n in range(100)]
        append.add("b", pa.table({"body": bodies, "keys": [f"k{n}" for n in range(100)]}))
        placed = append.publish()
        assert placed.queue_offsets.tolist() == [*range(3, 103)]
        batches = list(
            log.scan(QueueRange(self.queue("b", 0), 3, 103), ReadSpec(("body", "physicalOffset"), EVERYTHING))
        )
        assert [body for batch in batches for body in batch["body"].to_pylist()] == bodies
        seen = [at for batch in batches for at in batch["physicalOffset"].to_pylist()]
        assert seen == placed.physical_offsets.tolist()
