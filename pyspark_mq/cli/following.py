"""Messages of a topic in plain Python: those between two places, the newest of them, and what arrives."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from pyspark_mq.cli.places import queues_of
from store import MessageStore, OffsetNotYet
from store.any_log import MessageFilter
from store.read.filters import EVERYTHING

# An arrival ends a wait at once; this only bounds how long a new queue without messages goes unnoticed, or what a
# broker has in its log, but not yet in its queues; and whether somebody still reads what is printed.
WAIT_SECONDS = 1.0
_NEWEST_ROWS = 1024  # of each queue, looked at first

Row = dict[str, Any]
Positions = dict[int, int]  # queue id to queue offset
_BY_LOG = itemgetter("physicalOffset")


def between(
    store: MessageStore,
    topic: str,
    begin: Positions,
    end: Positions,
    columns: Sequence[str],
    message_filter: MessageFilter = EVERYTHING,
) -> Iterator[Row]:
    """Messages [begin, end) of each queue in `end`, in the order of the log; from its first one without a begin.

    A row is `columns`, as Python values. Raises `OffsetLost`, `OffsetNotYet` for a begin behind the end.
    """
    queues = [rows(store, topic, queue, begin.get(queue), stop, columns, message_filter) for queue, stop in end.items()]
    return heapq.merge(*queues, key=_BY_LOG)


def newest(
    store: MessageStore,
    topic: str,
    begin: Positions,
    end: Positions,
    count: int,
    columns: Sequence[str],
    message_filter: MessageFilter = EVERYTHING,
) -> list[Row]:
    """The newest `count` messages of what `between` gives, oldest first."""
    queues = []
    for queue, stop in end.items():
        first = min(begin[queue], stop)
        looked, found = max(count, _NEWEST_ROWS), list[Row]()
        while len(found) < count and first < stop:  # a filter lets only some through: look back twice as far
            found = list(rows(store, topic, queue, max(first, stop - looked), stop, columns, message_filter))
            if stop - looked <= first:
                break
            looked *= 2
        queues.append(found[-count:])
    return list(deque(heapq.merge(*queues, key=_BY_LOG), count))


def follow(
    store: MessageStore,
    topic: str,
    begin: Positions,
    queue: int | None,
    columns: Sequence[str],
    message_filter: MessageFilter = EVERYTHING,
) -> Iterator[Iterator[Row]]:
    """The messages from `begin` on in rounds, one for what is there and one for each arrival; never ends.

    `queue` None follows all queues, also those added later, from their first message. A round, which may be empty,
    must be read to its end before the next. Raises `UnknownTopic`, `UnknownQueue`, `OffsetLost`, `OffsetNotYet`.
    """
    while True:
        seen = store.confirm_offset
        end = {each: store.max_offset(topic, each) for each in queues_of(store, topic, queue)}
        yield between(store, topic, begin, end, columns, message_filter)
        begin = end
        store.wait(seen, WAIT_SECONDS)


def rows(
    store: MessageStore,
    topic: str,
    queue: int,
    start: int | None,
    end: int,
    columns: Sequence[str],
    message_filter: MessageFilter,
) -> Iterator[Row]:
    """Messages [start, end) of one queue; from its first one when `start` is None."""
    begin = min(store.min_offset(topic, queue), end) if start is None else start
    if begin > end:
        raise OffsetNotYet(f"{topic}, queue {queue}: there is no offset {begin} yet, the next one is {end}")
    for batch in store.scan(topic, queue, begin, end, columns=[*columns, "physicalOffset"], tags=message_filter):
        yield from batch.to_pylist()
