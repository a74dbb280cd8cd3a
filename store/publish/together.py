"""Small appends of several threads, published together: who gets the turn takes along all who wait for theirs.

A turn takes about as long for the messages of ten threads as for one. What each put is whole, and told to the one who
put it, as if it had been alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from store.format.records import EncodedRecord
from store.model.errors import MessageRefused, UnknownTopic
from store.publish.locks import StoreLock
from store.publish.results import Where


@dataclass(eq=False, slots=True)
class WaitingAppend:
    """What one thread appends. result: set when, and only when, readers see it."""

    records: Sequence[EncodedRecord]
    result: list[Where] | None = None


class Together:
    """The threads of one process that wait for their turn to append to one store."""

    def __init__(self, lock: StoreLock) -> None:
        self._lock = lock
        self._waiting: dict[WaitingAppend, None] = {}  # in their order; each step at it is one of the dictionary

    def append(self, records: Sequence[EncodedRecord], append: Callable[[list[WaitingAppend]], None]) -> list[Where]:
        """Append records, in this thread's turn or in another's. Raises as `StoreLock.held`, and `append`.

        append: the same in all calls. Called under the lock; gives each its result, or raises and gives none to any.
        """
        self._lock.must_be_open()  # not later: another thread may append these before it closes the store
        own = WaitingAppend(records)
        self._waiting[own] = None
        try:
            with self._lock.among_threads() as since:
                if own.result is None:
                    with self._lock.among_processes(since):
                        self._lead(own, append)
        finally:
            self._withdraw(own)
        assert own.result is not None
        return own.result

    def _lead(self, own: WaitingAppend, append: Callable[[list[WaitingAppend]], None]) -> None:
        self._withdraw(own)
        taken = [own, *(each for each in list(self._waiting) if self._withdraw(each))]
        try:
            append(taken)
        except (MessageRefused, UnknownTopic):  # there is no place for one of them: the others try again, by themselves
            if len(taken) == 1:
                raise
            append([own])

    def _withdraw(self, own: WaitingAppend) -> bool:
        """Let it wait no longer; whether it still did."""
        return self._waiting.pop(own, own) is None
