"""A store that is served to RocketMQ's own clients, and helpers for requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from store import MessageStore
from tests.rocketmq.harness import Clients, HarnessError, Json

SECONDS = 120.0


class Served(NamedTuple):
    store: MessageStore
    clients: Clients


def rows(store: MessageStore, topic: str) -> list[Json]:
    columns = ("body", "tags", "keys", "properties", "queueId", "queueOffset", "msgId", "bornHost")
    return [row for batch in store.to_arrow(topic, columns) for row in batch.to_pylist()]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def consumed(clients: Clients, count: int) -> list[Json]:
    found: list[Json] = []
    while len(found) < count:
        line = next(clients)
        assert line["kind"] == "consumed", line
        found.append(line)
    return found


def committed(store: MessageStore, group: str, topic: str) -> list[int | None]:
    return [store.consumer_offset(group, topic, queue) for queue in range(store.topics()[topic])]


def ends(store: MessageStore, topic: str) -> list[int | None]:
    return [store.max_offset(topic, queue) for queue in range(store.topics()[topic])]


def left(clients: Clients, name: str) -> None:
    clients.ask("leave", id=name)
    for line in clients:
        if line["kind"] == "left":
            return


def mqadmin(clients: Clients, *words: str) -> str:
    clients.ask("mqadmin", words=words)
    for line in clients:
        if line["kind"] == "failed":
            raise HarnessError(f"{words}: {line['why']}")
        if line["kind"] == "written":
            return str(line["text"])
    raise AssertionError


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]
