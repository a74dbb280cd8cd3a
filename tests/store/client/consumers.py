from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from store import ConsumeFromWhere, Consumer, ConsumerConfig, Message, MessageStore, ReceivedMessage, StoreConfig
from store.directory.directory_group import DirectoryGroup
from store.model.log_protocol import Queue

QUEUES = 4
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
TOPIC = [Queue("t", queue_id) for queue_id in range(QUEUES)]


def opened(path: Path) -> MessageStore:
    """Topic t, 4 queues."""
    store = MessageStore.open(path / "mq", config=StoreConfig(mappedFileSizeCommitLog=1 << 16))
    store.create_topic("t", QUEUES)
    return store


def put(store: MessageStore, numbers: Sequence[int], **more: Any) -> None:
    """Put the numbers as bodies, round robin over the queues, tagged odd or even."""
    store.put_many([Message("t", str(n), queue_id=n % QUEUES, tags=("even", "odd")[n % 2], **more) for n in numbers])


def config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(**{"consume_from_where": FIRST, **settings})


class Seen:
    def __init__(self, react: Callable[[ReceivedMessage], None] = lambda message: None) -> None:
        self.lock = threading.Lock()
        self.messages: list[ReceivedMessage] = []
        self.calls: list[int] = []
        self.react = react

    def __call__(self, messages: Sequence[ReceivedMessage]) -> None:
        with self.lock:
            self.messages += messages
            self.calls.append(len(messages))
        for message in messages:
            self.react(message)

    @property
    def numbers(self) -> list[int]:
        with self.lock:
            return [int(message.body) for message in self.messages]

    def of_queue(self, queue_id: int) -> list[int]:
        with self.lock:
            return [int(message.body) for message in self.messages if message.queue_id == queue_id]


def has_done(consumer: Consumer, topic: Iterable[Queue]) -> set[int]:
    return set(consumer._member.committed({*topic} & {*consumer.assigned}).values())


def committed(store: MessageStore, group: str = "g") -> dict[Queue, int]:
    return DirectoryGroup(store.path, group).committed(TOPIC)
