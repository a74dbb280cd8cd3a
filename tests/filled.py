from __future__ import annotations

from pathlib import Path

from store import Message, MessageStore, StoreConfig
from tests.waiting import another_millisecond


class Filled:
    """A store with small segments. `rows` are its messages: (topic, queue id, queue offset, body)."""

    def __init__(self, path: Path, topics: dict[str, int]) -> None:
        self.path = str(path)
        self.rows: list[tuple[str, int, int, bytes]] = []
        config = StoreConfig(
            mappedFileSizeCommitLog=64 << 10,
            mappedFileSizeConsumeQueue=100 * 20,
            maxHashSlotNum=10_000,
            maxIndexNum=40_000,
        )
        self.store = MessageStore.open(path, config=config)
        for topic, queues in topics.items():
            self.store.create_topic(topic, queues)

    def put(self, topic: str, queue_id: int, count: int, size: int = 10) -> None:
        """Put `count` messages with `size` bytes, tags A and B in turn and one key each, at a new store time."""
        first = self.store.max_offset(topic, queue_id)
        messages = [
            Message(
                topic,
                f"{queue_id}-{offset}".encode().ljust(size, b"."),
                queue_id=queue_id,
                tags="AB"[offset % 2],
                keys=(f"k{offset}",),
                properties={"region": "eu"},
            )
            for offset in range(first, first + count)
        ]
        another_millisecond()
        results = self.store.put_many(messages)
        self.rows += [(topic, r.queue_id, r.queue_offset, m.body) for r, m in zip(results, messages, strict=True)]
