"""`Sender`: the thread that appends a producer's messages and completes their futures."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from store.api.message_store import MessageStore
from store.api.writer import Append
from store.client.cluster_appends import ClusterAppends, MessageAppend
from store.client.producer_buffer import Buffer
from store.client.producer_future import Failure, Outcome, PlacedRows, TopicBatch
from store.client.sent_sequences import SentSequences
from store.disk.figures import SEND_FAILED, SENT
from store.format.encoding import MANY, NotColumns, table_of
from store.format.message import Message
from store.model.errors import (
    InvalidArgument,
    InvalidColumns,
    MessageRefused,
    StoreClosed,
    StoreLocked,
    UnknownQueue,
    UnknownTopic,
)

_logger = logging.getLogger("store")
_REFUSALS = (MessageRefused, InvalidColumns, InvalidArgument, UnknownQueue)  # errors of one message, not of the store

_MOST_FAILURES = 100  # kept for `raise_unseen`

# A batch, and rows [first, end) of it.
_Part = tuple[TopicBatch, int, int]


class Sender(threading.Thread):
    """Appends all buffered messages in one append, then those that were buffered during it."""

    def __init__(
        self,
        what: str,
        store: MessageStore | ClusterAppends,
        buffer: Buffer,
        sequences: SentSequences | None,
        *,
        owns: bool,
    ) -> None:
        super().__init__(name="mq-producer", daemon=True)
        self.what = what
        self._store = store
        self._buffer = buffer
        self._sequences = sequences
        self._fatal: Exception | None = None  # the failed append that ended a named producer
        self._owns = owns
        self._failures: list[Failure] = []
        self._taken: Sequence[TopicBatch] = ()

    def run(self) -> None:
        try:
            self._append_batches()
        except BaseException as error:  # noqa: BLE001  the futures and `raise_unseen` raise it
            self._fail_remaining(error)
        finally:
            self._buffer.end()
        for opened in (self._sequences, self._store if self._owns else None):
            try:
                if opened is not None:
                    opened.close()
            except Exception as error:  # noqa: BLE001  `raise_unseen` raises it
                self._failures.append(Failure(error))

    def _append_batches(self) -> None:
        while (batches := self._buffer.take()) is not None:
            self._taken = batches
            self._append_or_split([(batch, 0, len(batch)) for batch in batches])
            self._taken = ()
            if self._sequences is not None and self._fatal is None:
                try:
                    self._sequences.persist_if_due()
                except Exception as error:  # noqa: BLE001  `raise_unseen` raises it
                    self._failed(error)

    def _append_or_split(self, parts: Sequence[_Part]) -> None:
        outcomes: Sequence[Outcome]
        try:
            if self._fatal is not None:
                raise self._fatal
            outcomes = self._append(parts)
        except Exception as error:  # noqa: BLE001  the futures raise it
            is_refused, count = isinstance(error, _REFUSALS), sum(end - first for _, first, end in parts)
            if (is_refused and count > 1) or (isinstance(error, UnknownTopic) and len(parts) > 1):
                for half in _halves(parts):  # split until the refused message fails alone
                    self._append_or_split(half)
                return
            outcomes = [self._failed(error)] * len(parts)
            if not is_refused:
                self._close_if_named(error)
        for (batch, _, end), outcome in zip(parts, outcomes, strict=True):
            batch.settle(end, outcome)
            name = SEND_FAILED if isinstance(outcome, Failure) else SENT
            self._store.figures.of(name, batch.topic).add((time.monotonic() - batch.since) * 1000)

    def _append(self, parts: Sequence[_Part]) -> list[PlacedRows]:
        append, firsts, count = self._store.begin(), [], 0
        for batch, first, end in parts:
            _add(append, batch.topic, batch.columns(first, end))
            firsts.append(count)
            count += end - first
        reached = {batch.topic: batch.sequences[end - 1] for batch, _, end in parts if batch.sequences}
        if self._sequences is not None:
            append.add_messages([self._sequences.record(reached)])
        result, host = append.publish(), self._store.config.store_host
        if self._sequences is not None:
            self._sequences.reach(reached, int(result.physical_offsets[0]))
        return [PlacedRows(result, first, host) for first in firsts]

    def _fail_remaining(self, error: BaseException) -> None:
        """Settle all remaining messages, so that no future waits forever."""
        failure = self._failed(error)
        for batch in (*self._taken, *self._buffer.abandon()):
            if not batch.is_settled:
                batch.settle(len(batch), failure)

    def _close_if_named(self, error: Exception) -> None:
        # The log records only the highest sequence, so after a later append the failed messages would count as stored.
        if self._sequences is not None and self._fatal is None:
            self._fatal = error
            self._buffer.close(
                StoreClosed(
                    f"{self.what}: an append failed ({error}), so no later message was appended. Open a new producer "
                    "with this name: it continues after the last stored sequence"
                )
            )

    def _failed(self, error: BaseException) -> Failure:
        traceback.clear_frames(error.__traceback__)  # they would keep the messages in memory
        failure = Failure(error)
        self._failures = [each for each in self._failures if not each.is_raised]
        if len(self._failures) < _MOST_FAILURES:
            self._failures.append(failure)
        else:
            _logger.warning("%s: %s", self.what, error)
        return failure

    def raise_unseen(self) -> None:
        """Raise the first error that no future has raised, with the other such errors as notes."""
        failures, self._failures = self._failures, []
        unseen = [failure for failure in failures if not failure.is_raised]
        if unseen:
            error = unseen[0].to_raise()
            for failure in unseen[1:]:
                error.add_note(f"another append failed: {failure.to_raise()}")
            raise error

    def must_be_another_thread(self) -> None:
        if threading.current_thread() is self:
            raise StoreLocked(
                f"{self.what}: a future's callback called close in the thread that appends, which cannot wait for "
                "its own end. Call close from another thread"
            )

    def finish(self) -> None:
        self._buffer.close()
        self.join()


def _add(append: Append | MessageAppend, topic: str, columns: Sequence[Sequence[Any]]) -> None:
    if len(columns[0]) >= MANY:
        with suppress(NotColumns):
            append.add(topic, table_of(columns))
            return
    append.add_messages([Message(topic, *row) for row in zip(*columns, strict=True)])


def _halves(parts: Sequence[_Part]) -> list[list[_Part]]:
    if len(parts) > 1:
        return [[part] for part in parts]
    ((batch, first, end),) = parts
    middle = (first + end) // 2
    return [[(batch, first, middle)], [(batch, middle, end)]]
