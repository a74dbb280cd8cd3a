"""`Puller`: pulls a consumer's queues into memory while they have room."""

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
from store.disk.figures import DELIVERED, HELD, Figure, Figures
from store.format.stored_message import StoredMessage
from store.model.errors import OffsetLost, OffsetOutOfRange, UnknownTopic
from store.model.log_protocol import Held, Log, MessageFilter, Queue, QueueRange, ReadSpec, Unreadable

_IDLE_SECONDS = 60.0
_FEW = 16
_MOST_SCANNED = 1 << 16  # messages to read between two commits if none match
_logger = logging.getLogger("store")


@runtime_checkable
class ReadsFew(Protocol):
    """A log that can read a few messages one by one, which is faster than `scan`."""

    def few(self, wanted: QueueRange) -> Sequence[StoredMessage] | None:
        """Return all messages of a published range, or None if `scan` is faster."""


class PullFigures(NamedTuple):
    """Metrics of pulling. delivered: ms from storing a message to pulling it. held: the number of held requests."""

    delivered: Figure
    held: Figure

    @staticmethod
    def of(figures: Figures, topic: str, group: str) -> PullFigures:
        return PullFigures(*(figures.of(name, topic, group) for name in (DELIVERED, HELD)))


class Puller:
    """Pulls the queues of one topic, all with the same filter.

    One thread calls `run`. The methods `pull` and `stop` are thread-safe.
    """

    def __init__(
        self,
        log: Log,
        message_filter: MessageFilter,
        queues: ProcessQueues,
        max_bytes: int,
        figures: PullFigures,
        unreadable: Unreadable = "raw",
    ) -> None:
        self._log = log
        self._few = log.few if isinstance(log, ReadsFew) else None
        self._filter = message_filter
        self._spec = ReadSpec(COLUMNS, message_filter, max_bytes=max_bytes, unreadable=unreadable)
        self._queues = queues
        self._figures = figures
        self._asked: SimpleQueue[ProcessQueue | None] = SimpleQueue()
        self._held: Held | None = None
        self._waiting: dict[Queue, ProcessQueue] = {}  # the queues for which a request is held

    def pull(self, queue: ProcessQueue) -> None:
        self._ask(queue)

    def stop(self) -> None:
        self._ask(None)

    def _ask(self, asked: ProcessQueue | None) -> None:
        self._asked.put(asked)
        if self._held is not None:
            self._held.wake()

    def run(self) -> None:
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
        for queue in self._waiting.values():  # if the topic is recreated, the rebalancer restarts them
            self._queues.stop(queue)
        self._waiting.clear()
        self._figures.held.set(0)

    def _listen(self, held: Held) -> bool:
        with suppress(Empty):
            while True:
                queue = self._asked.get(block=not self._waiting)
                if queue is None:
                    return False
                if not queue.is_stopped:  # else it would replace its restarted successor in `_waiting`
                    self._wait_for(held, queue)
        return True

    def _wait_for(self, held: Held, queue: ProcessQueue) -> None:
        self._waiting[queue.queue] = queue
        self._figures.held.set(len(self._waiting))
        held.again(queue.queue, queue.pulled)

    def _answer(self, held: Held, found: QueueRange) -> None:
        queue = self._waiting.pop(found.queue)
        self._figures.held.set(len(self._waiting))
        if queue.is_stopped:
            return
        if not found.length and found.start != queue.pulled:
            queue.redirected_to = found.start
            self._queues.stop(queue)
        elif self._fill(queue, found.end):
            self._wait_for(held, queue)

    def _fill(self, queue: ProcessQueue, end: int) -> bool:
        if not self._filter.columns:  # all messages match
            end = min(end, queue.pulled + max(1, queue.room))
        elif self._filter.tags_codes is None:  # the filter reads each message, so pause for other queues and a commit
            end = min(end, queue.pulled + _MOST_SCANNED)
        try:
            for columns in self._read(QueueRange(queue.queue, queue.pulled, end)):
                self._figures.delivered.add_all(np.maximum(time.time() * 1000 - columns.stored_at, 0))
                for piece in columns.pieces():
                    has_room = self._queues.put(queue, piece)
                if not has_room:
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
        """Skip to the first message that exists, as RocketMQ's consumer does. Return whether to continue pulling.

        If the queue was deleted or ends before the pulled offset, stop it for the rebalancer to restart.
        """
        bounds = self._log.bounds([queue.queue]).get(queue.queue)
        if bounds is None or bounds.max_offset < queue.pulled:
            self._queues.stop(queue)
            return False
        if queue.pulled < bounds.min_offset:
            _logger.warning(
                "%s: messages [%d, %d) were deleted before they were consumed. Keep messages longer: raise "
                "fileReservedTime",
                queue.queue, queue.pulled, bounds.min_offset,
            )  # fmt: skip
            return self._queues.passed(queue, bounds.min_offset)
        if isinstance(error, OffsetLost):
            if queue.lost_at == queue.pulled:  # the second failure here, so not a concurrent deletion
                raise error
            queue.lost_at = queue.pulled
        return True
