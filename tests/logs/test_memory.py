"""The log in memory passes what any has to; so a new kind needs no more than that."""

from __future__ import annotations

import pytest

from store import Message
from store.any_log import Positions, Queue
from tests.logs.conformance import WriterTests
from tests.logs.memory import Memory, serve


class InMemory:
    def __init__(self) -> None:
        self.memory = Memory()
        self.address = serve(self.memory)
        self.create_topic = self.memory.create_topic

    def append(self, messages: list[Message]) -> None:
        self.memory.append(messages)

    def delete_oldest(self, queue: Queue) -> None:
        self.memory.delete(queue, 100)

    def commit(self, group: str, positions: Positions) -> Positions:
        return {}


class TestMemoryLog(WriterTests):
    @pytest.fixture
    def making(self) -> InMemory:
        return InMemory()
