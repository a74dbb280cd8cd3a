"""An archive of a store, updated after each change, for `conformance`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store import Message, MessageStore, StoreConfig
from store.archive.archive_log import ArchiveAddress
from store.archive.archiving import Archived
from store.archive.of_store import ArchiveOrder, StoreArchive, ends
from store.archive.removal import expire
from store.model.log_protocol import LogAddress, Positions, Queue

PIECE_BYTES = 32 << 10


class ArchivedStore:
    def __init__(self, store: MessageStore, url: str, options: Mapping[str, Any]) -> None:
        self.store = store
        self.place = StoreArchive(store.path, url, "", (), options)
        self.address: LogAddress = ArchiveAddress(url, json.dumps(options))
        self._turn = threading.Lock()

    def create_topic(self, topic: str, queues: int) -> None:
        self.store.create_topic(topic, queues)
        self.archive()

    def append(self, messages: list[Message]) -> None:
        self.store.put_many(messages)
        self.archive()

    def archive(self) -> Archived:
        store = self.store
        with self._turn:
            queues, end_of = self.place.queues(store._topics), ends(store._published, 0, store.offset_by_time)
            order = ArchiveOrder(queues, end_of)
            return self.place.run(store._published, order, lambda done, total: None, PIECE_BYTES)

    def delete_oldest(self, queue: Queue) -> None:
        assert expire(self.place.place(), int(time.time() * 1000) + 1)

    def commit(self, group: str, positions: Positions) -> Positions:
        return {}


@contextmanager
def archived(root: Path, url: str, options: Mapping[str, Any] | None = None) -> Iterator[ArchivedStore]:
    config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
    with MessageStore.open(root / "mq", config=config) as store:
        yield ArchivedStore(store, url, options or {})
