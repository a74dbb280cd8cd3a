"""How far consumer groups are behind the topics that they read."""

from collections.abc import Iterator
from typing import NamedTuple

from store.model.log_protocol import Log, Queue


class Lag(NamedTuple):
    """How far a group is behind the end of a queue.

    offset: the next one to read, or None if the group never committed one. end: of the queue. messages: the number of
    messages in the queue that the group has not read; without an offset all, since the group begins at the first.
    """

    group: str
    queue: Queue
    offset: int | None
    end: int
    messages: int


def lags(log: Log, group: str | None = None, topic: str | None = None) -> Iterator[Lag]:
    """Of each queue of each topic that a group has offsets of; of those topics that are still there."""
    topics = log.topics()
    for reader, offsets in sorted(log.groups().items()):
        names = {queue.topic for queue in offsets} if group in (None, reader) else set()
        for name in sorted(name for name in names if name in topics and topic in (None, name)):
            for queue, (first, end) in log.bounds(topics[name]).items():
                offset = offsets.get(queue)
                messages = max(0, end - max(first if offset is None else offset, first))
                yield Lag(reader, queue, offset, end, messages)
