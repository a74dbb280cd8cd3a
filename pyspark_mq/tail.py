"""Following a topic in plain Python: what is published, in the order in which it was appended."""

import base64
import heapq
import json
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from store import MessageStore, OffsetNotYet

COLUMNS = (
    "queueId",
    "queueOffset",
    "msgId",
    "tags",
    "keys",
    "body",
    "bornTimestamp",
    "storeTimestamp",
    "properties",
    "physicalOffset",
)
# An arrival ends a wait at once; this only bounds how long a new queue without messages goes unnoticed, or what a
# broker has in its log, but not yet in its queues.
WAIT_SECONDS = 1.0

Row = dict[str, Any]


def follow(
    store: MessageStore, topic: str, start: str | int, queue: int | None = None, tags: str | None = None
) -> Iterator[Iterator[Row]]:
    """The messages of `topic` in rounds, one for what is there and one for each arrival; never ends.

    `start` is "earliest", "latest" or an offset that counts in every queue. `queue` None follows all queues,
    also those added later, from their beginning. A row is `COLUMNS`, as Python values. A round must be
    read to its end before the next. Raises UnknownTopic, UnknownQueue, OffsetLost, OffsetNotYet.
    """
    positions: dict[int, int] = {}
    if start == "latest":
        positions = ends(store, topic, queue)
    elif start != "earliest":
        positions = dict.fromkeys(ends(store, topic, queue), int(start))
    while True:
        seen = store.confirm_offset
        reached = ends(store, topic, queue)
        queues = [rows(store, topic, queue_id, positions.get(queue_id), end, tags) for queue_id, end in reached.items()]
        yield heapq.merge(*queues, key=itemgetter("physicalOffset"))
        positions = reached
        store.wait(seen, WAIT_SECONDS)


def ends(store: MessageStore, topic: str, queue: int | None) -> dict[int, int]:
    """The end of `queue`, or of every queue of `topic`."""
    # Of an unknown topic queue 0 is asked for, so that the store says what is wrong.
    queues = range(store.topics().get(topic, 1)) if queue is None else [queue]
    return {queue_id: store.max_offset(topic, queue_id) for queue_id in queues}


def rows(
    store: MessageStore, topic: str, queue_id: int, start: int | None, end: int, tags: str | None
) -> Iterator[Row]:
    """Messages [start, end) of one queue; from its first one when `start` is None."""
    begin = min(store.min_offset(topic, queue_id), end) if start is None else start
    if begin > end:
        raise OffsetNotYet(f"{topic}, queue {queue_id}: there is no offset {begin} yet, the next one is {end}")
    for batch in store.scan(topic, queue_id, begin, end, columns=COLUMNS, tags=tags):
        yield from batch.to_pylist()


def body_line(row: Row) -> bytes:
    return bytes(row["body"])


def json_line(row: Row) -> bytes:
    """The row as a JSON object; a body that is not UTF-8 is given as `bodyBase64`."""
    shown = {name: row[name] for name in COLUMNS if name != "physicalOffset"}
    try:
        shown["body"] = row["body"].decode()
    except UnicodeDecodeError:
        del shown["body"]
        shown["bodyBase64"] = base64.b64encode(row["body"]).decode()
    shown["properties"] = dict(row["properties"] or ())
    return json.dumps(shown, ensure_ascii=False, default=lambda instant: instant.isoformat()).encode()
