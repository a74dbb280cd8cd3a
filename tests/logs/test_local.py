from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, StoreReplaced
from store.directory.directory_log import DirectoryAddress
from store.disk.consume_queue import ConsumeQueue
from store.model.log_protocol import Positions, Queue, QueueRange
from store.read.filters import EVERYTHING
from tests.logs.conformance import WriterTests
from tests.waiting import PATIENCE


class Directory:
    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.address = DirectoryAddress(str(store.path))
        self.create_topic = store.create_topic

    def append(self, messages: list[Message]) -> None:
        self.store.put_many(messages)

    def delete_oldest(self, queue: Queue) -> None:
        self.store.clean(forced=True)

    def commit(self, group: str, positions: Positions) -> Positions:
        for queue, position in positions.items():
            self.store.commit_offsets(group, queue.topic, {queue.queue_id: position})
        return positions


class TestLocalLog(WriterTests):
    @pytest.fixture
    def making(self, tmp_path: Path) -> Iterator[Directory]:
        config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
        with MessageStore.open(tmp_path / "mq", config=config) as store:
            yield Directory(store)

    def test_address_has_the_directory(self, making: Directory) -> None:
        assert making.address.directory == str(making.store.path)

    def test_fingerprints_ignore_messages_deleted_by_retention(
        self, making: Directory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        making.store.create_topic("t", 1)
        making.store.put_many([Message("t", bytes(20_000)) for _ in range(12)])
        min_offset = ConsumeQueue.min_offset

        def overtaken(queue: ConsumeQueue, first: int, end: int) -> int:
            monkeypatch.setattr(ConsumeQueue, "min_offset", min_offset)
            found = min_offset(queue, first, end)
            making.store.clean(forced=True)
            return found

        with making.address.open() as log:
            monkeypatch.setattr(ConsumeQueue, "min_offset", overtaken)
            assert log.few(QueueRange(Queue("t", 0), 0, 2)) is None
            (bounds,) = log.bounds([Queue("t", 0)]).values()
            assert 0 < bounds.min_offset < bounds.max_offset == 12
            for start in range(bounds.min_offset, 12):
                messages = log.few(QueueRange(Queue("t", 0), start, 12))
                assert messages is not None
                assert [each.queue_offset for each in messages] == list(range(start, 12))


def test_hold_raises_if_the_directory_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, queue = tmp_path / "mq", Queue("t", 0)
    with MessageStore.open(path, config=StoreConfig(mappedFileSizeCommitLog=4096)) as store:
        store.create_topic("t", 1)
    log = DirectoryAddress(str(path)).open()
    with log, log.hold({queue: 0}, math.inf, EVERYTHING, PATIENCE) as held:
        path.rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", path)
        with pytest.raises(StoreReplaced):
            next(held)
        held.again(queue, 0)
        with pytest.raises(StoreReplaced):
            next(held)
    assert "requests are no longer held" in caplog.text
