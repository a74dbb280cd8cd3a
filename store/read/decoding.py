"""Blocks of messages, wherever their bytes come from, to the batches that are asked for: checks, columns, filter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from store.format.arrays import numbers
from store.format.columns import COLUMNS, PROPERTY_COLUMNS, Block
from store.format.inflating import BodyBounds, inflated
from store.model.log_protocol import Int64s, ReadSpec


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
