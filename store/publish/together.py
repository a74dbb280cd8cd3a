"""Small appends of several threads, published together: who gets the turn takes along all who wait for theirs.

A turn takes about as long for the messages of ten threads as for one. What each put is whole, and told to the one who
put it, as if it had been alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from store.errors import MessageRefused, StoreBusy, StoreClosed, UnknownTopic
from store.format.record import Record
from store.publish.locks import StoreLock
from store.publish.results import Where


@dataclass(eq=False, slots=True)
class Waiting:
    """What one thread appends. result: set when, and only when, readers see it."""

    records: Sequence[Record]
    result: list[Where] | None = None


class Together:
    """The threads of one process that wait for their turn to append to one store."""

    def __init__(self, lock: StoreLock) -> None:
        self._lock = lock
        self._waiting: dict[Waiting, None] = {}  # in their order; each step at it is one of the dictionary

    def append(self, records: Sequence[Record], append: Callable[[list[Waiting]], None]) -> list[Where]:
        """Append records, in this thread's turn or in another's. Raises as `StoreLock.exclusively`, and `append`.

        append: the same in all calls. Called under the lock; gives each its result, or raises and gives none to any.
        """
        self._lock.must_be_outside()  # before another thread may take this along
        own, led = Waiting(records), False

        def lead() -> list[Where]:
            nonlocal led
            led = True
            return self._lead(own, append)

        self._waiting[own] = None
        try:
            while True:
                try:
                    return self._lock.exclusively(lead, done=lambda: own.result)
                except StoreBusy:
                    if led or self._withdraw(own):  # the turn was this thread's, and something else was busy
                        raise
                    # Another thread has just taken it along: how that ends is not known yet.
                except StoreClosed:
                    if own.result is None:
                        raise
                    return own.result  # another thread's turn, before it was closed
        finally:
            self._withdraw(own)

    def _lead(self, own: Waiting, append: Callable[[list[Waiting]], None]) -> list[Where]:
        self._withdraw(own)  # if no other thread has, which failed then
        taken = [own, *(each for each in list(self._waiting) if self._withdraw(each))]
        try:
            append(taken)
        except (MessageRefused, UnknownTopic):  # there is no place for one of them: the others try again, by themselves
            if len(taken) == 1:
                raise
            append([own])
        assert own.result is not None
        return own.result

    def _withdraw(self, own: Waiting) -> bool:
        """Let it wait no longer; whether it still did."""
        return self._waiting.pop(own, own) is None
