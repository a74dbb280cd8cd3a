"""Pulls the messages of a consumer's queues into its memory, as they come and while there is room."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from store.client.process_queue import ProcessQueue
from store.client.process_queues import ProcessQueues
from store.client.received_messages import COLUMNS, Columns, FewColumns
from store.files.figures import DELIVERED, HELD, Figure, Figures
from store.format.stored_message import StoredMessage
from store.model.errors import OffsetLost, OffsetOutOfRange, UnknownTopic
from store.model.log_protocol import Held, Log, MessageFilter, Queue, QueueRange, ReadSpec, Unreadable

_IDLE_SECONDS = 60.0
_FEW = 16
_LOOKED_AT = 1 << 16  # messages, between two that are acknowledged where none match
_logger = logging.getLogger("store")


@runtime_checkable
class ReadsFew(Protocol):
    """A log that can read a few messages in less time than `scan` takes."""

    def few(self, wanted: QueueRange) -> Sequence[StoredMessage] | None:
        """All messages of a published range; None where `scan` is to be asked."""


class PullFigures(NamedTuple):
    """delivered: milliseconds from a message's storing to its pull. held: how many requests are held."""

    delivered: Figure
    held: Figure

    @staticmethod
    def of(figures: Figures, topic: str, group: str) -> PullFigures:
        return PullFigures(*(figures.of(name, topic, group) for name in (DELIVERED, HELD)))


class Puller:
    """One thread's work, for queues that are read through one filter. Any thread may call `pull` and `stop`."""

    def __init__(
        self,
        log: Log,
        message_filter: MessageFilter,
        queues: ProcessQueues,
        max_bytes: int,
        figures: PullFigures,
        unreadable: Unreadable = "raw",
    ) -> None:
        """max_bytes: of the records that are read at once. unreadable: as of a `ReadSpec`."""
        self._log = log
        self._few = log.few if isinstance(log, ReadsFew) else None
        self._filter = message_filter
        self._spec = ReadSpec(COLUMNS, message_filter, max_bytes=max_bytes, unreadable=unreadable)
        self._queues = queues
        self._figures = figures
        self._asked: SimpleQueue[ProcessQueue | None] = SimpleQueue()
        self._held: Held | None = None
        self._waiting: dict[Queue, ProcessQueue] = {}  # those that are held, from where they were pulled up to

    def pull(self, queue: ProcessQueue) -> None:
        """Pull a queue from now on, until it is full or stopped."""
        self._ask(queue)

    def stop(self) -> None:
        """`run` comes to its end."""
        self._ask(None)

    def _ask(self, asked: ProcessQueue | None) -> None:
        self._asked.put(asked)
        if self._held is not None:
            self._held.wake()

    def run(self) -> None:
        """Until `stop`. Raises what reading raises: `CorruptRecord`, `UnreadableBody`, `StoreClosed`, ..."""
        is_over = False
        while not is_over:
            with self._log.hold({}, math.inf, self._filter, _IDLE_SECONDS) as held:
                self._held = held
                try:
                    self._pull(held)
                    is_over = True
                except UnknownTopic:
                    self._drop_all()

    def _pull(self, held: Held) -> None:
        while self._listen(held):
            found = next(held)
            if found is not None:
                self._answer(held, found)

    def _drop_all(self) -> None:
        """The topic was deleted: its queues are the rebalancer's to take over, should they be there again."""
        for queue in self._waiting.values():
            self._queues.stop(queue)
        self._waiting.clear()
        self._figures.held.set(0)

    def _listen(self, held: Held) -> bool:
        """Hold what was asked for; wait for that where nothing is held. False to end."""
        with suppress(Empty):
            while True:
                queue = self._asked.get(block=not self._waiting)
                if queue is None:
                    return False
                if not queue.is_stopped:  # or it took the place of one that was begun anew meanwhile
                    self._wait_for(held, queue)
        return True

    def _wait_for(self, held: Held, queue: ProcessQueue) -> None:
        self._waiting[queue.queue] = queue
        self._figures.held.set(len(self._waiting))
        held.again(queue.queue, queue.pulled)

    def _answer(self, held: Held, found: QueueRange) -> None:
        """Pull what a request was woken for, and hold another one where there is room."""
        queue = self._waiting.pop(found.queue)
        self._figures.held.set(len(self._waiting))
        if queue.is_stopped:
            return
        if not found.length and found.start != queue.pulled:
            queue.sent_to = found.start
            self._queues.stop(queue)
        elif self._fill(queue, found.end):
            self._wait_for(held, queue)

    def _fill(self, queue: ProcessQueue, end: int) -> bool:
        """Pull messages before queue offset `end`; whether there is room for more."""
        if not self._filter.columns:  # or else it is not known how many match
            end = min(end, queue.pulled + max(1, queue.room))
        elif self._filter.tags_codes is None:  # each is looked at: other queues have their turn, and none match, maybe
            end = min(end, queue.pulled + _LOOKED_AT)
        try:
            for columns in self._read(QueueRange(queue.queue, queue.pulled, end)):
                self._figures.delivered.add_all(np.maximum(time.time() * 1000 - columns.stored_at, 0))
                for piece in columns.pieces():
                    goes_on = self._queues.put(queue, piece)
                if not goes_on:
                    return False
        except (OffsetOutOfRange, UnknownTopic) as error:
            return self._corrected(queue, error)
        return self._queues.passed(queue, end)

    def _read(self, wanted: QueueRange) -> Iterator[Columns]:
        if self._few is not None and 0 < wanted.length <= _FEW and not self._filter.columns:
            messages = self._few(wanted)
            if messages is not None and sum(len(each.body) for each in messages[1:]) < self._spec.max_bytes:
                yield FewColumns(wanted.queue, messages)
                return
        for batch in self._log.scan(wanted, self._spec):
            yield Columns(wanted.queue, batch)

    def _corrected(self, queue: ProcessQueue, error: OffsetOutOfRange | UnknownTopic) -> bool:
        """Go on with the first message that is there, as RocketMQ's consumer does; False where the queue is gone, or
        ends before what was read of it: the rebalancer sees what it is now. Raises `OffsetLost` where the queue goes on
        before what is lost, as with a segment of the log."""
        bounds = self._log.bounds([queue.queue]).get(queue.queue)
        if bounds is None or bounds.max_offset < queue.pulled:
            self._queues.stop(queue)
            return False
        if queue.pulled < bounds.min_offset:
            _logger.warning(
                "%s: messages [%d, %d) were deleted before they were consumed; keep them longer (fileReservedTime)",
                queue.queue, queue.pulled, bounds.min_offset,
            )  # fmt: skip
            return self._queues.passed(queue, bounds.min_offset)
        if isinstance(error, OffsetLost):
            if queue.lost_at == queue.pulled:  # again: it was no change of the queue amid reading
                raise error
            queue.lost_at = queue.pulled
        return True
