"""A topic, or a part of it, as one stream of record batches: queue after queue, each in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

import pyarrow as pa

from store.format.columns import COLUMNS, check_columns
from store.model.errors import InvalidArgument, OffsetLost
from store.model.log_protocol import MessageFilter, Queue

Ranges = dict[int, tuple[int, int]]  # queue id to queue offsets [start, end)
Part = Iterable[int] | Mapping[int, tuple[int, int]] | None


class Readable(Protocol):
    """What of a `MessageStore` this needs."""

    def topics(self) -> dict[str, int]: ...
    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def bounds(self, queues: Iterable[Queue]) -> Mapping[Queue, tuple[int, int]]: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int: ...
    def scan(
        self, topic: str, queue_id: int, start: int, end: int, columns: Sequence[str], tags: str | MessageFilter | None
    ) -> Iterator[pa.RecordBatch]: ...


def ranges(store: Readable, topic: str, part: Part, begin: int | None, end: int | None) -> Ranges:
    """What `to_arrow` reads of each queue, as it stands now. Raises as it does."""
    if isinstance(part, Mapping):
        found = {queue: (start, stop) for queue, (start, stop) in part.items()}
    else:
        # Of an unknown topic queue 0 is asked for, so that the store says what is wrong.
        queues = range(store.topics().get(topic, 1)) if part is None else part
        found = {queue: store.offsets(topic, queue) for queue in queues}
        of_one_moment = store.bounds(Queue(topic, queue) for queue in found)
        found |= {queue.queue_id: bounds for queue, bounds in of_one_moment.items()}
    for queue, (start, stop) in found.items():
        if start > stop:
            raise InvalidArgument(f"topic {topic!r}, queue {queue}: [{start}, {stop}) ends before it begins")
        first = start if begin is None else min(max(start, _stored_from(store, topic, queue, start, begin)), stop)
        last = stop if end is None else max(min(stop, _stored_from(store, topic, queue, start, end)), first)
        found[queue] = first, last
    return found


def _stored_from(store: Readable, topic: str, queue: int, start: int, timestamp: int) -> int:
    """Queue offset of the first message stored at `timestamp` (ms) or after. Raises `OffsetLost` where it may be one of
    those from `start` on that the store has no longer."""
    found = store.offset_by_time(topic, queue, timestamp)
    if start < found <= store.offsets(topic, queue)[0]:
        raise OffsetLost(
            f"topic {topic!r}, queue {queue}: which messages before offset {found} were stored at {timestamp} or after "
            "is not known here any more; begin there, or leave out the time"
        )
    return found


def to_arrow(
    store: Readable, topic: str, parts: Ranges, columns: Sequence[str], tags: str | MessageFilter | None
) -> pa.RecordBatchReader:
    """The messages of `parts`. What is wrong with an argument is raised at once, what reading meets while reading."""
    check_columns(columns)
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    scans = [store.scan(topic, queue, *part, columns, tags) for queue, part in parts.items()]
    return pa.RecordBatchReader.from_batches(schema, chain.from_iterable(scans))
