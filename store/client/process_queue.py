"""`ProcessQueue`: the pulled, unacknowledged messages of one queue, as in RocketMQ."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from store.client.received_messages import Columns, Messages
from store.model.log_protocol import Queue

_NEVER = math.inf


@dataclass(eq=False, slots=True)
class Handful:
    """Messages that were handed out together: to one call of the listener, or to one thread that iterates.

    since: the `time.monotonic()` at which they were handed out; infinity while they wait for a retry, and after they
    are finished.
    """

    messages: Messages
    since: float = field(default=_NEVER, init=False)
    is_done: bool = field(default=False, init=False)
    is_logged: bool = field(default=False, init=False)

    @property
    def begin(self) -> int:
        return self.messages.offset

    def tried(self) -> None:
        self.messages = self.messages.tried()


class ProcessQueue:
    """The pulled, unacknowledged messages of one queue.

    They are handed out in order of offset, and may be finished in any order.

    Not thread-safe. No method blocks or reads a clock; times are `time.monotonic()` seconds.
    """

    def __init__(self, queue: Queue, begin: int, max_count: int, max_bytes: int) -> None:
        self.queue = queue
        self.pulled = begin  # all matching messages before it were pulled
        self.redirected_to: int | None = None  # queue offset to continue at, if the log requested one
        self.lost_at: int | None = None  # queue offset of a message missing from the log
        self.is_stopped = False
        self.count = 0
        self.bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._cached: deque[Messages] = deque()
        self._handed: deque[Handful] = deque()  # by offset, from the first unfinished one
        self._again: deque[tuple[float, Handful]] = deque()  # with the earliest time of a retry

    @property
    def position(self) -> int:
        """The offset to commit: that of the first unfinished message."""
        if self._handed:
            return self._handed[0].begin
        return self._cached[0].offset if self._cached else self.pulled

    @property
    def is_full(self) -> bool:
        """Whether to pause pulling.

        Finished messages after an unfinished one count, too. This limits how many messages are delivered twice, as
        RocketMQ's consumeConcurrentlyMaxSpan does.
        """
        return self.count >= self._max_count or self.bytes >= self._max_bytes

    @property
    def is_half_empty(self) -> bool:
        return 2 * self.count <= self._max_count and 2 * self.bytes <= self._max_bytes

    @property
    def room(self) -> int:
        return max(0, self._max_count - self.count)

    @property
    def in_hand(self) -> list[Handful]:
        return [handful for handful in self._handed if handful.since < _NEVER]

    def put(self, columns: Columns) -> None:
        messages = Messages(columns, 0, len(columns))
        self._cached.append(messages)
        self.pulled = columns.queue_offset[-1] + 1
        self._weigh(messages, 1)

    def ready_at(self) -> float:
        """Return the earliest time at which `take` returns messages; 0 for now, infinity if none wait."""
        if self._cached:
            return 0.0
        return min((at for at, _ in self._again), default=_NEVER)

    def take(self, most: int, now: float) -> Handful | None:
        """Hand out a handful that is due for a retry, else up to `most` new messages. Return None if there are none."""
        for number, (at, handful) in enumerate(self._again):
            if at <= now:
                del self._again[number]
                handful.since = now
                return handful
        if not self._cached:
            return None
        messages, others = self._cached[0].cut(min(most, len(self._cached[0])))
        handful = Handful(messages)
        handful.since = now
        self._handed.append(handful)  # before it leaves the cache, so that an interrupt cannot advance `position`
        if len(others):
            self._cached[0] = others
        else:
            self._cached.popleft()
        return handful

    def done(self, handful: Handful, count: int | None = None) -> None:
        """Finish a handful, or only its first `count` messages. The others then stay in hand."""
        if count is not None and count < len(handful.messages):
            first, handful.messages = handful.messages.cut(count)
            self._weigh(first, -1)
            return
        handful.is_done, handful.since = True, _NEVER
        while self._handed and self._handed[0].is_done:
            self._weigh(self._handed.popleft().messages, -1)

    def give_back(self, handful: Handful, at: float) -> None:
        """Take back a handful, to retry it at the time `at` or later."""
        handful.since, handful.is_logged = _NEVER, False
        self._again.append((at, handful))

    def stop(self) -> None:
        """Discard all messages that are not in hand."""
        self.is_stopped = True
        if self._cached:
            self.pulled = self._cached[0].offset
        for messages in self._cached:
            self._weigh(messages, -1)
        self._cached.clear()
        self._again.clear()

    def _weigh(self, messages: Messages, sign: int) -> None:
        self.count += sign * len(messages)
        self.bytes += sign * messages.body_bytes


class OrderlyQueue(ProcessQueue):
    """A queue that hands out one handful at a time, and retries it before the next."""

    def ready_at(self) -> float:
        if self._again:
            return self._again[0][0]
        return _NEVER if self._handed else super().ready_at()

    def take(self, most: int, now: float) -> Handful | None:
        return super().take(most, now) if self.ready_at() <= now else None
