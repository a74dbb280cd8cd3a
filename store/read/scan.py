"""A range of one queue as Arrow batches: entries, filter, records, columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from store.format.arrays import Bytes, numbers
from store.format.columns import COLUMNS, PROPERTY_COLUMNS, Block, LightBlock, check_columns
from store.format.inflating import BodyBounds, inflated
from store.format.layout import CQ_ENTRY, CQ_PRE_BLANK_SIZE, LIGHT_PREFIX, MIN_RECORD_BYTES
from store.log.consume_queue import MAKE_ANEW, Entries
from store.log.sources import EntryQueue, RecordLog
from store.model.errors import CorruptRecord, InvalidArgument, OffsetLost
from store.model.log_protocol import Bools, Int64s, MessageFilter, Queue, ReadSpec


def block_of(
    log: RecordLog,
    queue: EntryQueue,
    queue_offsets: Int64s,
    physical_offsets: Int64s,
    sizes: Int64s,
    *,
    with_bodies: bool = True,
    with_trailers: bool = True,
) -> Block:
    """The messages at these offsets, all in one segment, n >= 1; with_bodies, with_trailers: as `Block` takes them.

    Raises `CorruptRecord`, `OffsetLost`.
    """
    kind = LightBlock if queue.topic.startswith(LIGHT_PREFIX) else Block
    view, begin = _stretch(log, queue, queue_offsets, physical_offsets, sizes), int(physical_offsets[0])
    where = queue.topic, queue.queue_id, view, begin, queue_offsets, physical_offsets, sizes
    return kind(*where, with_bodies=with_bodies, with_trailers=with_trailers or kind is LightBlock)


def may_match(entries: Entries, message_filter: MessageFilter) -> Bools:
    """Where the message of an entry may pass the filter, shape (n,).

    An empty entry may: it is damaged, and who reads its message is told. Its tags code would say that it has no tag.
    """
    return message_filter.match_codes(entries["tags_code"].astype(np.int64)) | (entries["size"] <= 0)


def _stretch(log: RecordLog, queue: EntryQueue, queue_offsets: Int64s, physical: Int64s, sizes: Int64s) -> Bytes:
    """The log from the first to the last of these records."""
    begin, end = int(physical[0]), int(physical[-1] + sizes[-1])
    ascending = (physical[1:] > physical[:-1]).all()
    if (sizes == CQ_PRE_BLANK_SIZE).any():
        raise OffsetLost(
            f"{queue.topic}, queue {queue.queue_id}: offsets {queue_offsets[0]} to {queue_offsets[-1]} are gone, for "
            "the topic was deleted"
        )
    if not ascending or begin < 0 or end > log.next_segment(begin) or sizes.min() < MIN_RECORD_BYTES:
        raise CorruptRecord(
            f"{queue.topic}, queue {queue.queue_id}, offsets {queue_offsets[0]} to {queue_offsets[-1]}: the queue's "
            f"entries are no records in ascending order; {MAKE_ANEW}"
        )
    return log.segments.view(begin, end - begin)


class Decoding:
    """One `ReadSpec`, made ready. with_bodies, with_trailers: what its blocks need, as `Block` takes them."""

    def __init__(self, spec: ReadSpec, max_body_bytes: int) -> None:
        """max_body_bytes: unless `spec` says otherwise."""
        self._spec = spec
        self._looked_at = spec.message_filter.columns
        self._schema = pa.schema([(name, COLUMNS[name]) for name in spec.columns])
        self._bounds = BodyBounds(spec.max_body_bytes or max_body_bytes, spec.max_bytes, spec.oversized)
        self._needs_properties = not PROPERTY_COLUMNS.isdisjoint((*spec.columns, *self._looked_at))
        self.with_bodies = spec.check_crc or "body" in spec.columns
        self.with_trailers = spec.check_crc or self._needs_properties

    def batches(self, block: Block, tags_codes: Int64s | None = None) -> Iterator[pa.RecordBatch]:
        """The messages of a block that match; tags_codes: of their entries, where there are any.

        Raises `CorruptRecord`, `MessageTooLarge`.
        """
        if self._spec.check_crc:
            block.check_crc()
        if self._needs_properties and tags_codes is not None:
            block.check_tags_codes(tags_codes)
        columns = {name: block.column(name) for name in dict.fromkeys((*self._spec.columns, *self._looked_at))}
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._spec.columns], schema=self._schema)
        kept = np.arange(len(block))
        if self._looked_at:
            seen = pa.RecordBatch.from_arrays([columns[name] for name in self._looked_at], names=list(self._looked_at))
            matches = self._spec.message_filter.match_batch(seen)
            batch, kept = batch.filter(matches), np.flatnonzero(numbers(matches))
        if len(kept):
            yield from inflated(batch, block.sys_flags[kept], partial(_where, block, kept), self._bounds)


def _where(block: Block, rows: Int64s, row: int) -> str:
    return block.where(int(rows[row]))


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


_CHECKED_AT_ONCE = 1 << 15


class Checked(NamedTuple):
    """n messages, with what their entries say of them: sizes (bytes) and tags codes, shape (n,)."""

    block: Block
    sizes: Int64s
    tags_codes: Int64s


def checked_blocks(log: RecordLog, queue: EntryQueue, start: int, end: int, max_bytes: int) -> Iterator[Checked]:
    """Messages [start, end), in order, some at a time: `max_bytes` of records, or one, within a segment.

    The range must be published. Raises `CorruptRecord`, `OffsetLost`.
    """
    while start < end:
        stop = min(end, start + _CHECKED_AT_ONCE)
        entries = queue.entries(start, stop)
        physical, sizes, codes = (entries[name].astype(np.int64) for name in CQ_ENTRY.names or ())
        offsets = np.arange(start, stop)
        for first, last in batch_bounds(physical, sizes, log.segments.size, len(entries), max_bytes):
            rows = slice(first, last)
            block = block_of(log, queue, offsets[rows], physical[rows], sizes[rows])
            block.check_crc()
            block.check_tags_codes(codes[rows])
            yield Checked(block, sizes[rows], codes[rows])
        start = stop


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
