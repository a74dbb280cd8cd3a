"""A store's directory, as a log of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.any_log import Positions, Queue
from store.local import LocalAddress
from tests.logs.conformance import WriterTests


class Directory:
    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.address = LocalAddress(str(store.path))
        self.create_topic = store.create_topic

    def append(self, messages: list[Message]) -> None:
        self.store.put_many(messages)

    def delete_oldest(self, queue: Queue) -> None:
        self.store.clean(forced=True)

    def commit(self, group: str, positions: Positions) -> Positions:
        for queue, position in positions.items():
            self.store.commit_offsets(group, queue.topic, {int(queue.queue_id): position})
        return positions


class TestLocalLog(WriterTests):
    @pytest.fixture
    def making(self, tmp_path: Path) -> Iterator[Directory]:
        config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
        with MessageStore.open(tmp_path / "mq", config=config) as store:
            yield Directory(store)

    def test_its_directory_is_the_place_for_what_lies_beside(self, making: Directory) -> None:
        assert making.address.directory == str(making.store.path)
