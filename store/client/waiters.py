"""What threads wait with for each other, where a signal's handler may come in between."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from store.publish.latch import LONGEST_WAIT_SECONDS


class Waiters:
    """Threads that wait for a change, as `threading.Condition` has them, but who came last is woken first: so what a
    few threads can do a few do, and those that are warm. And an `end` counts that a signal's handler brought about amid
    `wait` of its thread. All verbs are called with the lock.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiting: list[threading.Lock] = []
        self._is_over = False

    def wait(self, timeout: float) -> None:
        """Until another thread notifies this one, at most `timeout` seconds, or `LONGEST_WAIT_SECONDS`."""
        own = threading.Lock()
        own.acquire()
        self._waiting.append(own)
        state = self._lock._release_save()  # type: ignore[attr-defined]  # as `threading.Condition` does
        try:
            if not self._is_over:  # by what interrupted this, before it could be woken
                own.acquire(timeout=min(timeout, LONGEST_WAIT_SECONDS))
        finally:
            self._lock._acquire_restore(state)  # type: ignore[attr-defined]
            with suppress(ValueError):
                self._waiting.remove(own)

    def wait_for(self, condition: Callable[[], object], timeout: float = math.inf) -> bool:
        """Until `condition` answers true, at most `timeout` seconds; whether it did."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self) -> None:
        """Wake one."""
        if self._waiting:
            self._waiting.pop().release()

    def notify_all(self) -> None:
        """Wake all."""
        while self._waiting:
            self._waiting.pop().release()

    def end(self) -> None:
        """Wake all, and let nobody wait any more."""
        self._is_over = True
        self.notify_all()
