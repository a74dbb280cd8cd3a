"""How many tasks Spark runs at once: what its settings say, which only tasks are told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pyspark import TaskContext

_LOCAL = re.compile(r"local(?:\[(\*|[0-9]+)(?:, *[0-9]+)?\])?")


def task_slots() -> int | None:
    """In a task, of its application; None where the settings leave that open, as with dynamic allocation."""
    context = TaskContext.get()
    return None if context is None else slots(context.getLocalProperty)


def slots(setting: Callable[[str], str | None]) -> int | None:
    """By Spark's settings: the cores of a local master, of a cluster's executors, or all that it may take."""
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
