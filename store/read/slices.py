"""What a pull over the wire is answered with: records as they stand in the log, mapped, not decoded."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from store.files.config import StoreConfig
from store.format.entering import QueueEntry
from store.format.layout import MIN_RECORD_BYTES
from store.format.stored_message import decode_record
from store.log.commit_log import CommitLog
from store.log.consume_queue import MAKE_ANEW, ConsumeQueue, Entries
from store.model.errors import CorruptRecord
from store.model.log_protocol import Int64s, MessageFilter
from store.read.blocks import may_match

_BY_TAG = {"tags"}
_LOOK_SECONDS = 0.02  # for conditions on properties: each message is decoded


class Slices(NamedTuple):
    """records: bytes of the log, each one record or several that stand one behind another. next_begin: the queue offset
    behind what was looked at."""

    records: list[memoryview]
    next_begin: int


def slices(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    entries: Entries,
    message_filter: MessageFilter,
    count_limit: int,
    config: StoreConfig,
) -> Slices:
    """The records of the first of `entries` that match, `count_limit` at most, the first always. Who serves others in
    the same thread waits for no more than a condition's look at one message, and then `_LOOK_SECONDS`.

    By tags as RocketMQ's broker: the hash decides here, and the client compares the tags themselves. Raises
    `CorruptRecord`, `OffsetLost`.
    """
    count_limit = max(1, count_limit)
    rows = np.flatnonzero(may_match(entries, message_filter))
    if not _BY_TAG.issuperset(message_filter.columns):
        rows, looked_at = _matching(log, queue, offset, entries, rows, message_filter, count_limit)
        entries = entries[:looked_at]
    chosen = rows[:count_limit]
    sizes = entries["size"][chosen].astype(np.int64)
    fitting = int(np.searchsorted(np.cumsum(sizes), config.maxTransferBytesOnMessageInMemory, side="right"))
    chosen = chosen[: max(1, fitting)]
    next_begin = offset + (int(rows[len(chosen)]) if len(chosen) < len(rows) else len(entries))
    return Slices(_mapped(log, queue, offset, entries, chosen), next_begin)


def _matching(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    entries: Entries,
    rows: Int64s,
    message_filter: MessageFilter,
    count_limit: int,
) -> tuple[Int64s, int]:
    """Those of `rows` whose properties match; behind as many as are wanted the next one, which says where to go on. And
    how many of `entries` were looked at before the time for it was over, one at least."""
    matching: list[int] = []
    until = time.thread_time() + _LOOK_SECONDS
    for number, row in enumerate(rows.tolist()):
        if number and time.thread_time() > until:
            return np.array(matching, np.int64), row
        if len(matching) == count_limit:
            matching.append(row)
            break
        record = _view(log, queue, offset, entries, row, row + 1).tobytes()
        message = decode_record(record, QueueEntry(queue.topic, queue.queue_id, offset + row, *entries[row].item()))
        if message_filter.match(message.tags, message.properties):
            matching.append(row)
    return np.array(matching, np.int64), len(entries)


def _mapped(log: CommitLog, queue: ConsumeQueue, offset: int, entries: Entries, rows: Int64s) -> list[memoryview]:
    """The records of these rows, neighbours together."""
    if not len(rows):
        return []
    physical, sizes = entries["physical_offset"][rows].astype(np.int64), entries["size"][rows].astype(np.int64)
    apart = np.flatnonzero((physical[1:] != physical[:-1] + sizes[:-1]) | (physical[1:] % log.segments.size == 0)) + 1
    bounds = [0, *apart.tolist(), len(rows)]
    return [
        _view(log, queue, offset, entries, int(rows[first]), int(rows[end - 1]) + 1) for first, end in pairwise(bounds)
    ]


def _view(log: CommitLog, queue: ConsumeQueue, offset: int, entries: Entries, first: int, end: int) -> memoryview:
    """The log from the record of row `first` to that of row `end - 1`. Raises `OffsetLost`, `CorruptRecord`."""
    begin = int(entries["physical_offset"][first])
    stop = int(entries["physical_offset"][end - 1]) + int(entries["size"][end - 1])
    is_one = begin >= 0 and (end - first > 1 or log.can_be_record(begin, stop - begin))
    if not is_one or not begin + MIN_RECORD_BYTES <= stop <= log.next_segment(begin):
        raise CorruptRecord(
            f"{queue.topic}, queue {queue.queue_id}, offset {offset + first}: an entry of {stop - begin} bytes at "
            f"{begin} of the log; {MAKE_ANEW}"
        )
    return log.segments.view(begin, stop - begin).data
