"""Archived records as a server sends them to its clients: filtered, checked, and with unique physical offsets.

A client identifies a message by its physical offset, but in the archive each queue has its own log with offsets from 0.
So the server replaces the offset by the message's name, a number above all offsets of a commit log:

    bit 62 | number of the topic in the archive | queue | queue offset
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from store.archive.flat import FlatQueue
from store.format.arrays import numbers
from store.format.columns import Block
from store.model.log_protocol import Int64s, MessageFilter, QueueRange
from store.read.getting import RecordPieces
from store.read.scan import EntryColumns, batch_bounds, checked_block, may_match

_BY_TAG = {"tags"}
_STRETCH_BYTES = 1 << 20  # of the log, per read
_MOST_BYTES = 16 << 20  # limit of the bytes read for one pull with a filter on properties

_BITS: Final = 63
_TOPIC_BITS: Final = 12
_QUEUE_BITS: Final = 10
_OFFSET_BITS: Final = 40
_ARCHIVED: Final = 1 << (_BITS - 1)
NAMELESS: Final = (1 << _BITS) - 1  # for a topic number, queue or offset that needs more bits

assert 1 + _TOPIC_BITS + _QUEUE_BITS + _OFFSET_BITS == _BITS


class NamedMessage(NamedTuple):
    """The message that a name identifies. topic_number: from `Catalog.topics`."""

    topic_number: int
    queue_id: int
    queue_offset: int


def names(topic_number: int, queue_id: int, queue_offsets: Int64s) -> Int64s:
    """Return the names of a queue's messages, in the shape of `queue_offsets`."""
    if topic_number >= (1 << _TOPIC_BITS) - 1 or queue_id >= 1 << _QUEUE_BITS:
        return np.full(queue_offsets.shape, NAMELESS, np.int64)
    of_queue = _ARCHIVED | topic_number << (_QUEUE_BITS + _OFFSET_BITS) | queue_id << _OFFSET_BITS
    return np.where(queue_offsets >> _OFFSET_BITS, NAMELESS, of_queue | queue_offsets)


def is_name(physical_offset: int) -> bool:
    return physical_offset >= _ARCHIVED


def named(physical_offset: int) -> NamedMessage | None:
    """Return the message that a name identifies, None for `NAMELESS` and for real log offsets."""
    if not is_name(physical_offset) or physical_offset >= NAMELESS:
        return None
    rest, queue_offset = divmod(physical_offset - _ARCHIVED, 1 << _OFFSET_BITS)
    return NamedMessage(*divmod(rest, 1 << _QUEUE_BITS), queue_offset)


def records_of(
    it: FlatQueue, topic_number: int, wanted: QueueRange, message_filter: MessageFilter, most: int, max_bytes: int
) -> RecordPieces:
    """Return the matching records of a range, and the offset at which the next call continues.

    A filter by tags compares only their hashes. The range must not be empty. most, max_bytes: limits of the result. The
    first match is returned even if it is larger. Raises `CorruptRecord`, `OffsetLost`, `CorruptSegment`,
    `ObjectsUnavailable`.
    """
    start, end = wanted.start, wanted.end
    found = it.entries.entries(start, end)
    entries = EntryColumns.of(np.arange(start, end), found)
    rows = np.flatnonzero(may_match(found, message_filter))
    if not _BY_TAG.issuperset(message_filter.columns):
        rows, end = _matching(it, entries, rows, message_filter, most, end)
    chosen = rows[:most]
    fitting = int(np.searchsorted(np.cumsum(entries.sizes[chosen]), max_bytes, side="right"))
    chosen = chosen[: max(1, fitting)]
    if len(chosen) < len(rows):
        end = int(entries.queue_offsets[rows[len(chosen)]])
    offsets = names(topic_number, it.queue.queue_id, entries.queue_offsets[chosen])
    pieces = []
    for first, last, block in _blocks(it, entries.at(chosen)):
        pieces.append(block.moved(offsets[first:last]).data)
    return RecordPieces(pieces, end)


def _blocks(it: FlatQueue, entries: EntryColumns) -> Iterator[tuple[int, int, Block]]:
    count = len(entries.sizes)
    where = entries.physical_offsets, entries.sizes, it.log.size, count, _STRETCH_BYTES
    for first, last in batch_bounds(*where, max_stretch=_STRETCH_BYTES):
        yield first, last, checked_block(it.log, it.entries, entries.at(slice(first, last)))


def _matching(
    it: FlatQueue, entries: EntryColumns, rows: Int64s, message_filter: MessageFilter, most: int, end: int
) -> tuple[Int64s, int]:
    """Return the matching rows, and the queue offset of the first row that was not examined, or `end`."""
    matching, taken = [np.empty(0, np.int64)], 0
    some = entries.at(rows)
    for first, last, block in _blocks(it, some):
        columns = [block.column(name) for name in message_filter.columns]
        batch = pa.RecordBatch.from_arrays(columns, names=list(message_filter.columns))
        matching.append(rows[first:last][np.flatnonzero(numbers(message_filter.match_batch(batch)))])
        taken += int(some.sizes[first:last].sum())
        if last < len(rows) and (sum(map(len, matching)) > most or taken >= _MOST_BYTES):
            return np.concatenate(matching), int(some.queue_offsets[last])
    return np.concatenate(matching), end
