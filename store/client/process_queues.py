"""`ProcessQueues`: the queues of one consumer, shared by its threads."""

from __future__ import annotations

import heapq
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from store.client.process_queue import Handful, ProcessQueue
from store.client.received_messages import Columns
from store.disk.opened import is_owned
from store.model.log_protocol import Positions


class TakenMessages(NamedTuple):
    queue: ProcessQueue
    handful: Handful


class ProcessQueues:
    """A consumer's queues, served round-robin. Thread-safe.

    Offsets of finished messages are committed before any thread takes more messages of their queue.
    """

    def __init__(self, commit: Callable[[Positions], None]) -> None:
        """commit: called with the new position of one queue. The lock is held then, so it must be quick."""
        self._commit = commit
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = threading.Condition(self._lock)
        self._pull: dict[ProcessQueue, Callable[[ProcessQueue], None]] = {}  # all queues not removed
        self._full: set[ProcessQueue] = set()
        self._turns: deque[ProcessQueue] = deque()
        self._in_turn: set[ProcessQueue] = set()
        self._later: list[tuple[float, int, ProcessQueue]] = []  # a heap, by the time of the queue's next retry
        self._numbers = count()
        self._until = -math.inf  # see `lease`
        self._waiters: deque[Callable[[], None]] = deque()
        self._is_closed = False
        self._process = os.getpid()

    # --- ownership -------------------------------------------------------------------------------------

    def add(self, queue: ProcessQueue, pull: Callable[[ProcessQueue], None]) -> None:
        """Add a queue. `pull` is called now, and whenever the queue was full and has room again. It must be quick."""
        with self._lock:
            self._pull[queue] = pull
        pull(queue)

    def stop(self, queue: ProcessQueue) -> None:
        """Hand out no more messages of a queue. Those in hand can still be finished."""
        with self._lock:
            queue.stop()

    def remove(self, queue: ProcessQueue) -> None:
        """Stop a queue, and do not commit its offsets any more."""
        with self._lock:
            self._remove(queue)

    def forget(self, resets: Callable[[], Positions]) -> Positions:
        """Call `resets`, and remove the queues that it returns.

        No offset of these queues is committed after the call.
        """
        with self._lock:
            positions = resets()
            for queue in [queue for queue in self._pull if queue.queue in positions]:
                self._remove(queue)
        return positions

    def in_hand(self, queue: ProcessQueue) -> list[Handful]:
        with self._lock:
            return queue.in_hand

    def lease(self, until: float) -> None:
        """Hand out messages only before `until` (`time.monotonic()` seconds), because then the queue locks expire."""
        with self._lock:
            self._until = until
            self._changed.notify_all()
            self._wake_one()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked process, in which another thread may hold the lock forever."""
        return os.getpid() != self._process

    @property
    def is_inside(self) -> bool:
        """Whether this is a signal handler that interrupted a method."""
        return is_owned(self._changed)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
            self._closed.notify_all()
            self._wake_one()

    def wait_closed(self, timeout: float | None) -> bool:
        with self._lock:
            return self._closed.wait_for(lambda: self._is_closed, timeout)

    # --- pulling ---------------------------------------------------------------------------------------

    def put(self, queue: ProcessQueue, columns: Columns) -> bool:
        """Add pulled messages. Return whether to continue pulling. If not, `pull` is called when there is room."""
        with self._lock:
            if queue.is_stopped or self._is_closed:
                return False
            queue.put(columns)
            self._line_up(queue)
            self._wake_one()
            if queue.is_full:
                self._full.add(queue)
            return not queue.is_full

    def passed(self, queue: ProcessQueue, end: int) -> bool:
        """Record that no more messages match before queue offset `end`. Return whether to continue pulling."""
        with self._lock:
            if queue.is_stopped or self._is_closed:
                return False
            before = queue.position
            queue.pulled = max(queue.pulled, end)
            self._acknowledge(queue, before)
            return queue not in self._full

    # --- consuming -------------------------------------------------------------------------------------

    def take(self, most: int, timeout: float = math.inf) -> TakenMessages | None:
        """Wait for messages, and return up to `most` of one queue. Return None after `timeout` seconds or `close`."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while not self._is_closed:
                now = time.monotonic()
                taken = self._next_handful(most, now)
                if taken is not None or now >= deadline:
                    return taken
                wake = min(deadline, self._later[0][0]) if self._later else deadline
                self._changed.wait(min(wake - now, threading.TIMEOUT_MAX))
        return None

    def take_or_call(self, most: int, tell: Callable[[], None]) -> TakenMessages | None:
        """Return messages if there are any. Otherwise return None.

        If None is returned, any thread calls `tell` once, when the caller should try again.
        """
        with self._lock:
            if self._is_closed:
                tell()
                return None
            taken = self._next_handful(most, time.monotonic())
            if taken is None:
                self._waiters.append(tell)
            return taken

    def done(self, taken: TakenMessages, count: int | None = None) -> None:
        """Acknowledge all messages of a handful, or only the first `count`."""
        queue = taken.queue
        with self._lock:
            before = queue.position
            queue.done(taken.handful, count)
            if queue not in self._pull:
                return
            self._acknowledge(queue, before)
            self._line_up(queue)
            pull = self._pull[queue] if queue in self._full and queue.is_half_empty else None
            if pull is not None:
                self._full.remove(queue)
        if pull is not None:
            pull(queue)

    def give_back(self, taken: TakenMessages, seconds: float) -> None:
        """Hand unfinished messages out again, after `seconds` at the earliest."""
        queue = taken.queue
        with self._lock:
            queue.give_back(taken.handful, time.monotonic() + seconds)
            self._line_up(queue)
            self._wake_one()

    # --- called with the lock held ---------------------------------------------------------------------

    def _remove(self, queue: ProcessQueue) -> None:
        queue.stop()
        self._pull.pop(queue, None)
        self._full.discard(queue)

    def _next_handful(self, most: int, now: float) -> TakenMessages | None:
        while self._later and self._later[0][0] <= now:
            self._line_up(heapq.heappop(self._later)[2])
        while self._turns and now < self._until:
            queue = self._turns.popleft()
            self._in_turn.discard(queue)
            handful = queue.take(most, now)
            self._line_up(queue)
            if handful is not None:
                if self._turns or self._later:  # another thread has to take more, or to wait for the next retry
                    self._wake_one()
                return TakenMessages(queue, handful)
        return None

    def _wake_one(self) -> None:
        self._changed.notify()
        while self._waiters:
            self._waiters.popleft()()

    def _line_up(self, queue: ProcessQueue) -> None:
        if queue.is_stopped or queue in self._in_turn:
            return
        at = queue.ready_at()
        if at <= time.monotonic():
            self._turns.append(queue)
            self._in_turn.add(queue)
        elif at < math.inf:
            heapq.heappush(self._later, (at, next(self._numbers), queue))

    def _acknowledge(self, queue: ProcessQueue, before: int) -> None:
        if queue.position != before:
            self._commit({queue.queue: queue.position})
