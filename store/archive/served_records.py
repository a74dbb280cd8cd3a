"""What a server tells its clients as the commit log offset of an archived message, so that it is found again by that.

An archived record has the offset that it has in its queue's own log, which many have. Clients name a message by its
offset alone, where they send it back, and in ids: so they are told one that no log of a store ever reaches, and that
says which message it is.

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
from store.format.layout import CQ_ENTRY
from store.model.log_protocol import Int64s, MessageFilter
from store.read.scan import batch_bounds, block_of, may_match

_BITS: Final = 63
_TOPIC_BITS: Final = 12
_QUEUE_BITS: Final = 10
_OFFSET_BITS: Final = 40
_ARCHIVED: Final = 1 << (_BITS - 1)
NAMELESS: Final = (1 << _BITS) - 1  # of a message whose numbers are too large

assert 1 + _TOPIC_BITS + _QUEUE_BITS + _OFFSET_BITS == _BITS


class NamedMessage(NamedTuple):
    """topic_number: in the archive, see `Catalog.topics`."""

    topic_number: int
    queue_id: int
    queue_offset: int


def names(topic_number: int, queue_id: int, queue_offsets: Int64s) -> Int64s:
    """One for each message of a queue, shape of `queue_offsets`."""
    if topic_number >= (1 << _TOPIC_BITS) - 1 or queue_id >= 1 << _QUEUE_BITS:
        return np.full(queue_offsets.shape, NAMELESS, np.int64)
    of_queue = _ARCHIVED | topic_number << (_QUEUE_BITS + _OFFSET_BITS) | queue_id << _OFFSET_BITS
    return np.where(queue_offsets >> _OFFSET_BITS, NAMELESS, of_queue | queue_offsets)


def is_name(physical_offset: int) -> bool:
    """Whether an offset is of an archived message, and not of a store's log."""
    return physical_offset >= _ARCHIVED


def named(physical_offset: int) -> NamedMessage | None:
    """Which message is meant; None where nothing says it."""
    if not is_name(physical_offset) or physical_offset >= NAMELESS:
        return None
    rest, queue_offset = divmod(physical_offset - _ARCHIVED, 1 << _OFFSET_BITS)
    return NamedMessage(*divmod(rest, 1 << _QUEUE_BITS), queue_offset)


_BY_TAG = {"tags"}
_STRETCH_BYTES = 1 << 20  # of the log, looked at together
_MOST_BYTES = 16 << 20  # that are looked at for one pull


class ServedRecords(NamedTuple):
    """records: pieces, each of whole records. next_begin: the queue offset behind what was looked at."""

    records: list[memoryview]
    next_begin: int


class _Entries(NamedTuple):
    """queue_offsets, physical_offsets, sizes, tags_codes: int64, shape (n,)."""

    queue_offsets: Int64s
    physical_offsets: Int64s
    sizes: Int64s
    tags_codes: Int64s

    def at(self, rows: Int64s | slice) -> _Entries:
        return _Entries(*(each[rows] for each in self))


def records_of(
    it: FlatQueue, topic_number: int, start: int, end: int, message_filter: MessageFilter, most: int, max_bytes: int
) -> ServedRecords:
    """Of messages [start, end), one at least, those that match: at most `most`, and `max_bytes`, the first always.

    By tags as a broker: the hash decides here, and the client compares the tags themselves. topic_number: see `names`.
    Raises `CorruptRecord`, `OffsetLost`, `CorruptSegment`, `ObjectsUnavailable`.
    """
    found = it.entries.entries(start, end)
    columns = [found[name].astype(np.int64) for name in CQ_ENTRY.names or ()]
    entries = _Entries(np.arange(start, end), *columns)
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
        pieces.append(block.naming(offsets[first:last]).data)
    return ServedRecords(pieces, end)


def _blocks(it: FlatQueue, entries: _Entries) -> Iterator[tuple[int, int, Block]]:
    """Rows [first, last) and their records, checked, some at a time."""
    count = len(entries.sizes)
    where = entries.physical_offsets, entries.sizes, it.log.size, count, _STRETCH_BYTES
    for first, last in batch_bounds(*where, max_stretch=_STRETCH_BYTES):
        some = entries.at(slice(first, last))
        block = block_of(it.log, it.entries, some.queue_offsets, some.physical_offsets, some.sizes)
        block.check_crc()
        block.check_tags_codes(some.tags_codes)
        yield first, last, block


def _matching(
    it: FlatQueue, entries: _Entries, rows: Int64s, message_filter: MessageFilter, most: int, end: int
) -> tuple[Int64s, int]:
    """Those of `rows` whose properties match, one more than `most` at least if there are so many; and the queue offset
    behind what was looked at, `end` where that is all."""
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
