"""`SendFuture`, which `Producer.send` returns, and `TopicBatch`, the messages that are appended with it."""

from __future__ import annotations

import copy
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import fields
from typing import Any, NamedTuple

from store.append.placing import AppendResult
from store.append.putting import PutResult
from store.format.layout import PROPERTY_UNIQ_KEY
from store.format.message import Message
from store.format.stored_message import offset_msg_ids
from store.model.errors import PutStatus, StoreError, StoreForked

# The fields of a `Message` without its topic.
Row = tuple[Any, ...]
WIDTH = len(fields(Message)) - 1
_PROPERTIES = [field.name for field in fields(Message)][1:].index("properties")


class Failure:
    """The error of a failed append."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.is_raised = False

    def to_raise(self) -> BaseException:
        """Return a copy, because each `raise` extends an error's traceback."""
        self.is_raised = True
        if not isinstance(self._error, StoreError):
            return self._error
        error = copy.copy(self._error)
        error.__cause__ = self._error
        return error


class PlacedRows(NamedTuple):
    """Where the rows of one append are stored.

    first: index in `result` of the first row. store_host: IP address and port of the store.
    """

    result: AppendResult
    first: int
    store_host: tuple[bytes, int]


Outcome = PlacedRows | Failure | PutResult
ALREADY_STORED = PutResult(PutStatus.ALREADY_STORED, -1, -1, -1, "")


class TopicBatch:
    """Messages of one topic that are appended together, and later their outcomes.

    fields: the fields of all messages in one flat list, because an object for each message would slow the garbage
    collector. Empty when settled.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.since = time.monotonic()
        self.fields: list[Any] = []
        self.sequences: list[int] = []
        self.settled: Future[None] = Future()
        self.settled.set_running_or_notify_cancel()  # prevents cancelling
        self.is_settled = False
        self._process = os.getpid()
        self._ends: list[int] = []
        self._outcomes: list[Outcome] = []
        self._unique_keys: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.fields) // WIDTH

    def columns(self, first: int, end: int) -> list[list[Any]]:
        some = self.fields[first * WIDTH : end * WIDTH]
        return [some[number::WIDTH] for number in range(WIDTH)]

    def settle(self, end: int, outcome: Outcome) -> None:
        """Record the outcome of the unsettled rows before row `end`."""
        self._ends.append(end)
        self._outcomes.append(outcome)
        if end < len(self):
            return
        if any(all_properties := self.fields[_PROPERTIES::WIDTH]):
            keys = (properties.get(PROPERTY_UNIQ_KEY) for properties in all_properties)
            self._unique_keys = {row: key for row, key in enumerate(keys) if key}
        self.fields = []
        self.is_settled = True
        self.settled.set_result(None)

    def wait(self, timeout: float | None) -> None:
        """Wait until all outcomes are known.

        Raises `TimeoutError`, and `StoreForked` in a process that was forked before they were known.
        """
        if self.is_settled:
            return
        if os.getpid() != self._process:
            raise StoreForked(
                f"A message of topic {self.topic} was sent by process {self._process}, and was not appended before "
                f"that process forked this one ({os.getpid()}). Ask its future in process {self._process}"
            )
        self.settled.result(timeout)

    def outcome(self, row: int) -> PutResult | Failure:
        part = bisect_right(self._ends, row)
        outcome = self._outcomes[part]
        if not isinstance(outcome, PlacedRows):
            return outcome
        placed = outcome.first + row - (self._ends[part - 1] if part else 0)
        result = outcome.result
        queue_id, queue_offset = result.queue_ids.item(placed), result.queue_offsets.item(placed)
        physical_offset = result.physical_offsets.item(placed)
        msg_id = self._unique_keys.get(row) or offset_msg_ids(*outcome.store_host, [physical_offset])[0]
        return PutResult(PutStatus.PUT_OK, queue_id, queue_offset, physical_offset, msg_id)


class SendFuture:
    """The outcome of one message. It can be awaited, but not cancelled, because a sent message cannot be withdrawn."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: TopicBatch, row: int) -> None:
        self._batch = batch
        self._row = row

    def result(self, timeout: float | None = None) -> PutResult:
        """Wait up to `timeout` seconds, and return the outcome. Raises the append's error, and `TimeoutError`."""
        outcome = self._outcome(timeout)
        if isinstance(outcome, Failure):
            raise outcome.to_raise()
        return outcome

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait up to `timeout` seconds, and return the append's error, or None. Raises `TimeoutError`."""
        outcome = self._outcome(timeout)
        return outcome.to_raise() if isinstance(outcome, Failure) else None

    def done(self) -> bool:
        return self._batch.is_settled

    def add_done_callback(self, call: Callable[[SendFuture], object]) -> None:
        """Call `call` with this future: now if it is done, otherwise later in the producer's thread, which `call` must
        not block.

        Errors of `call` are logged.
        """
        self._batch.settled.add_done_callback(lambda _: call(self))

    def __await__(self) -> Generator[Any, None, PutResult]:
        from asyncio import wrap_future  # slow to import

        yield from wrap_future(self._batch.settled).__await__()
        return self.result()

    def _outcome(self, timeout: float | None) -> PutResult | Failure:
        self._batch.wait(timeout)
        return self._batch.outcome(self._row)


def already_stored(topic: str) -> SendFuture:
    batch = TopicBatch(topic)
    batch.settle(1, ALREADY_STORED)
    return SendFuture(batch, 0)
