"""A store that reads through to its archive, as a log: each append is archived and cleaned from the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.archive.archiving import Archived
from store.directory.directory_log import TieredDirectoryAddress
from store.model.log_protocol import Positions
from tests.logs.archives import ArchivedStore
from tests.logs.conformance import LogTests
from tests.logs.made import A0


class Shortened(ArchivedStore):
    def __init__(self, store: MessageStore, url: str) -> None:
        super().__init__(store, url, {})
        self.address = TieredDirectoryAddress(str(store.path), url)

    def archive(self) -> Archived:
        archived = super().archive()
        while self.store.clean(forced=True).log:
            pass
        return archived

    def commit(self, group: str, positions: Positions) -> Positions:
        for queue, position in positions.items():
            self.store.commit_offsets(group, queue.topic, {queue.queue_id: position})
        return positions


class TestThroughLog(LogTests):
    @pytest.fixture
    def making(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shortened]:
        monkeypatch.setattr("store.archive.place._LOOK_SECONDS", 0.0)
        config = StoreConfig(mappedFileSizeCommitLog=2048, mappedFileSizeConsumeQueue=5 * 20)
        with MessageStore.open(tmp_path / "mq", config=config) as store:
            yield Shortened(store, str(tmp_path / "archive"))

    def test_log_starts_before_the_store(self, making: Shortened) -> None:
        making.create_topic("a", 1)
        making.append([Message("a", bytes(300))] * 30)
        assert making.store.min_offset("a", 0) > 0
        with making.address.open() as log:
            assert log.bounds([A0]) == {A0: (0, 30)}
