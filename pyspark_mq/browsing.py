"""Places in a topic as users write them, and reading of a topic, for the command line and the console."""

from __future__ import annotations

import heapq
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Literal

import pyarrow as pa

from pyspark_mq.options.subscription import did_you_mean
from pyspark_mq.planning.queues import replaced_queues
from store import BrokerMissing, InvalidArgument, OffsetNotYet, UnknownQueue, UnknownTopic
from store.format.columns import TIMESTAMP
from store.format.topic_names import is_internal_topic
from store.model.log_protocol import (
    Boundary,
    Bounds,
    Fingerprints,
    Log,
    MessageFilter,
    Positions,
    Queue,
    QueueRange,
    ReadSpec,
    Unreadable,
)

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGE = re.compile(rf"(\d{{1,9}})\s*([{''.join(_UNITS)}])")
FORMS = "earliest, latest, an offset (17), an age (10m, 2h, 3d) or a time (2013-01-31T06:00)"


@dataclass(frozen=True)
class PointInTime:
    """A `Place` given as a time. milliseconds: since 1970."""

    milliseconds: int


End = Literal["earliest", "latest"]
Place = End | int | PointInTime
ENDS: tuple[End, ...] = ("earliest", "latest")


def place_of(text: str) -> Place:
    """Parse one of `FORMS`. A time without a zone is local. Raises `InvalidArgument`."""
    for word in ENDS:
        if text == word:
            return word
    if _AGE.fullmatch(text):
        return PointInTime(round((time.time() - seconds_of(text)) * 1000))
    try:
        return int(text) if text.isascii() and text.isdecimal() else PointInTime(milliseconds(text))
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is not a place in a topic. Give {FORMS}") from error


def seconds_of(text: str) -> float:
    """Parse an age such as "10m". Raises `InvalidArgument`."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"{text!r} is not an age. Give one such as 90s, 10m, 2h or 3d")
    return float(int(found[1]) * _UNITS[found[2]])


def milliseconds(text: str) -> int:
    """Parse ISO 8601 to ms since 1970. A time without a zone is local. Raises `ValueError`."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def bounds_of(log: Log, topic: str, queue: int | None = None) -> dict[Queue, Bounds]:
    """Return the bounds of `queue`, or of all queues of the topic if it is None.

    Raises `UnknownTopic`, `UnknownQueue`, and `BrokerMissing` if no name server lists an expected broker.
    """
    if missing := log.look(()).missing:
        raise BrokerMissing.of(f"topic {topic!r}", missing.values())
    topics = log.topics()
    # For an unknown topic the log may raise a more helpful error than the one below.
    queues = topics.get(topic, (Queue(topic, 0),))
    if queue is not None:  # in a cluster, each broker may have a queue with this number
        queues = tuple(each for each in queues if each.queue_id == queue) or (Queue(topic, queue),)
    bounds = log.bounds(queues)
    if topic not in topics:
        others = [name for name in topics if not is_internal_topic(name)]
        near, existing = did_you_mean([topic], topics), ", ".join(others) or "none"
        raise UnknownTopic(f"Topic {topic!r} does not exist. {near}Existing topics: {existing}")
    numbers = {each.queue_id for each in topics[topic]}
    if queue is not None and queue not in numbers:
        raise UnknownQueue(f"Topic {topic!r} has queues 0 to {max(numbers)}, not {queue}")
    _require_queues(queues, bounds)
    return bounds


def offsets_at(log: Log, bounds: Mapping[Queue, Bounds], place: Place) -> Positions:
    """Return the offset of a place in each queue of `bounds`. A place that is an offset applies to all queues.

    Raises `UnknownQueue` for a queue deleted since.
    """
    if isinstance(place, int):
        return dict.fromkeys(bounds, place)
    if isinstance(place, PointInTime):
        found = log.offsets_by_time(bounds, place.milliseconds, Boundary.LOWER)
        _require_queues(bounds, found)
        return found
    return {queue: each.max_offset if place == "latest" else each.min_offset for queue, each in bounds.items()}


def _require_queues(queues: Iterable[Queue], there: Container[Queue]) -> None:
    if gone := ", ".join(str(queue) for queue in queues if queue not in there):
        raise UnknownQueue(
            f"{gone} became unavailable during this command: the queue was deleted, or its broker stopped. Run the "
            "command again"
        )


# The longest delay until `follow` notices a new queue, a message that a broker dispatches late, or a closed pipe.
WAIT_SECONDS = 1.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_EPOCH = datetime.fromtimestamp(0, UTC)
_NEWEST_ROWS = 1024  # initial number of messages searched in each queue

Row = dict[str, Any]
_ORDER = ("storeTimestamp", "physicalOffset")
_BY_LOG = itemgetter("physicalOffset")


def rows_of(columns: tuple[str, ...], message_filter: MessageFilter, unreadable: Unreadable = "error") -> ReadSpec:
    """Return how to read `columns`, and the columns by which `between` orders the rows."""
    return ReadSpec(tuple(dict.fromkeys((*columns, *_ORDER))), message_filter, unreadable=unreadable)


def between(log: Log, begin: Positions, end: Positions, spec: ReadSpec) -> Iterator[Row]:
    """Return the messages [begin, end) of each queue in `end`, in log order or by store time.

    spec: from `rows_of`. Raises `OffsetLost`, `OffsetNotYet`.
    """
    return heapq.merge(
        *(_rows(log, QueueRange(each, begin[each], stop), spec) for each, stop in end.items()), key=_order(log)
    )


def newest(log: Log, begin: Positions, end: Positions, count: int, spec: ReadSpec) -> list[Row]:
    """Return the newest `count` messages of `between`, oldest first."""
    queues = []
    for queue, stop in end.items():
        first = min(begin[queue], stop)
        looked, found = max(count, _NEWEST_ROWS), list[Row]()
        while len(found) < count and first < stop:  # too few matched
            found = list(_rows(log, QueueRange(queue, max(first, stop - looked), stop), spec))
            if stop - looked <= first:
                break
            looked *= 2
        queues.append(found[-count:])
    return list(deque(heapq.merge(*queues, key=_order(log)), min(count, sys.maxsize)))


def follow(
    log: Log, topic: str, begin: Positions, queue: int | None, spec: ReadSpec, last: Fingerprints
) -> Iterator[Iterator[Row]]:
    """Yield iterators of messages, without end: the first from `begin` on, each later one over the messages since.

    last: fingerprints of the messages before `begin`. A queue that is added or recreated later is read from its first
    message. After its broker was missing, a queue continues at its offset. Exhaust each iterator before the next.
    Raises `UnknownTopic`, `UnknownQueue`, `OffsetLost`, `OffsetNotYet`.
    """
    while True:
        bounds = bounds_of(log, topic, queue)
        others = replaced_queues(log, begin, last)
        starts = {
            each: has.min_offset if each in others else begin.get(each, has.min_offset) for each, has in bounds.items()
        }
        end = {each: has.max_offset for each, has in bounds.items()}
        away = last.keys() - end.keys()  # keep these fingerprints until their brokers return
        begin, last = {**begin, **end}, {queue: last[queue] for queue in away} | log.fingerprints(end)
        rows = between(log, starts, end, spec)
        yield rows
        log.wait(end, WAIT_SECONDS)


def _order(log: Log) -> Callable[[Row], Any]:
    return _BY_LOG if log.is_ordered else _by_time


def _by_time(row: Row) -> tuple[datetime, int]:
    return row["storeTimestamp"] or _LONG_AGO, row["physicalOffset"]


def _rows(log: Log, wanted: QueueRange, spec: ReadSpec) -> Iterator[Row]:
    if wanted.start > wanted.end:
        where = f"{wanted.queue.topic}, queue {wanted.queue.queue_id}"
        raise OffsetNotYet(
            f"{where}: offset {wanted.start} does not exist yet. The next message gets offset {wanted.end}"
        )
    batches = log.scan(wanted, spec)  # start the scan now, so that it does not read a topic that is recreated later
    return (row for batch in batches for row in _rows_of(batch))


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Return the rows as dicts. `RecordBatch.to_pylist` would import pandas to convert times."""
    columns = [_times(column) if column.type == TIMESTAMP else column.to_pylist() for column in batch.columns]
    return (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _times(column: pa.TimestampArray) -> list[datetime | None]:
    microseconds = column.view(pa.int64()).to_pylist()
    return [None if each is None else _EPOCH + timedelta(microseconds=each) for each in microseconds]
