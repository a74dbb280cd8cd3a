from __future__ import annotations

from contextlib import suppress

from store.publish.latch import Latch
from tests.interrupts import Interrupt, at_every_place, interrupted_at


def test_who_is_interrupted_keeps_no_other_waiting() -> None:
    """Wherever that is: what was set stays so."""

    def at(place: int) -> int:
        latch, places = Latch(), 0
        latch.set()
        with suppress(Interrupt):
            places = interrupted_at(place, latch.wait)
        latch.wait()
        return places

    at_every_place(at)
