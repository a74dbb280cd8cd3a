"""Waiting for what another process, or another thread, does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0  # seconds, for what has to happen; nothing waits for it to pass
QUERY_PATIENCE = 5 * PATIENCE  # for a query of Spark's, each batch of which may start several Python processes


def until(condition: Callable[[], bool], every: float = 0.001, patience: float = PATIENCE) -> float:
    """Wait for `condition`, looking `every` so many seconds, and less often later on: who looks keeps a processor from
    who works. Returns how long it took."""
    begin = time.monotonic()
    while not condition():
        taken = time.monotonic() - begin
        assert taken < patience, f"it did not come about in {taken:.0f} s"
        time.sleep(max(every, min(taken / 20, 0.1)))
    return time.monotonic() - begin


def another_millisecond() -> int:
    """Wait until what is put has a later store time than all that was put before. Returns that time, ms since 1970."""
    before = int(time.time() * 1000)
    until(lambda: int(time.time() * 1000) > before)
    return int(time.time() * 1000)
