"""What of one queue a consumer has in hand (RocketMQ's ProcessQueue): pulled, handed out, done; the lowest not done."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from store.client.received_messages import Columns, Messages
from store.model.log_protocol import Queue

_NEVER = math.inf


@dataclass(eq=False, slots=True)
class Handful:
    """Messages that go out together. since: when they did, `time.monotonic()` seconds; infinity: they are not out.

    is_told: whether a warning has said that it hangs.
    """

    messages: Messages
    since: float = field(default=_NEVER, init=False)
    is_done: bool = field(default=False, init=False)
    is_told: bool = field(default=False, init=False)

    @property
    def begin(self) -> int:
        """Queue offset of the first message that is not done."""
        return self.messages.offset

    def tried(self) -> None:
        """It was in vain: each message counts one more try."""
        self.messages = self.messages.tried()


class ProcessQueue:
    """One queue of a consumer. Handfuls go out in order of offset, several at a time, and are done in any order.

    Nothing in here waits, or looks at a clock: `now` is `time.monotonic()` seconds. One thread at a time.
    """

    def __init__(self, queue: Queue, begin: int, max_count: int, max_bytes: int) -> None:
        """begin: the queue offset to pull from. max_count, max_bytes: see `is_full`."""
        self.queue = queue
        self.pulled = begin  # queue offset up to which this knows all messages that match
        self.sent_to: int | None = None  # queue offset, where the log says to go on there
        self.lost_at: int | None = None  # queue offset, at which a message seemed lost that the queue says is there
        self.is_stopped = False
        self.count = 0
        self.bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._cached: deque[Messages] = deque()
        self._handed: deque[Handful] = deque()  # by offset, from the first that is not done
        self._again: deque[tuple[float, Handful]] = deque()  # given back, with the time from which they may go out

    @property
    def position(self) -> int:
        """The lowest offset that is not done: what is to be acknowledged."""
        if self._handed:
            return self._handed[0].begin
        return self._cached[0].offset if self._cached else self.pulled

    @property
    def is_full(self) -> bool:
        """Whether to pull no more for now: `count` messages that are not acknowledged, or their bodies, are enough.

        What was done behind a message that is not counts as well, or one that hangs would have ever more come twice
        after a restart (RocketMQ's consumeConcurrentlyMaxSpan).
        """
        return self.count >= self._max_count or self.bytes >= self._max_bytes

    @property
    def is_half_empty(self) -> bool:
        """Whether to pull on after it was full."""
        return 2 * self.count <= self._max_count and 2 * self.bytes <= self._max_bytes

    @property
    def room(self) -> int:
        """How many messages to pull at most."""
        return max(0, self._max_count - self.count)

    @property
    def in_hand(self) -> list[Handful]:
        """What is handed out, and neither done nor given back."""
        return [handful for handful in self._handed if handful.since < _NEVER]

    def put(self, columns: Columns) -> None:
        """The next messages that were pulled, all at or behind `pulled`."""
        messages = Messages(columns, 0, len(columns))
        self._cached.append(messages)
        self.pulled = columns.queue_offset[-1] + 1
        self._weigh(messages, 1)

    def ready_at(self) -> float:
        """When `take` will give something: a time, 0 for at once, infinity where nothing is left."""
        if self._cached:
            return 0.0
        return min((at for at, _ in self._again), default=_NEVER)

    def take(self, most: int, now: float) -> Handful | None:
        """Up to `most` messages, in hand from now on; None where there are none."""
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
        self._handed.append(handful)  # while it is cached still: an interrupt in between acknowledges nothing
        if len(others):
            self._cached[0] = others
        else:
            self._cached.popleft()
        return handful

    def done(self, handful: Handful, count: int | None = None) -> None:
        """All of what was taken is done, or the first `count` messages, while the others stay in hand."""
        if count is not None and count < len(handful.messages):
            first, handful.messages = handful.messages.cut(count)
            self._weigh(first, -1)
            return
        handful.is_done, handful.since = True, _NEVER
        while self._handed and self._handed[0].is_done:
            self._weigh(self._handed.popleft().messages, -1)

    def give_back(self, handful: Handful, at: float) -> None:
        """What was taken was not done, and comes again, not before `at`."""
        handful.since, handful.is_told = _NEVER, False
        self._again.append((at, handful))

    def stop(self) -> None:
        """Hand out nothing more: what is not in hand is as if it had never been pulled."""
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
    """One whose messages are done in order: one handful is out at a time, and what was given back is the next."""

    def ready_at(self) -> float:
        if self._again:
            return self._again[0][0]
        return _NEVER if self._handed else super().ready_at()

    def take(self, most: int, now: float) -> Handful | None:
        return super().take(most, now) if self.ready_at() <= now else None
