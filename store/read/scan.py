"""A range of one queue as Arrow batches: entries, filter, records, columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.errors import CorruptRecord
from store.format.arrays import numbers
from store.format.columns import COLUMNS, PROPERTY_COLUMNS, Block, LightBlock
from store.format.inflating import Bounds, inflated
from store.format.layout import LIGHT_PREFIX, MIN_RECORD_BYTES
from store.format.strings import Bytes
from store.log.commit_log import CommitLog
from store.log.consume_queue import MAKE_ANEW, ConsumeQueue, Entries
from store.read.filters import TagFilter

_ENTRIES_AT_ONCE = 1 << 15  # they stay in the processor's cache until they are used
_FILTERED_ENTRIES_AT_ONCE = 8 * _ENTRIES_AT_ONCE  # where few pass a filter, batches shall not become small

Ints = npt.NDArray[np.int64]


def scan_queue(
    log: CommitLog,
    queue: ConsumeQueue,
    start: int,
    end: int,
    columns: Sequence[str],
    tag_filter: TagFilter,
    *,
    check_crc: bool,
    max_rows: int,
    bounds: Bounds,
) -> Iterator[pa.RecordBatch]:
    """Messages [start, end) that pass the filter, in order, decoded to `columns`.

    The range must be published. A batch has at most `max_rows` rows and `bounds.batch` bytes of records, one row
    at least, and does not cross a commit log segment. Raises `CorruptRecord`, `MessageTooLarge`.
    """
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    kind = LightBlock if queue.topic.startswith(LIGHT_PREFIX) else Block
    needs_properties = tag_filter.tags is not None or not PROPERTY_COLUMNS.isdisjoint(columns)
    with_bodies, with_tails = check_crc or "body" in columns, check_crc or needs_properties or kind is LightBlock
    block_of = partial(kind, queue.topic, queue.queue_id, with_bodies=with_bodies, with_tails=with_tails)
    at_once = _ENTRIES_AT_ONCE if tag_filter.tags is None else _FILTERED_ENTRIES_AT_ONCE
    while start < end:
        stop = min(end, start + at_once)
        queue_offsets, entries = _entries(queue, start, stop, tag_filter)
        physical, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        for first, last in _batches(physical, sizes, log.segments.size, max_rows, bounds.batch):
            rows = queue_offsets[first:last], physical[first:last], sizes[first:last]
            block = block_of(_view(log, queue, *rows), int(physical[first]), *rows)
            if check_crc:
                block.check_crc()
            if needs_properties:
                block.check_tags_codes(entries["tags_code"][first:last].astype(np.int64))
            batch = pa.RecordBatch.from_arrays([block.column(name) for name in columns], schema=schema)
            kept = np.arange(len(block))
            if tag_filter.tags is not None:
                matches = tag_filter.match_tags(block.column("tags"))
                batch, kept = batch.filter(matches), np.flatnonzero(numbers(matches))
            if len(kept):
                yield from inflated(batch, block.sys_flags[kept], partial(_where, block, kept), bounds)
        start = stop


def _where(block: Block, rows: Ints, row: int) -> str:
    return block.where(int(rows[row]))


def _entries(queue: ConsumeQueue, start: int, stop: int, tag_filter: TagFilter) -> tuple[Ints, Entries]:
    """Those of the entries [start, stop) that may pass the filter, with their queue offsets before them."""
    if tag_filter.tags is None:
        return np.arange(start, stop), queue.entries(start, stop)
    offsets, kept = [], []
    for first in range(start, stop, _ENTRIES_AT_ONCE):
        entries = queue.entries(first, min(stop, first + _ENTRIES_AT_ONCE))
        rows = np.flatnonzero(tag_filter.match_codes(entries["tags_code"].astype(np.int64)))
        offsets.append(first + rows)
        kept.append(entries[rows])
    return np.concatenate(offsets), np.concatenate(kept)


def _view(log: CommitLog, queue: ConsumeQueue, queue_offsets: Ints, physical: Ints, sizes: Ints) -> Bytes:
    """The stretch of the log from the first to the last of these records."""
    begin, end = int(physical[0]), int(physical[-1] + sizes[-1])
    ascending = (physical[1:] > physical[:-1]).all()
    if not ascending or begin < 0 or end > log.next_segment(begin) or sizes.min() < MIN_RECORD_BYTES:
        raise CorruptRecord(
            f"{queue.topic}, queue {queue.queue_id}, offsets {queue_offsets[0]} to {queue_offsets[-1]}: the queue's "
            f"entries are no records in ascending order; {MAKE_ANEW}"
        )
    return log.segments.view(begin, end - begin)


def _batches(
    physical: Ints, sizes: Ints, segment_size: int, max_rows: int, max_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cut rows into [first, last) pieces within one segment each, bounded by rows and bytes.

    Pieces are about as long as each other: with short ones among them Spark takes up to 7 % more time for all.
    """
    if not len(sizes):
        return
    ends = np.cumsum(sizes)
    pieces = -(-int(ends[-1]) // max_bytes)
    max_bytes = min(max_bytes, int(ends[-1]) // pieces + int(sizes.max()))
    cuts = np.array([len(sizes)])
    if physical[0] // segment_size != physical[-1] // segment_size:
        cuts = np.append(np.flatnonzero(np.diff(physical // segment_size)) + 1, cuts)
    first = 0
    while first < len(sizes):
        done = ends[first - 1] if first else 0
        by_bytes = max(first + 1, int(np.searchsorted(ends, done + max_bytes, side="right")))
        by_segment = int(cuts[np.searchsorted(cuts, first, side="right")])
        last = min(first + max_rows, by_bytes, by_segment)
        yield first, last
        first = last
