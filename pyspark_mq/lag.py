"""How far consumer groups are behind the topics that they read."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from store import MessageStore
from store.any_log import Queue
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import GROUP_SEPARATOR


class Lag(NamedTuple):
    """One group in one queue. offset: the next one to read, None where it never committed any; end: of the queue.

    messages: not read yet, of those that are there; None without an offset.
    """

    group: str
    topic: str
    queue: int
    offset: int | None
    end: int
    messages: int | None


def lags(store: MessageStore, group: str | None = None, topic: str | None = None) -> Iterator[Lag]:
    """Of each queue of each topic that a group has offsets of; of those topics that are still there."""
    topics = store.topics()
    for key, offsets in sorted(ConsumerOffsets(Path(store.path)).all_offsets().items()):
        name, _, reader = key.partition(GROUP_SEPARATOR)
        if name not in topics or group not in (None, reader) or topic not in (None, name):
            continue
        there = store.bounds(Queue(name, queue) for queue in range(topics[name]))
        for (_, queue), (first, end) in there.items():
            offset = offsets.get(queue)
            messages = None if offset is None else max(0, end - max(offset, first))
            yield Lag(reader, name, queue, offset, end, messages)
