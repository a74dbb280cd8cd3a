"""What a Spark worker process keeps from one task to the next.

Spark's workers take one task after the other, and short tasks are spent on getting ready. So the first task has the
garbage collector leave alone what is loaded by then, for Spark collects garbage after every task: with the modules
of Spark, pandas and Arrow that takes 30 to 80 ms, and finds nothing. And the last task's store stays open: stores
share open segments, so the next task finds the log mapped; mapping it anew takes up to a fifth of the time of reading.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from pyspark import TaskContext

from store import MessageStore

_last_read: list[MessageStore] = []


@contextmanager
def task_store(path: str) -> Iterator[MessageStore]:
    """The store at `path`, to read in a task; it stays open until the process's next task is done.

    Raises as `MessageStore.open`.
    """
    if TaskContext.get() is not None:
        _spare_what_is_loaded()
    store = MessageStore.open(path, create=False, read_only=True)
    try:
        yield store
    finally:
        before, _last_read[:] = _last_read[:], [store]
        for other in before:
            other.close()


@cache
def _spare_what_is_loaded() -> None:
    gc.freeze()
