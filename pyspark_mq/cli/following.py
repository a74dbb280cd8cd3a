"""Messages of a topic in plain Python: those between two places, the newest of them, and what arrives."""

import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from pyspark_mq.cli.places import bounds_of
from pyspark_mq.source.queues import strangers
from store import OffsetNotYet
from store.model.log_protocol import Fingerprints, Log, MessageFilter, Positions, QueueRange, ReadSpec

# An arrival ends a wait at once; this only bounds how long a new queue without messages goes unnoticed, or what a
# broker has in its log, but not yet in its queues; and whether somebody still reads what is printed.
WAIT_SECONDS = 1.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_NEWEST_ROWS = 1024  # of each queue, looked at first

Row = dict[str, Any]
_ORDER = ("storeTimestamp", "physicalOffset")
_BY_LOG = itemgetter("physicalOffset")


def rows_of(columns: tuple[str, ...], message_filter: MessageFilter) -> ReadSpec:
    """Rows of these columns, as Python values, and of what tells their order."""
    return ReadSpec(tuple(dict.fromkeys((*columns, *_ORDER))), message_filter)


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
    """The messages from `begin` on in rounds, one for what is there and one for each arrival; never ends.

    last: which messages stand before `begin`. `queue` None follows all queues, also those added later, from their first
    message; those whose broker was away, from where they were; and those of a topic that is deleted and created anew,
    as far as the log tells it. A round, which may be empty, must be read to its end before the next. Raises
    `UnknownTopic`, `UnknownQueue`, `OffsetLost`, `OffsetNotYet`.
    """
    while True:
        bounds = bounds_of(log, topic, queue)
        others = strangers(log, begin, last)
        starts = {
            each: has.min_offset if each in others else begin.get(each, has.min_offset) for each, has in bounds.items()
        }
        end = {each: has.max_offset for each, has in bounds.items()}
        away = last.keys() - end.keys()  # of which what was true last counts when they are back
        begin, last = {**begin, **end}, {queue: last[queue] for queue in away} | log.fingerprints(end)
        rows = between(log, starts, end, spec)
        yield rows
        log.wait(end, WAIT_SECONDS)


def _order(log: Log) -> Callable[[Row], Any]:
    """What tells the order of messages of several queues."""
    return _BY_LOG if log.is_ordered else _by_time


def _by_time(row: Row) -> tuple[datetime, int]:
    return row["storeTimestamp"] or _LONG_AGO, row["physicalOffset"]


def _rows(log: Log, wanted: QueueRange, spec: ReadSpec) -> Iterator[Row]:
    if wanted.start > wanted.end:
        where = f"{wanted.queue.topic}, queue {wanted.queue.queue_id}"
        raise OffsetNotYet(f"{where}: there is no offset {wanted.start} yet, the next one is {wanted.end}")
    batches = log.scan(wanted, spec)  # begun at once: none is of what comes in the topic's place
    return (row for batch in batches for row in batch.to_pylist())
