from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0  # seconds until a wait fails
QUERY_PATIENCE = 5 * PATIENCE  # a batch of a Spark query may start several Python processes


def until(condition: Callable[[], bool], every: float = 0.001, patience: float = PATIENCE) -> float:
    """Wait for `condition` and return the time it took. Checks every `every` seconds at first, then less often, because
    a check takes CPU time from the other process."""
    begin = time.monotonic()
    while not condition():
        taken = time.monotonic() - begin
        assert taken < patience, f"the condition did not hold within {taken:.0f} s"
        time.sleep(max(every, min(taken / 20, 0.1)))
    return time.monotonic() - begin


def another_millisecond() -> int:
    """Wait until a new message gets a later store time than all earlier ones. Return that time, ms since 1970."""
    before = int(time.time() * 1000)
    until(lambda: int(time.time() * 1000) > before)
    return int(time.time() * 1000)
