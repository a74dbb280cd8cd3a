"""Searches of a topic for a page: the newest messages, from a place on, or by key. Each has a limit."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from pyspark_mq.browsing import offsets_at, place_of
from pyspark_mq.console.body_text import preview
from store import (
    CorruptRecord,
    InvalidArgument,
    OffsetLost,
    OffsetNotYet,
    UnknownQueue,
    UnknownTopic,
    message_filter,
)
from store.format.layout import KEY_SEPARATOR
from store.model.log_protocol import Bounds, Log, MessageFilter, Queue, QueueRange, ReadSpec

SEARCHED = 200_000  # messages searched at most in each queue for one page
MOST = 500  # messages on a page at most
_COLUMNS = ("queueOffset", "msgId", "tags", "keys", "body", "bodyError", "storeTimestamp")
_ALL_COLUMNS = (
    *_COLUMNS,
    "bornTimestamp",
    "properties",
    "physicalOffset",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "flag",
    "sysFlag",
    "bodyCRC",
)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_FIELDS = ("queue", "place", "tags", "sql", "key", "count")


@dataclass(frozen=True)
class MessageSearch:
    """A search as written in the form.

    queue: "" for all queues. key: a key or a message id. place: "" for the newest messages.
    """

    topic: str
    queue: str = ""
    place: str = ""
    tags: str = ""
    sql: str = ""
    key: str = ""
    count: int = 50

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> MessageSearch:
        given = {name: parameters.get(name, "").strip() for name in ("queue", "place", "tags", "sql", "key")}
        number = parameters.get("count", "") or "50"
        if not number.isdecimal() or not 1 <= int(number) <= MOST:
            raise InvalidArgument(f"count is {number!r:.20}. Give a number from 1 to {MOST}")
        return cls(parameters.get("topic", ""), **given, count=int(number))

    @property
    def query(self) -> str:
        """The search as the query string of a URL."""
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name)}
        return urlencode({"topic": self.topic, **given})

    def at(self, offset: int) -> MessageSearch:
        return replace(self, place=str(max(0, offset)))


@dataclass(frozen=True)
class MessageLine:
    """A message in a table. If it cannot be read, only `error` is set."""

    queue: Queue
    offset: int
    stored: datetime | None = None
    tags: str | None = None
    keys: str | None = None
    preview: str = ""
    size: int | None = None
    error: str = ""


@dataclass(frozen=True)
class FoundMessages:
    """The result of a search.

    lines: the newest first, or in order from a place. is_partial: the limit ended the search.
    """

    lines: list[MessageLine]
    is_partial: bool


def queue_named(log: Log, topic: str, name: str) -> Queue:
    for queue in topic_queues(log, topic):
        if queue.name == name:
            return queue
    raise UnknownQueue(f"Topic {topic!r} has no queue {name!r:.40}")


def topic_queues(log: Log, topic: str) -> tuple[Queue, ...]:
    queues = log.topics().get(topic)
    if queues is None:
        raise UnknownTopic(f"Topic {topic!r:.80} does not exist")
    return queues


def find(log: Log, search: MessageSearch) -> FoundMessages:
    """Return the messages that match a search. At most `SEARCHED` messages of each queue are read.

    Raises `InvalidArgument`, `FilterError`, `UnknownTopic`, `UnknownQueue`.
    """
    queues = [queue_named(log, search.topic, search.queue)] if search.queue else topic_queues(log, search.topic)
    if search.tags and search.sql:
        raise InvalidArgument(
            "Tags and SQL are both given. Give one of them: SQL can ask for both, as in TAGS = 'paid' AND amount > 10"
        )
    accept = message_filter(search.sql, "SQL92") if search.sql else message_filter(search.tags or "*")
    bounds = log.bounds(queues)
    if search.key:
        return _with_key(log, bounds, search, accept)
    if not search.place or search.place == "latest":
        return _newest(log, bounds, search.count, accept)
    return _from_place(log, bounds, search, accept)


def _newest(log: Log, bounds: Mapping[Queue, Bounds], count: int, accept: MessageFilter) -> FoundMessages:
    lines, is_partial = list[MessageLine](), False
    for queue, has in bounds.items():
        found, end, step = list[MessageLine](), has.max_offset, count
        first = max(has.min_offset, end - SEARCHED)
        while len(found) < count and end > first:  # too few matched
            begin = max(first, end - step)
            found[:0] = readable(log, QueueRange(queue, begin, end), accept)
            end, step = begin, 2 * step
        is_partial |= len(found) < count and first > has.min_offset
        lines += _timed(found[-count:])
    return FoundMessages(heapq.nlargest(count, lines, key=_time), is_partial)


def _from_place(
    log: Log, bounds: Mapping[Queue, Bounds], search: MessageSearch, accept: MessageFilter
) -> FoundMessages:
    lines, is_partial = list[MessageLine](), False
    for queue, offset in offsets_at(log, bounds, place_of(search.place)).items():
        has = bounds[queue]
        begin, step = min(max(offset, has.min_offset), has.max_offset), search.count
        end, found = min(has.max_offset, begin + SEARCHED), list[MessageLine]()
        while len(found) < search.count and begin < end:
            stop = min(end, begin + step)
            found += readable(log, QueueRange(queue, begin, stop), accept)
            begin, step = stop, 2 * step
        is_partial |= len(found) < search.count and end < has.max_offset
        lines += _timed(found[: search.count])
    return FoundMessages(heapq.nsmallest(search.count, lines, key=_time), is_partial)


def _with_key(log: Log, bounds: Mapping[Queue, Bounds], search: MessageSearch, accept: MessageFilter) -> FoundMessages:
    lines, left = list[MessageLine](), SEARCHED
    pieces = log.with_keys([QueueRange(queue, *has) for queue, has in bounds.items()], [search.key])
    for piece in reversed(pieces):
        begin = max(piece.start, piece.end - left)
        left -= piece.end - begin
        lines += readable(log, piece._replace(start=begin), accept, search.key)
    is_partial = left == 0 and sum(piece.length for piece in pieces) > SEARCHED
    return FoundMessages(heapq.nlargest(search.count, lines, key=_time), is_partial)


def readable(log: Log, wanted: QueueRange, accept: MessageFilter, key: str = "") -> list[MessageLine]:
    """Return the matching messages of a range. A message that cannot be decoded becomes a line with its error."""
    try:
        return list(_lines(log, wanted, accept, key))
    except CorruptRecord as error:
        if wanted.length == 1:
            return [] if key else [MessageLine(wanted.queue, wanted.start, error=str(error))]
    except (OffsetLost, OffsetNotYet):  # deleted concurrently
        return []
    middle = wanted.start + wanted.length // 2
    halves = wanted._replace(end=middle), wanted._replace(start=middle)
    return [line for half in halves for line in readable(log, half, accept, key)]


def _lines(log: Log, wanted: QueueRange, accept: MessageFilter, key: str) -> Iterator[MessageLine]:
    if not wanted.length:
        return
    for batch in log.scan(wanted, ReadSpec(_COLUMNS, accept, unreadable="raw")):
        for row in batch.to_pylist():
            keys = row["keys"] or ""
            if key and key != row["msgId"] and key not in keys.split(KEY_SEPARATOR):
                continue
            body, error = row["body"], row["bodyError"]
            shown = error or preview(body)
            yield MessageLine(
                wanted.queue, row["queueOffset"], row["storeTimestamp"], row["tags"], keys, shown, len(body)
            )


def _timed(lines: list[MessageLine]) -> list[MessageLine]:
    """Give an unreadable message the time of the previous one, so that it keeps its place in the table."""
    timed, last = list[MessageLine](), _LONG_AGO
    for line in lines:
        last = line.stored or last
        timed.append(replace(line, stored=last))
    return timed


def _time(line: MessageLine) -> tuple[datetime, str, int]:
    return line.stored or _LONG_AGO, line.queue.name, line.offset


def message_at_offset(log: Log, queue: Queue, offset: int) -> dict[str, Any]:
    """Return all columns of one message. A body that does not decompress is returned compressed.

    Raises `OffsetLost`, `OffsetNotYet`, `UnknownTopic`, `CorruptRecord`.
    """
    wanted = QueueRange(queue, offset, offset + 1)
    spec = ReadSpec(_ALL_COLUMNS, message_filter("*"), unreadable="raw")
    rows = [row for batch in log.scan(wanted, spec) for row in batch.to_pylist()]
    if not rows:
        raise OffsetLost(f"{queue}: no message has offset {offset}. It was deleted, or it was never written")
    return dict(rows[0])
