from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from store.api.store_reader import StoreReader
from store.format.columns import FIRST_MS, LAST_MS, TIMESTAMP
from store.model.errors import OffsetLost, UnknownTopic
from store.model.html_table import html_table
from store.model.integers import iso_time
from store.model.log_protocol import Bounds, Positions, Queue

TOPICS_SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "queues": pa.int32(),
        "messages": pa.int64(),
        "bytes": pa.int64(),
        "newest": TIMESTAMP,
    }
)
GROUPS_SCHEMA = pa.schema(
    {
        "group": pa.string(),
        "topic": pa.string(),
        "queueId": pa.int32(),
        "offset": pa.int64(),
        "maxOffset": pa.int64(),
        "lag": pa.int64(),
    }
)
_SIZES_AT_ONCE = 1_000_000
_SHOWN_ROWS = 50
_SIZED_MESSAGES = 1_000_000


class TopicRow(NamedTuple):
    """A topic with its numbers. size: bytes of its records, None if unknown. newest: last store time, ms since 1970."""

    topic: str
    queues: int
    messages: int
    size: int | None
    newest: int | None


def topics_table(store: StoreReader) -> pa.Table:
    """Return a row for each topic. Raises as `StoreReader.sizes`."""
    rows = topic_rows(store, store.topics())
    return _table([(*row[:-1], row.newest and row.newest * 1000) for row in rows], TOPICS_SCHEMA)


def _table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def topic_rows(store: StoreReader, topics: Iterable[str], sized: int | None = None) -> Iterator[TopicRow]:
    """Yield a row for each topic that exists. sized: a topic with more messages than this has no size."""
    counts = store.topics()
    for topic in topics:
        with suppress(UnknownTopic):  # deleted concurrently
            yield _topic_row(store, topic, counts.get(topic, 0), sized)


def _topic_row(store: StoreReader, topic: str, queues: int, sized: int | None) -> TopicRow:
    bounds = store.bounds(Queue(topic, queue_id) for queue_id in range(queues))
    if not bounds:
        raise UnknownTopic(f"{store.path}: topic {topic!r} does not exist")
    messages = sum(end - first for first, end in bounds.values())
    try:
        size = None if sized is not None and messages > sized else _size(store, bounds)
    except OffsetLost:
        now = store.bounds(bounds)
        if all(queue in now and now[queue].min_offset == first for queue, (first, _) in bounds.items()):
            raise
        return _topic_row(store, topic, queues, sized)  # some were deleted concurrently
    return TopicRow(topic, len(bounds), messages, size, _newest(store, bounds))


def _size(store: StoreReader, bounds: Mapping[Queue, Bounds]) -> int:
    return sum(sum(record_bytes(store, queue.topic, queue.queue_id, *has)) for queue, has in bounds.items())


def record_bytes(store: StoreReader, topic: str, queue: int, first: int, end: int) -> Iterator[int]:
    """Yield the records' total size for a million messages at a time."""
    for start in range(first, end, _SIZES_AT_ONCE):
        yield int(store.sizes(topic, queue, start, min(start + _SIZES_AT_ONCE, end)).sum())


def _newest(store: StoreReader, bounds: Mapping[Queue, Bounds]) -> int | None:
    last = {queue: end - 1 for queue, (first, end) in bounds.items() if first < end}
    times = [each.store_timestamp for each in store.fingerprints(last).values()]
    return max((time for time in times if FIRST_MS <= time <= LAST_MS), default=None)


def store_html(store: StoreReader, committed: Mapping[str, Positions]) -> str:
    """Return the first topics and lags as HTML tables. committed: each group's offsets."""
    return topics_html(store) + groups_html(store, committed)


def topics_html(store: StoreReader) -> str:
    """Return the first topics as an HTML table, without sizes of large topics."""
    topics = list(store.topics())
    shown = topics[:_SHOWN_ROWS]
    rows: list[tuple[object, ...]] = [
        (*each[:-1], None if each.newest is None else iso_time(each.newest), _in_last_minute(store, each))
        for each in topic_rows(store, shown, _SIZED_MESSAGES)
    ]
    more = len(topics) - len(shown)
    caption = repr(store) if not more else f"{store!r}; the other {more} are in topics_table()"
    return html_table(caption, [*TOPICS_SCHEMA.names, "in the last minute"], rows)


def groups_html(store: StoreReader, committed: Mapping[str, Positions]) -> str:
    """Return the lags of groups as an HTML table, "" without groups."""
    lags = Counter[tuple[str, str]]()
    for row in groups_table(store, committed).to_pylist():
        if row["topic"] is not None:
            lags[row["group"], row["topic"]] += row["lag"]
    rows = [(*names, lag) for names, lag in sorted(lags.items())]
    more = len(rows) - _SHOWN_ROWS
    caption = "Consumer groups" if more <= 0 else f"Consumer groups; the other {more} are in groups_table()"
    return html_table(caption, ["group", "topic", "lag"], rows[:_SHOWN_ROWS]) if rows else ""


def _in_last_minute(store: StoreReader, row: TopicRow) -> int:
    since = round(time.time() * 1000) - 60_000
    if row.newest is None or row.newest < since:
        return 0
    with suppress(UnknownTopic):
        bounds = store.bounds(Queue(row.topic, queue_id) for queue_id in range(row.queues))
        return sum(
            max(0, end - store.offset_by_time(queue.topic, queue.queue_id, since)) for queue, (_, end) in bounds.items()
        )
    return 0


def groups_table(store: StoreReader, committed: Mapping[str, Positions]) -> pa.Table:
    rows = [row for group, positions in sorted(committed.items()) for row in _group_rows(store, group, positions)]
    return _table(rows, GROUPS_SCHEMA)


def _group_rows(store: StoreReader, group: str, positions: Positions) -> list[tuple[object, ...]]:
    counts = store.topics()
    topics = sorted({queue.topic for queue in positions if queue.topic in counts})
    bounds = store.bounds(Queue(topic, queue_id) for topic in topics for queue_id in range(counts[topic]))
    rows: list[tuple[object, ...]] = []
    for queue, has in bounds.items():
        offset = positions.get(queue)
        rows.append((group, queue.topic, queue.queue_id, offset, has.max_offset, has.unread(offset)))
    return rows or [(group, *[None] * 5)]
