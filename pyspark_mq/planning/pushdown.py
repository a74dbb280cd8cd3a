"""Filters of a batch query, used to read less: whole queues, ranges of offsets and of times, keys, ids, tags.

Nothing here has to be exact, only never too narrow: Spark evaluates every filter again on what is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
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
from store.format.layout import KEY_SEPARATOR, LIGHT_PREFIX
from store.model.log_protocol import Log, MessageFilter, QueueRange

_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_MS, _LATEST_MS = -(1 << 63), (1 << 63) - 1


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


def narrow_by_log(log: Log, ranges: Iterable[QueueRange], filters: Sequence[Filter]) -> list[QueueRange]:
    """`narrow`, and by what the log can tell of store times, keys and ids."""
    ranges = narrow(ranges, filters)
    begin, end = _stored(filters)
    if begin > _EARLIEST_MS or end < _LATEST_MS:
        ranges = log.stored_between(ranges, begin, end)
    for one in filters:
        if (keys := _keys(one)) is not None:
            ranges = log.with_keys(ranges, keys)
    return ranges


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
    if column in ("topic", "queueOffset") and r.queue.topic.startswith(LIGHT_PREFIX):
        return r  # a light queue's messages say where they were sent to
    if column in ("topic", "queueId"):
        constant = r.queue.topic if column == "topic" else int(r.queue.queue_id)
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


def _stored(filters: Iterable[Filter]) -> tuple[int, int]:
    """Between which store times (ms since 1970) all messages are that `filters` keep; it may be more."""
    begin, end = _EARLIEST_MS, _LATEST_MS
    for one in filters:
        if _column(one) != "storeTimestamp":
            continue
        match one:
            # Store times are whole milliseconds.
            case GreaterThan(value=bound) if _is_moment(bound):
                begin = max(begin, _ms(bound) + 1)
            case GreaterThanOrEqual(value=bound) if _is_moment(bound):
                begin = max(begin, _ms(bound))
            case LessThan(value=bound) if _is_moment(bound):
                end = min(end, -((_EPOCH - bound) // timedelta(milliseconds=1)) - 1)
            case LessThanOrEqual(value=bound) if _is_moment(bound):
                end = min(end, _ms(bound))
            case _ if (values := _values(one)) and all(map(_is_moment, values)):
                times = list(map(_ms, values))
                begin, end = max(begin, min(times)), min(end, max(times))
    return begin, end


def _is_moment(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _ms(moment: datetime) -> int:
    """The millisecond in which a moment is."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _keys(one: Filter) -> list[str] | None:
    """Keys, or ids, one of which each message has that the filter keeps; None where it says nothing of them."""
    values = _values(one)
    if _column(one) not in ("keys", "msgId") or not values or not all(isinstance(value, str) for value in values):
        return None
    # Each of several keys is filed by itself, and the first will do.
    found = (
        values
        if _column(one) == "msgId"
        else [key for value in values for key in list(filter(None, value.split(KEY_SEPARATOR)))[:1]]
    )
    return list(found) if len(found) == len(values) else None


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
