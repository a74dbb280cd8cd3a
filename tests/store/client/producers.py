from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store import Message, MessageStore, StoreConfig
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
SMALL = StoreConfig(
    mappedFileSizeCommitLog=1 << 20,
    mappedFileSizeConsumeQueue=20_000,
    maxMessageSize=4096,
    maxHashSlotNum=1000,
    maxIndexNum=4000,
)
QUEUES = 3
COLUMNS = ("queueOffset", "body", "tags", "keys", "properties")


def opened(path: Path) -> MessageStore:
    """Topic t, 3 queues, and topic u, 1 queue."""
    store = MessageStore.open(path / "store", config=SMALL)
    store.create_topic("t", QUEUES)
    store.create_topic("u", 1)
    return store


def rows(store: MessageStore, topic: str) -> list[list[dict[str, Any]]]:
    return [
        [
            row
            for batch in store.scan(topic, queue, 0, store.max_offset(topic, queue), COLUMNS)
            for row in batch.to_pylist()
        ]
        for queue in range(store.topics()[topic])
    ]


def bodies(store: MessageStore, topic: str = "t") -> list[bytes]:
    """Return all bodies in log order, as far as the queues show it."""
    return [row["body"] for queue in rows(store, topic) for row in queue]


@contextmanager
def nobody_appends(store: MessageStore) -> Iterator[None]:
    has_it, let_go = threading.Event(), threading.Event()

    def keep() -> bool:
        has_it.set()
        return let_go.wait(PATIENCE)

    def append() -> None:
        with MessageStore.open(store.path, config=SMALL) as other:
            one = other.begin()
            one.add_messages([Message("u", b"never there")])
            assert one.publish(unless=keep) is None

    thread = threading.Thread(target=append)
    thread.start()
    try:
        assert has_it.wait(PATIENCE)
        yield
    finally:
        let_go.set()
        thread.join()
