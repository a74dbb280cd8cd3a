"""Who waits for the turn to deliver, and tells when the one that has it does nothing.

The system takes the turn from a process that ends, but not from one that is stopped, by a signal or in a debugger. What
is due waits then, and nobody would know why.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from store.delays.delivery import Delivery
from store.format.layout import LOCK_FILE
from store.publish.lock_holders import Holder, one_holder
from store.publish.locks import DELIVERY_BYTE, is_held

LOOK_SECONDS = 5.0
LATE_MS = 5_000  # after which what is due should have been delivered
_logger = logging.getLogger("store")


def deliverer_of(root: Path, known: Holder | None = None, is_over: Callable[[], bool] = lambda: False) -> Holder | None:
    """The process that has the turn to deliver, if any has. known: as it was found the last time. is_over: whether to
    look no further.

    Raises `StoreUnavailable` where the system cannot tell.
    """
    path = root / LOCK_FILE
    fd = os.open(path, os.O_RDONLY)
    try:
        return one_holder(path, DELIVERY_BYTE, known, lambda: not is_over() and is_held(fd, DELIVERY_BYTE))
    finally:
        os.close(fd)


class Successor:
    """One of those who wait for the turn in one store."""

    def __init__(self, root: Path, delivery: Callable[[], Delivery], is_over: Callable[[], bool]) -> None:
        """delivery: makes what could deliver; here it only looks. is_over: whether nobody waits any more."""
        self._root = root
        self._new_delivery = delivery
        self._is_over = is_over
        self._delivery: Delivery | None = None  # while the other is stopped
        self._holder: Holder | None = None
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._told = False

    def look(self) -> None:
        """Warn once where the one that has the turn is stopped, and something is late. Looks now and then only.

        Raises `CorruptStore` and the like.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._holder = deliverer_of(self._root, self._holder, self._is_over)
        if self._holder is None or not self._holder.is_stopped:
            self._delivery, self._told = None, False
        elif not self._told and self._is_late():
            self._told, self._delivery = True, None
            _logger.warning("%s: delayed messages are due, but it is the turn of %s", self._root, self._holder)

    def _is_late(self) -> bool:
        now = int(time.time() * 1000)
        self._delivery = self._delivery or self._new_delivery()
        # A new one, for the other may have delivered something between two looks.
        return self._delivery.is_late(now - LATE_MS) and self._new_delivery().is_late(now - LATE_MS)
