"""How far consumer groups are behind the topics that they read."""

from collections.abc import Iterator
from typing import NamedTuple

from store.any_log import Log


class Lag(NamedTuple):
    """One group in one queue. offset: the next one to read, None where it never committed any; end: of the queue.

    queue: in a cluster a `BrokerQueueId`. messages: not read yet, of those that are there;
    all of them if the group never committed an offset, since it would read the queue from its first message.
    """

    group: str
    topic: str
    queue: int
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
                yield Lag(reader, name, queue.queue_id, offset, end, messages)
