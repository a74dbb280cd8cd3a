"""What threads wait with for an end, where a signal's handler may come in between."""

from __future__ import annotations

import threading
from contextlib import suppress


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
        """Until it is set, at most `timeout` seconds; whether it is.

        Two `finally`, for one may be interrupted, and others wait.
        """
        try:
            try:
                self._closed.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))
            finally:
                self._pass_on()
        finally:
            self._pass_on()
        return self.is_set

    def _pass_on(self) -> None:
        if self.is_set:
            with suppress(RuntimeError):  # another one did
                self._closed.release()
