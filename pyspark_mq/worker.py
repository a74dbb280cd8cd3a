"""What a Spark worker process keeps from one task to the next, for short tasks are mostly spent on getting ready."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.any_log import Log, LogAddress

_last_read: list[Log] = []


@contextmanager
def task_log(address: LogAddress) -> Iterator[Log]:
    """The log there, to read in a task; it stays open until the process's next task is done.

    Stores share open segments, so that task finds the log mapped; mapping it anew takes up to a fifth of the time of
    reading it. Raises as `LogAddress.open`.
    """
    spare_what_is_loaded()
    log = address.open()
    try:
        yield log
    finally:
        before, _last_read[:] = _last_read[:], [log]
        for other in before:
            other.close()


@cache
def spare_what_is_loaded() -> None:
    """In a process of Spark's daemon, have the garbage collector leave alone what is loaded by the first call.

    The daemon's workers collect garbage after everything that they do for a query. With the modules of Spark, pandas
    and Arrow that takes 30 to 80 ms of a core, and finds nothing in them.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == "pyspark.daemon":
        gc.freeze()
