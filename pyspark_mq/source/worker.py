from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable
from functools import cache

from pyspark import TaskContext

_LOCAL = re.compile(r"local(?:\[(\*|[0-9]+)(?:, *[0-9]+)?\])?")


def task_slots() -> int | None:
    """Return how many tasks Spark runs concurrently, None if that varies. Only a task can call this."""
    context = TaskContext.get()
    return None if context is None else slots(context.getLocalProperty)


def slots(setting: Callable[[str], str | None]) -> int | None:
    cores = _cores(setting)
    return None if cores is None else max(1, cores // _number(setting("spark.task.cpus"), 1))


def _cores(setting: Callable[[str], str | None]) -> int | None:
    local = _LOCAL.fullmatch(setting("spark.master") or "")
    if local is not None:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    if setting("spark.dynamicAllocation.enabled") == "true":
        return None
    executors, cores = _number(setting("spark.executor.instances"), 0), _number(setting("spark.executor.cores"), 0)
    return executors * cores or _number(setting("spark.cores.max"), 0) or None


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


@cache
def freeze_loaded_objects() -> None:
    """In a worker of Spark's daemon, exclude the loaded objects from garbage collection.

    The worker collects garbage after each call. With the modules of Spark and Arrow loaded, that takes 30 ms, a third
    of the time of a small query, and frees nothing.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == "pyspark.daemon":
        gc.freeze()
