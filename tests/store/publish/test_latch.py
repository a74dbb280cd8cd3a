from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from store.publish.latch import Latch
from store.publish.watch import Watch
from tests.waiting import PATIENCE

_TOO_LATE = 20.0


class Interrupt(Exception):
    pass


def wait_for_a_publication() -> None:
    with Watch() as watch:
        watch.wait(math.inf)


WAITS: list[Callable[[], object]] = [
    Latch().wait,
    partial(Latch().wait, PATIENCE),
    wait_for_a_publication,
]


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_that_another_thread_is_given(wait: Callable[[], object]) -> None:
    """Its handler is called though, and may raise: as one that comes in the moment in which the wait begins."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    other = threading.Thread(target=time.sleep, args=(PATIENCE,), daemon=True)
    other.start()
    timers = [
        threading.Timer(seconds, partial(signal.pthread_kill, thread.ident or 0, signal.SIGUSR1))
        for seconds, thread in ((0.2, other), (_TOO_LATE, threading.main_thread()))
    ]
    before, began = signal.signal(signal.SIGUSR1, interrupt), time.monotonic()
    try:
        for timer in timers:
            timer.start()
        with pytest.raises(Interrupt):
            wait()
        assert time.monotonic() - began < _TOO_LATE
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGUSR1, before)
