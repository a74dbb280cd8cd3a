"""Filters of a batch query, used to read less: whole queues, ranges of offsets, tags.

Nothing here has to be exact, only never too narrow: Spark evaluates every filter again on what is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from store import TagFilter
from store.any_log import MessageFilter, QueueRange

_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"


def pushdown_is_on() -> bool:
    """Whether this process plans with `spark.sql.python.filterPushdown.enabled`: it is its own worker module.

    A reader that defines `pushFilters` in any other process makes Spark fail.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PLANNER in sys.modules or (spec is not None and spec.name == _PLANNER)


def narrow(ranges: Iterable[QueueRange], filters: Iterable[Filter]) -> list[QueueRange]:
    """The parts of `ranges` that can hold a message all `filters` keep."""
    for one in filters:
        ranges = [_narrow(r, one) for r in ranges]
    return [r for r in ranges if r.length > 0]


def narrow_tags(message_filter: MessageFilter, filters: Iterable[Filter]) -> MessageFilter:
    """One of tags that lets through what `message_filter` and all `filters` do; another kind stays as it is."""
    if not isinstance(message_filter, TagFilter):
        return message_filter
    tags = message_filter.tags
    for one in filters:
        wanted = _values(one) if _column(one) == "tags" else None
        if wanted is not None and all(isinstance(tag, str) for tag in wanted):
            tags = tuple(tag for tag in wanted if tags is None or tag in tags)
    return TagFilter(tags)


def _narrow(r: QueueRange, one: Filter) -> QueueRange:
    column, values = _column(one), _values(one)
    if column in ("topic", "queueId"):
        constant = r.topic if column == "topic" else r.queue_id
        return r if values is None or constant in values else r._replace(end=r.start)
    if column != "queueOffset":
        return r
    start, end = r.start, r.end
    match one:
        case GreaterThan(value=int(bound)):
            start = max(start, bound + 1)
        case GreaterThanOrEqual(value=int(bound)):
            start = max(start, bound)
        case LessThan(value=int(bound)):
            end = min(end, bound)
        case LessThanOrEqual(value=int(bound)):
            end = min(end, bound + 1)
        case _ if values and all(isinstance(value, int) for value in values):
            start, end = max(start, min(values)), min(end, max(values) + 1)
    return r._replace(start=start, end=max(start, end))


def _column(one: Filter) -> str | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else None


def _values(one: Filter) -> tuple[Any, ...] | None:
    """The values one of which the column must equal; None for another kind of filter."""
    match one:
        case EqualTo(value=value):
            return (value,)
        case In(value=values):
            return tuple(values)
    return None
