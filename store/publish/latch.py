"""What threads wait with for an end, where a signal's handler may come in between."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress

# A signal that comes as a wait begins, or is given to another thread, ends no wait: Python calls its handler, in the
# first thread, when that goes on. So no wait is longer.
LONGEST_WAIT_SECONDS = 1.0


class Latch:
    """A `threading.Event` that is set once. Who waits holds nothing that who sets it needs, which may be a signal's
    handler amid `wait` of its thread."""

    def __init__(self) -> None:
        self.is_set = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def set(self) -> None:
        """All that wait go on."""
        self.is_set = True
        self._pass_on()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set, at most `timeout` seconds; whether it is."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set and (left := deadline - time.monotonic()) > 0:
            try:
                self._closed.acquire(timeout=min(left, LONGEST_WAIT_SECONDS))
            finally:
                self._pass_on()
        return self.is_set

    def _pass_on(self) -> None:
        if self.is_set:
            with suppress(RuntimeError):  # another one did
                self._closed.release()
