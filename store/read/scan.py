"""A range of one queue as Arrow batches: entries, filter, records, columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from store.log.consume_queue import Entries
from store.log.sources import EntryQueue, RecordLog
from store.model.log_protocol import Int64s, MessageFilter, ReadSpec
from store.read.blocks import block_of, may_match
from store.read.decoding import Decoding

_ENTRIES_AT_ONCE = 1 << 15  # they stay in the processor's cache until they are used
_FILTERED_ENTRIES_AT_ONCE = 8 * _ENTRIES_AT_ONCE  # where few pass a filter, batches shall not become small


def scan_queue(
    log: RecordLog,
    queue: EntryQueue,
    start: int,
    end: int,
    spec: ReadSpec,
    max_body_bytes: int,
    *,
    max_stretch: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Messages [start, end) that match, in order, decoded to the columns of `spec`.

    The range must be published. max_body_bytes: unless `spec` says otherwise. A batch does not cross a commit log
    segment, nor is it made of more than `max_stretch` bytes of the log where that is given: others than a file's are
    not read for nothing. Raises `CorruptRecord`, `MessageTooLarge`.
    """
    decoding = Decoding(spec, max_body_bytes)
    at_once = _FILTERED_ENTRIES_AT_ONCE if spec.message_filter.columns else _ENTRIES_AT_ONCE
    while start < end:
        stop = min(end, start + at_once)
        queue_offsets, entries = _entries(queue, start, stop, spec.message_filter)
        physical, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        bounds = physical, sizes, log.segments.size, spec.max_rows, spec.max_bytes, max_stretch
        for first, last in batch_bounds(*bounds):
            rows = queue_offsets[first:last], physical[first:last], sizes[first:last]
            block = block_of(log, queue, *rows, with_bodies=decoding.with_bodies, with_trailers=decoding.with_trailers)
            yield from decoding.batches(block, entries["tags_code"][first:last].astype(np.int64))
        start = stop


def _entries(queue: EntryQueue, start: int, stop: int, message_filter: MessageFilter) -> tuple[Int64s, Entries]:
    """Those of the entries [start, stop) that may pass the filter, with their queue offsets before them."""
    if not message_filter.columns:
        return np.arange(start, stop), queue.entries(start, stop)
    offsets, kept = [], []
    for first in range(start, stop, _ENTRIES_AT_ONCE):
        entries = queue.entries(first, min(stop, first + _ENTRIES_AT_ONCE))
        rows = np.flatnonzero(may_match(entries, message_filter))
        offsets.append(first + rows)
        kept.append(entries[rows])
    return np.concatenate(offsets), np.concatenate(kept)


def batch_bounds(
    physical: Int64s, sizes: Int64s, segment_size: int, max_rows: int, max_bytes: int, max_stretch: int | None = None
) -> Iterator[tuple[int, int]]:
    """Cut rows into [first, last) pieces within one segment each, bounded by rows and bytes.

    Pieces are about as long as each other: with short ones among them Spark takes up to 7 % more time for all.
    """
    if not len(sizes):
        return
    ends = np.cumsum(sizes)
    pieces = max(1, -(-int(ends[-1]) // max_bytes))  # none: damaged entries may have no bytes
    max_bytes = min(max_bytes, int(ends[-1]) // pieces + int(sizes.max()))
    segments = np.array([len(sizes)])
    if physical[0] // segment_size != physical[-1] // segment_size:
        segments = np.append(np.flatnonzero(np.diff(physical // segment_size)) + 1, segments)
    first = 0
    while first < len(sizes):
        done = ends[first - 1] if first else 0
        by_bytes = max(first + 1, int(np.searchsorted(ends, done + max_bytes, side="right")))
        by_segment = int(segments[np.searchsorted(segments, first, side="right")])
        last = min(first + max_rows, by_bytes, by_segment)
        if max_stretch is not None:
            near = int(np.searchsorted(physical[first:last], physical[first] + max_stretch))
            last = min(last, first + max(1, near))
        yield first, last
        first = last
