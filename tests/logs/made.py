from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest

from store import Message
from store.model.log_protocol import (
    Log,
    LogAddress,
    MessageFilter,
    Positions,
    Queue,
    QueueRange,
    ReadSpec,
)
from store.read.filters import EVERYTHING

LONG = 60.0  # seconds, for waits that must end early
A0, A1, B0 = Queue("a", 0), Queue("a", 1), Queue("b", 0)

ALL_A0 = QueueRange(A0, 0, 10)
# modules whose queues are renamed as the kind of log names them
TOLD = {__name__, *(f"tests.logs.{subject}" for subject in ("reading", "holding", "writing"))}


class Making(Protocol):
    address: LogAddress

    def create_topic(self, topic: str, queues: int) -> None: ...

    def append(self, messages: list[Message]) -> None: ...

    def delete_oldest(self, queue: Queue) -> None:
        """Delete some of the queue's 250 messages of 1,000 B, oldest first."""

    def commit(self, group: str, positions: Positions) -> Positions:
        """Commit offsets of a group; return them as the log will report them."""


@dataclass(frozen=True)
class InRegion:
    """Filters by a property, for which tag codes do not help."""

    region: str
    columns = ("properties",)
    tags_codes = None

    def match_codes(self, tags_codes: np.ndarray) -> np.ndarray:
        return np.ones(len(tags_codes), np.bool_)

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        assert batch.schema.names == ["properties"]
        return pa.array([self.match(None, dict(properties)) for properties in batch["properties"].to_pylist()])

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        return properties.get("region") == self.region


def messages(queue: Queue, numbers: range, size: int = 0) -> list[Message]:
    """Bodies are the numbers; tags A and B in turn, regions eu, us and ap."""
    return [
        Message(
            queue.topic,
            str(number).encode().ljust(size, b"."),
            queue_id=queue.queue_id,
            tags="AB"[number % 2],
            keys=(f"k{number}",),
            properties={"region": ("eu", "us", "ap")[number % 3]},
        )
        for number in numbers
    ]


def numbers(log: Log, wanted: QueueRange, **spec: Any) -> list[int]:
    return [int(body) for batch in scan(log, wanted, **spec) for body in batch["body"].to_pylist()]


def scan(
    log: Log,
    wanted: QueueRange,
    columns: tuple[str, ...] = ("body",),
    message_filter: MessageFilter = EVERYTHING,
    **more: Any,
) -> list[pa.RecordBatch]:
    return list(log.scan(wanted, ReadSpec(columns, message_filter, **more)))


class LogKind:
    queue: Callable[[str, int], Queue] = staticmethod(Queue)
    """How this kind of log names a queue."""

    @pytest.fixture
    def making(self) -> Making:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a0, a1, b0 = (self.queue(queue.topic, queue.queue_id) for queue in (A0, A1, B0))
        names = {"A0": a0, "A1": a1, "B0": b0, "ALL_A0": QueueRange(a0, 0, 10)}
        for module in {__name__, *(kind.__module__ for kind in type(self).__mro__)} & TOLD:
            for name in names.keys() & vars(sys.modules[module]).keys():
                monkeypatch.setattr(sys.modules[module], name, names[name])

    @pytest.fixture
    def log(self, making: Making) -> Iterator[Log]:
        """Topic a: 10 messages in queue 0, none in queue 1; topic b: 3."""
        making.create_topic("a", 2)
        making.create_topic("b", 1)
        making.append([*messages(A0, range(10)), *messages(B0, range(3))])
        with making.address.open() as it:
            yield it
