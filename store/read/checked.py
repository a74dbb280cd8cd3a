"""Whole records of a queue, checked, on their way into another log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from store.format.columns import Block
from store.format.layout import CQ_ENTRY
from store.log.sources import EntryQueue, RecordLog
from store.model.log_protocol import Int64s
from store.read.blocks import block_of
from store.read.scan import batch_bounds

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
