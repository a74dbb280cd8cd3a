"""Places in a topic as users write them, and the messages of a topic: between two places, the newest, new arrivals.

For the command line and the console.
"""

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
from store import InvalidArgument, OffsetNotYet, UnknownQueue, UnknownTopic
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
    """The first message stored at a time or after. milliseconds: since 1970."""

    milliseconds: int


End = Literal["earliest", "latest"]
Place = End | int | PointInTime
ENDS: tuple[End, ...] = ("earliest", "latest")


def place_of(text: str) -> Place:
    """Read a `Place` as a user writes it; a time without a zone is local time. Raises `InvalidArgument`."""
    for word in ENDS:
        if text == word:
            return word
    if _AGE.fullmatch(text):
        return PointInTime(round((time.time() - seconds_of(text)) * 1000))
    try:
        return int(text) if text.isascii() and text.isdecimal() else PointInTime(milliseconds(text))
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is none of: {FORMS}") from error


def seconds_of(text: str) -> float:
    """Read an age, such as 10m. Raises `InvalidArgument`."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"{text!r} is no age: give 90s, 10m, 2h or 3d")
    return float(int(found[1]) * _UNITS[found[2]])


def milliseconds(text: str) -> int:
    """ISO 8601 as ms since 1970; without a time zone it is local time. Raises `ValueError`."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def bounds_of(log: Log, topic: str, queue: int | None = None) -> dict[Queue, Bounds]:
    """What `queue`, or each queue of `topic`, has now. Raises `UnknownTopic`, `UnknownQueue`."""
    topics = log.topics()
    # Ask for queue 0 of an unknown topic: the log may raise an error that says more than ours below.
    queues = topics.get(topic, (Queue(topic, 0),))
    if queue is not None:  # of a cluster, each broker's
        queues = tuple(each for each in queues if each.queue_id == queue) or (Queue(topic, queue),)
    bounds = log.bounds(queues)
    if topic not in topics:
        others = [name for name in topics if not is_internal_topic(name)]
        raise UnknownTopic(
            f"no topic {topic!r}. {did_you_mean([topic], topics)}There are: {', '.join(others) or 'none'}"
        )
    numbers = {each.queue_id for each in topics[topic]}
    if queue is not None and queue not in numbers:
        raise UnknownQueue(f"topic {topic!r} has queues 0 to {max(numbers)}, not {queue}")
    _must_be_there(queues, bounds)
    return bounds


def offsets_at(log: Log, bounds: Mapping[Queue, Bounds], place: Place) -> Positions:
    """The offset that a place means in each queue, of which `bounds_of` gave the bounds.

    An offset counts in all of them. Raises `UnknownQueue` for a queue that was deleted concurrently.
    """
    if isinstance(place, int):
        return dict.fromkeys(bounds, place)
    if isinstance(place, PointInTime):
        found = log.offsets_by_time(bounds, place.milliseconds, Boundary.LOWER)
        _must_be_there(bounds, found)
        return found
    return {queue: each.max_offset if place == "latest" else each.min_offset for queue, each in bounds.items()}


def _must_be_there(queues: Iterable[Queue], there: Container[Queue]) -> None:
    """Raise `UnknownQueue` for a missing queue, or else the caller would take the others for the whole topic."""
    if gone := ", ".join(str(queue) for queue in queues if queue not in there):
        raise UnknownQueue(f"{gone}: gone just now, deleted or with its broker; try again")


# An arrival ends a wait at once. This bounds how late `follow` notices a new queue without messages, messages that a
# broker has not yet put into its queues, and a closed pipe.
WAIT_SECONDS = 1.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_EPOCH = datetime.fromtimestamp(0, UTC)
_NEWEST_ROWS = 1024  # of each queue, looked at first

Row = dict[str, Any]
_ORDER = ("storeTimestamp", "physicalOffset")
_BY_LOG = itemgetter("physicalOffset")


def rows_of(columns: tuple[str, ...], message_filter: MessageFilter, unreadable: Unreadable = "error") -> ReadSpec:
    """Return how to read rows of these columns, and of the columns of their order."""
    return ReadSpec(tuple(dict.fromkeys((*columns, *_ORDER))), message_filter, unreadable=unreadable)


def between(log: Log, begin: Positions, end: Positions, spec: ReadSpec) -> Iterator[Row]:
    """Messages [begin, end) of each queue in `end`, in the order of the log, or of storing. spec: made by `rows_of`.

    Raises `OffsetLost`, `OffsetNotYet` for a begin behind the end.
    """
    return heapq.merge(
        *(_rows(log, QueueRange(each, begin[each], stop), spec) for each, stop in end.items()), key=_order(log)
    )


def newest(log: Log, begin: Positions, end: Positions, count: int, spec: ReadSpec) -> list[Row]:
    """The newest `count` messages of what `between` gives, oldest first."""
    queues = []
    for queue, stop in end.items():
        first = min(begin[queue], stop)
        looked, found = max(count, _NEWEST_ROWS), list[Row]()
        while len(found) < count and first < stop:  # a filter lets only some through: look back twice as far
            found = list(_rows(log, QueueRange(queue, max(first, stop - looked), stop), spec))
            if stop - looked <= first:
                break
            looked *= 2
        queues.append(found[-count:])
    return list(deque(heapq.merge(*queues, key=_order(log)), min(count, sys.maxsize)))


def follow(
    log: Log, topic: str, begin: Positions, queue: int | None, spec: ReadSpec, last: Fingerprints
) -> Iterator[Iterator[Row]]:
    """Yield the messages from `begin` on in rounds: a first one, and one for each arrival; never ends.

    last: fingerprints of the messages before `begin`. queue: None follows all queues. A queue that is added later is
    read from its first message, and so is a recreated one, if the log can tell. A queue whose broker was away goes on
    at its offset. Read each round to its end before the next; a round may be empty. Raises `UnknownTopic`,
    `UnknownQueue`, `OffsetLost`, `OffsetNotYet`.
    """
    while True:
        bounds = bounds_of(log, topic, queue)
        others = replaced_queues(log, begin, last)
        starts = {
            each: has.min_offset if each in others else begin.get(each, has.min_offset) for each, has in bounds.items()
        }
        end = {each: has.max_offset for each, has in bounds.items()}
        away = last.keys() - end.keys()  # their fingerprints count again when they are back
        begin, last = {**begin, **end}, {queue: last[queue] for queue in away} | log.fingerprints(end)
        rows = between(log, starts, end, spec)
        yield rows
        log.wait(end, WAIT_SECONDS)


def _order(log: Log) -> Callable[[Row], Any]:
    """Return the sort key of messages of several queues."""
    return _BY_LOG if log.is_ordered else _by_time


def _by_time(row: Row) -> tuple[datetime, int]:
    return row["storeTimestamp"] or _LONG_AGO, row["physicalOffset"]


def _rows(log: Log, wanted: QueueRange, spec: ReadSpec) -> Iterator[Row]:
    if wanted.start > wanted.end:
        where = f"{wanted.queue.topic}, queue {wanted.queue.queue_id}"
        raise OffsetNotYet(f"{where}: there is no offset {wanted.start} yet, the next one is {wanted.end}")
    batches = log.scan(wanted, spec)  # begun at once, so that none is of a topic that is recreated later
    return (row for batch in batches for row in _rows_of(batch))


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows of a batch as `to_pylist` does, which imports pandas for times."""
    columns = [_times(column) if column.type == TIMESTAMP else column.to_pylist() for column in batch.columns]
    return (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _times(column: pa.TimestampArray) -> list[datetime | None]:
    microseconds = column.view(pa.int64()).to_pylist()
    return [None if each is None else _EPOCH + timedelta(microseconds=each) for each in microseconds]
