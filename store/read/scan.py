"""Read a range of one queue as Arrow batches, or as raw records to copy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from store.disk.queue_files import MAKE_ANEW, Entries
from store.format.arrays import Bytes, numbers
from store.format.columns import COLUMNS, PROPERTY_COLUMNS, Block, BlockRows, LightBlock
from store.format.inflating import BodyBounds, inflated
from store.format.layout import CQ_PRE_BLANK_SIZE, LIGHT_PREFIX, MIN_RECORD_BYTES
from store.model.errors import CorruptRecord, OffsetLost
from store.model.log_protocol import Bools, Int64s, MessageFilter, Queue, ReadSpec


class LogBytes(Protocol):
    """A log in segments of `size` bytes. A read must not cross a segment's end."""

    @property
    def size(self) -> int: ...

    def view(self, offset: int, length: int) -> Bytes:
        """Return bytes, shape (length,). Raises `OffsetLost`, `CorruptSegment`."""

    def read(self, offset: int, length: int, *, current: bool = False) -> bytes:
        """Return a few bytes. current: as in `Segments.read`. Raises as `view`."""


class RecordLog(Protocol):
    @property
    def segments(self) -> LogBytes: ...

    def min_offset(self) -> int: ...

    def next_segment(self, offset: int) -> int: ...


class EntryQueue(Protocol):
    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    def entries(self, start: int, end: int, *, current: bool = False) -> Entries:
        """Return entries [start, end). Raises `OffsetLost`, `CorruptSegment`."""


_ENTRIES_AT_ONCE = 1 << 15  # fits into the CPU cache
_FILTERED_ENTRIES_AT_ONCE = 8 * _ENTRIES_AT_ONCE  # more, for larger batches if few entries match


class EntryColumns(NamedTuple):
    """n entries of a queue, shape (n,) each."""

    queue_offsets: Int64s
    physical_offsets: Int64s
    sizes: Int64s
    tags_codes: Int64s

    @staticmethod
    def of(queue_offsets: Int64s, entries: Entries) -> EntryColumns:
        columns = (entries[name].astype(np.int64) for name in ("physical_offset", "size", "tags_code"))
        return EntryColumns(queue_offsets, *columns)

    def at(self, rows: Int64s | slice) -> EntryColumns:
        return EntryColumns(*(each[rows] for each in self))


def scan_queue(
    log: RecordLog, queue: EntryQueue, start: int, end: int, decoding: Decoding, max_stretch: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the matching messages of published queue offsets [start, end), in order.

    A batch does not cross a commit log segment. max_stretch: limit of the log bytes that a batch spans, for remote
    logs. Raises `CorruptRecord`, `UnreadableBody`.
    """
    spec = decoding.spec
    at_once = _FILTERED_ENTRIES_AT_ONCE if spec.message_filter.columns else _ENTRIES_AT_ONCE
    while start < end:
        stop = min(end, start + at_once)
        entries = _matching_entries(queue, start, stop, spec.message_filter)
        bounds = entries.physical_offsets, entries.sizes, log.segments.size, spec.max_rows, spec.max_bytes, max_stretch
        for first, last in batch_bounds(*bounds):
            some = entries.at(slice(first, last))
            block = block_of(log, queue, some, with_bodies=decoding.with_bodies, with_trailers=decoding.with_trailers)
            yield from decoding.batches(block, some.tags_codes)
        start = stop


class CheckedBlock(NamedTuple):
    """n complete messages with correct checksums, and their entries."""

    block: Block
    entries: EntryColumns


def checked_blocks(log: RecordLog, queue: EntryQueue, start: int, end: int, max_bytes: int) -> Iterator[CheckedBlock]:
    """Yield the messages of published queue offsets [start, end), in order.

    A block is within one segment and has at most `max_bytes`, or one message. Raises `CorruptRecord`, `OffsetLost`.
    """
    while start < end:
        stop = min(end, start + _ENTRIES_AT_ONCE)
        entries = EntryColumns.of(np.arange(start, stop), queue.entries(start, stop))
        bounds = entries.physical_offsets, entries.sizes, log.segments.size, stop - start, max_bytes
        for first, last in batch_bounds(*bounds):
            some = entries.at(slice(first, last))
            yield CheckedBlock(checked_block(log, queue, some), some)
        start = stop


def checked_block(log: RecordLog, queue: EntryQueue, entries: EntryColumns) -> Block:
    """Return messages as `block_of`, after comparing checksums and tags codes."""
    block = block_of(log, queue, entries)
    block.check_crc()
    block.check_tags_codes(entries.tags_codes)
    return block


def block_of(
    log: RecordLog,
    queue: EntryQueue,
    entries: EntryColumns,
    *,
    with_bodies: bool = True,
    with_trailers: bool = True,
) -> Block:
    """Return the messages of at least one entry, in one segment. Raises `CorruptRecord`, `OffsetLost`.

    with_bodies, with_trailers: see `Block`.
    """
    kind = LightBlock if queue.topic.startswith(LIGHT_PREFIX) else Block
    view, begin = _stretch(log, queue, entries), int(entries.physical_offsets[0])
    where = Queue(queue.topic, queue.queue_id), view, begin, BlockRows(*entries[:3])
    return kind(*where, with_bodies=with_bodies, with_trailers=with_trailers or kind is LightBlock)


def may_match(entries: Entries, message_filter: MessageFilter) -> Bools:
    """Return a mask of the entries that may match.

    Includes empty entries: they are damaged, and their tags code is meaningless.
    """
    return message_filter.match_codes(entries["tags_code"].astype(np.int64)) | (entries["size"] <= 0)


def batch_bounds(
    physical: Int64s, sizes: Int64s, segment_size: int, max_rows: int, max_bytes: int, max_stretch: int | None = None
) -> Iterator[tuple[int, int]]:
    """Split rows into pieces [first, last) within one segment and the limits.

    Pieces have about equal size: Spark takes up to 7 % more time if some are short.
    """
    if not len(sizes):
        return
    ends = np.cumsum(sizes)
    pieces = max(1, -(-int(ends[-1]) // max_bytes))  # damaged entries may have no bytes
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


def _matching_entries(queue: EntryQueue, start: int, stop: int, message_filter: MessageFilter) -> EntryColumns:
    if not message_filter.columns:
        return EntryColumns.of(np.arange(start, stop), queue.entries(start, stop))
    offsets, kept = [], []
    for first in range(start, stop, _ENTRIES_AT_ONCE):
        entries = queue.entries(first, min(stop, first + _ENTRIES_AT_ONCE))
        rows = np.flatnonzero(may_match(entries, message_filter))
        offsets.append(first + rows)
        kept.append(entries[rows])
    return EntryColumns.of(np.concatenate(offsets), np.concatenate(kept))


def _stretch(log: RecordLog, queue: EntryQueue, entries: EntryColumns) -> Bytes:
    queue_offsets, physical, sizes, _ = entries
    begin, end = int(physical[0]), int(physical[-1] + sizes[-1])
    if (sizes == CQ_PRE_BLANK_SIZE).any():
        raise OffsetLost(
            f"{queue.topic}, queue {queue.queue_id}: offsets {queue_offsets[0]} to {queue_offsets[-1]} were deleted "
            "with the topic"
        )
    ascending = (physical[1:] > physical[:-1]).all()
    if not ascending or begin < 0 or end > log.next_segment(begin) or sizes.min() < MIN_RECORD_BYTES:
        raise CorruptRecord(
            f"{queue.topic}, queue {queue.queue_id}, offsets {queue_offsets[0]} to {queue_offsets[-1]}: the queue's "
            f"entries do not name records in ascending order. {MAKE_ANEW}"
        )
    return log.segments.view(begin, end - begin)


class Decoding:
    """Converts messages to the batches of a `ReadSpec`.

    with_bodies, with_trailers: how to create blocks for it, see `Block`. max_body_bytes: limit of a body if `spec` has
    none.
    """

    def __init__(self, spec: ReadSpec, max_body_bytes: int) -> None:
        self.spec = spec
        self._filter_columns = spec.message_filter.columns
        needs_body = "bodyError" in spec.columns and "body" not in spec.columns
        self._columns = (*spec.columns, "body") if needs_body else spec.columns
        self._schema = pa.schema([(name, COLUMNS[name]) for name in self._columns])
        self._bounds = BodyBounds(spec.max_body_bytes or max_body_bytes, spec.max_bytes, spec.unreadable)
        self._needs_properties = not PROPERTY_COLUMNS.isdisjoint((*spec.columns, *self._filter_columns))
        self.with_bodies = spec.check_crc or "body" in self._columns
        self.with_trailers = spec.check_crc or self._needs_properties

    def batches(self, block: Block, tags_codes: Int64s | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the matching messages of a block. tags_codes: from the queue entries, None if unknown.

        Raises `CorruptRecord`, `UnreadableBody`.
        """
        spec = self.spec
        if spec.check_crc:
            block.check_crc()
        if self._needs_properties and tags_codes is not None:
            block.check_tags_codes(tags_codes)
        columns = {name: block.column(name) for name in dict.fromkeys((*self._columns, *self._filter_columns))}
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._columns], schema=self._schema)
        kept = np.arange(len(block))
        if self._filter_columns:
            names = list(self._filter_columns)
            filtered = pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
            matches = spec.message_filter.match_batch(filtered)
            batch, kept = batch.filter(matches), np.flatnonzero(numbers(matches))
        if len(kept):
            for each in inflated(batch, block.field("sys_flag")[kept], partial(_where, block, kept), self._bounds):
                yield each.select(spec.columns) if self._columns != spec.columns else each


def _where(block: Block, rows: Int64s, row: int) -> str:
    return block.where(int(rows[row]))
