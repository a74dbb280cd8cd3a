"""Pulled records as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from store.cluster.pulls import Records
from store.files.config import StoreConfig
from store.format.columns import Block
from store.format.layout import RECORD_HEADER, field_offset
from store.format.records import gather
from store.log.dispatch import hop
from store.model.errors import CorruptRecord, UnsupportedStore
from store.model.log_protocol import QueueRange, ReadSpec
from store.read.decoding import Decoding
from store.read.scan import batch_bounds

_ONE_PIECE = 1 << 62
_PHYSICAL_OFFSET = field_offset(RECORD_HEADER, "physical_offset")
_MAX_BODY_BYTES = StoreConfig().maxDecompressedMessageSize


def decoded(pieces: Iterable[Records], wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """The messages of a queue that match. Raises `CorruptRecord`, `MessageTooLarge`, `UnsupportedStore`."""
    decoding = Decoding(spec, _MAX_BODY_BYTES)
    for records in _gathered(pieces, spec.max_rows, spec.max_bytes):
        positions, sizes, end = (np.array(each, np.int64) for each in hop(records.data))
        if end != len(records.data) or len(sizes) != records.end - records.start:
            raise _no_such_records(wanted, records, len(sizes), int(end))
        view = np.frombuffer(records.data, np.uint8)
        physical = gather(view, positions + _PHYSICAL_OFFSET, ">i8").astype(np.int64)
        offsets = np.arange(records.start, records.end)
        for first, last in batch_bounds(positions, sizes, _ONE_PIECE, spec.max_rows, spec.max_bytes):
            rows = slice(first, last)
            block = Block(
                wanted.queue.topic,
                wanted.queue.queue_id,
                view,
                physical[rows] - positions[rows],
                offsets[rows],
                physical[rows],
                sizes[rows],
                broker=wanted.queue.broker,
                with_bodies=decoding.with_bodies,
                with_trailers=decoding.with_trailers,
            )
            yield from decoding.batches(block)


def _gathered(pieces: Iterable[Records], max_rows: int, max_bytes: int) -> Iterator[Records]:
    """As many pieces together as make a batch."""
    waiting: list[Records] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece.data)
        if size >= max_bytes or piece.end - waiting[0].start >= max_rows:
            yield _together(waiting)
            waiting, size = [], 0
    if waiting:
        yield _together(waiting)


def _together(pieces: list[Records]) -> Records:
    return Records(pieces[0].start, pieces[-1].end, b"".join(piece.data for piece in pieces))


def _no_such_records(wanted: QueueRange, records: Records, count: int, end: int) -> CorruptRecord | UnsupportedStore:
    where = f"{wanted.queue}, offsets {records.start} to {records.end}"
    if end != len(records.data):
        return CorruptRecord(f"{where}: what the broker sent is no record at byte {end} of {len(records.data)}")
    return UnsupportedStore(
        f"{where}: the broker sent {count} records; batch topics (queue.type=BatchCQ) and compacted ones "
        "(cleanup.policy=COMPACTION) have more or fewer than offsets, and are not read"
    )
