"""A cluster as a log of any kind: a store that is served, and nobody but its name server is told to the reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import MessageStore, StoreConfig
from store.any_log import BrokerQueueId, Queue
from store.cluster.address import ClusterAddress
from store.remoting.serving import BROKER, serve
from tests.logs.conformance import LogTests
from tests.logs.test_local import Directory


class Served(Directory):
    def __init__(self, store: MessageStore, name_server: str) -> None:
        super().__init__(store)
        self.address = ClusterAddress((name_server,))  # type: ignore[assignment]


def of_broker(topic: str, number: int) -> Queue:
    return Queue(topic, BrokerQueueId(BROKER, number))


class TestServedLog(LogTests):
    queue = staticmethod(of_broker)

    @pytest.fixture
    def making(self, tmp_path: Path) -> Iterator[Served]:
        config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
        with MessageStore.open(tmp_path / "mq", config=config) as store, serve(store, "127.0.0.1:0") as serving:
            yield Served(store, serving.address)
