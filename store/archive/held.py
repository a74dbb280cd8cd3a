"""Queues that are waited for where nothing notifies: looked at every now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType

from store.model.log_protocol import Bounds, Positions, Queue, QueueRange

POLL_SECONDS = 0.5  # between two looks


class PolledHeld:
    """A `Held`. All that arrives may match."""

    def __init__(
        self,
        bounds: Callable[[Iterable[Queue]], dict[Queue, Bounds]],
        begin: Positions,
        deadline: float,
        idle: float,
    ) -> None:
        """bounds, begin, deadline, idle: as `Log` has them."""
        self._bounds = bounds
        self._held = dict(begin)
        self._deadline = deadline
        self._idle = idle
        self._woken = threading.Event()
        self._ready: list[QueueRange] = []

    def again(self, queue: Queue, position: int) -> None:
        self._ready = [found for found in self._ready if found.queue != queue]
        if time.monotonic() < self._deadline:
            self._held[queue] = position

    def wake(self) -> None:
        self._woken.set()

    def __iter__(self) -> PolledHeld:
        return self

    def __next__(self) -> QueueRange | None:
        quiet = time.monotonic() + self._idle
        while self._held or self._ready:
            if self._woken.is_set():
                self._woken.clear()
                return None
            if self._ready:
                return self._ready.pop(0)
            is_last = time.monotonic() >= self._deadline  # what was there until then is given still
            for queue, has in self._bounds(list(self._held)).items():
                if has.max_offset > self._held[queue]:
                    self._ready.append(QueueRange(queue, self._held.pop(queue), has.max_offset))
            if self._ready:
                continue
            now = time.monotonic()
            if is_last:
                break
            if now >= quiet:
                return None
            self._woken.wait(max(0.0, min(quiet, self._deadline, now + POLL_SECONDS) - now))
        raise StopIteration

    def __enter__(self) -> PolledHeld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.clear()
        self._ready.clear()
