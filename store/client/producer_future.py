"""What `Producer.send` answers: a future that costs next to nothing until somebody looks at it."""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple

from store.errors import PutStatus, StoreError, StoreForked
from store.format.layout import PROPERTY_UNIQ_KEY
from store.format.message import Message
from store.format.stored_message import offset_msg_ids
from store.publish.latch import Latch
from store.publish.putting import PutResult
from store.publish.results import AppendResult

# What a message is made of besides its topic, in the order of the fields of `Message`.
Row = tuple[Any, ...]
WIDTH = len(fields(Message)) - 1
_PROPERTIES = [field.name for field in fields(Message)][1:].index("properties")
_logger = logging.getLogger("store")


class Failure:
    """Why some messages are not in the log, each of which somebody may know of by its future."""

    def __init__(self, error: Exception, count: int = 1) -> None:
        """count: of messages."""
        self.error = error
        self._count = count
        self._told: set[tuple[str, int]] = set()  # topic and row: of each topic there is one lot at most

    @property
    def is_seen(self) -> bool:
        """Whether the future of each message was looked at."""
        return len(self._told) >= self._count

    def told(self, topic: str, row: int) -> Exception:
        """The error, for whoever looks at the future of this message."""
        self._told.add((topic, row))
        return self.for_one()

    def for_one(self) -> Exception:
        """The error, for one of those who are told: whoever raises one adds to its traceback."""
        if not isinstance(self.error, StoreError):
            return self.error
        error = copy.copy(self.error)
        error.__cause__ = self.error
        return error


class Placed(NamedTuple):
    """Where messages went. first: row of the first in `result`. store_host: for their ids."""

    result: AppendResult
    first: int
    store_host: tuple[bytes, int]


Outcome = Placed | Failure | PutResult
ALREADY_STORED = PutResult(PutStatus.ALREADY_STORED, -1, -1, -1, "")


class Lot:
    """Messages of one topic, on their way together; and later what became of them.

    since: `time.monotonic()` of the first. fields: WIDTH of each message, one after the other: an object for each would
    cost the garbage collector more time than all else takes. Empty when all is settled. The sender alone settles, range
    after range. sequences: of each message of a named producer, ascending.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._process = os.getpid()
        self.since = time.monotonic()
        self.fields: list[Any] = []
        self.sequences: list[int] = []
        self._ends: list[int] = []
        self._outcomes: list[Outcome] = []
        self._unique_keys: dict[int, str] = {}
        self._settled = Latch()
        self._turn = threading.RLock()  # of who watches: whoever settles waits for nobody
        self._watched: dict[int, Sent] = {}  # by row, that are not told yet

    def __len__(self) -> int:
        return len(self.fields) // WIDTH

    def columns(self, first: int, end: int) -> list[list[Any]]:
        """Each field of messages [first, end)."""
        some = self.fields[first * WIDTH : end * WIDTH]
        return [some[number::WIDTH] for number in range(WIDTH)]

    def has(self, row: int) -> bool:
        """Whether it is known what became of a row; of one that came when all was settled it never will."""
        return self.is_settled and not self.fields and row < self._ends[-1]

    def settle(self, end: int, outcome: Outcome) -> None:
        """Say what became of the rows behind those that were settled, up to `end`; of the last ones all are told."""
        self._ends.append(end)
        self._outcomes.append(outcome)
        if end < len(self):
            return
        if any(all_properties := self.fields[_PROPERTIES::WIDTH]):
            keys = (properties.get(PROPERTY_UNIQ_KEY) for properties in all_properties)
            self._unique_keys = {row: key for row, key in enumerate(keys) if key}
        self._settled.set()
        self.fields = []
        watched = list(self._watched.values())
        if any(map(_is_held, watched)):
            with suppress(RuntimeError):  # the system has no thread left, or the process ends
                threading.Thread(target=self._tell_all, args=(watched,), name="mq-told", daemon=False).start()
                return
        self._tell_all(watched)

    def watch(self, future: Sent) -> None:
        """Let a future be told, now or later."""
        with self._turn:
            if future.is_watched:  # by another thread, meanwhile
                return
            future.become()
        self._watched[future.row] = future
        if self.is_settled:  # before that, maybe; no other is told here: this thread may hold what waits for that one
            self._tell(future)

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set

    def wait(self, timeout: float | None) -> bool:
        """Until all is settled, at most `timeout` seconds; whether it is. Raises `StoreForked` where it never is."""
        if not self.is_settled and os.getpid() != self._process:
            raise StoreForked(
                f"a message of topic {self.topic}: sent by process {self._process}, and this is process {os.getpid()}, "
                "forked from it before it was appended; ask there what became of it"
            )
        return self._settled.wait(timeout)

    def outcome(self, row: int) -> PutResult | Failure:
        """What became of a message, when all is settled."""
        part = bisect_right(self._ends, row)
        outcome = self._outcomes[part]
        if not isinstance(outcome, Placed):
            return outcome
        placed = outcome.first + row - (self._ends[part - 1] if part else 0)
        result = outcome.result
        queue_id, queue_offset = result.queue_ids.item(placed), result.queue_offsets.item(placed)
        physical_offset = result.physical_offsets.item(placed)
        msg_id = self._unique_keys.get(row) or offset_msg_ids(*outcome.store_host, [physical_offset])[0]
        return PutResult(PutStatus.PUT_OK, queue_id, queue_offset, physical_offset, msg_id)

    def _tell_all(self, futures: Sequence[Sent]) -> None:
        for future in futures:
            try:
                self._tell(future)
            except BaseException:  # SystemExit, say: of what a future calls, and others wait to be told
                _logger.exception("what is called when a message of topic %s is settled failed", self.topic)

    def _tell(self, future: Sent) -> None:
        """Once, whichever thread comes first."""
        if self._watched.pop(future.row, None) is None:
            return
        outcome = self.outcome(future.row)
        if isinstance(outcome, Failure):
            future.set_exception(outcome.told(self.topic, future.row))
        else:
            future.set_result(outcome)


def _is_held(future: Sent) -> bool:
    """Whether a thread is amid what Python waits with, maybe where a signal's handler closes the producer."""
    is_free = future._condition.acquire(blocking=False)
    if is_free:
        future._condition.release()
    return not is_free or bool(future._waiters)


def already_stored(topic: str) -> Sent:
    """The future of a message that is not sent again."""
    lot = Lot(topic)
    lot.settle(1, ALREADY_STORED)
    return Sent(lot, 0)


class Sent(Future[PutResult]):
    """A `concurrent.futures.Future` of one message, made one when it is first used as such.

    Most are never looked at: until then it only knows where its message is. `cancel` does nothing, for a message that
    was handed over cannot be called back.

    What asks how it went takes no lock that who settles needs: a signal's handler may close the producer meanwhile.
    """

    is_watched = False

    def __init__(self, lot: Lot, row: int) -> None:
        self._lot = lot
        self.row = row

    def result(self, timeout: float | None = None) -> PutResult:
        """The message's `PutResult`; raises what it failed with, and `TimeoutError`. timeout: seconds."""
        outcome = self._outcome(timeout)
        if isinstance(outcome, Failure):
            raise outcome.told(self._lot.topic, self.row)
        return outcome

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What the message failed with, None where it did not; raises `TimeoutError`. timeout: seconds."""
        outcome = self._outcome(timeout)
        return outcome.told(self._lot.topic, self.row) if isinstance(outcome, Failure) else None

    def done(self) -> bool:
        return self._lot.is_settled

    def running(self) -> bool:
        return not self._lot.is_settled

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def _outcome(self, timeout: float | None) -> PutResult | Failure:
        if not self._lot.wait(timeout):
            raise TimeoutError
        return self._lot.outcome(self.row)

    def become(self) -> None:
        """What `Future` is at its beginning, running."""
        super().__init__()
        self.set_running_or_notify_cancel()
        self.is_watched = True

    def __getattr__(self, name: str) -> Any:
        """For what is missing: all that a future has, until somebody asks for any of it."""
        if self.is_watched:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self._lot.watch(self)
        return getattr(self, name)
