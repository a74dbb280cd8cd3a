"""Bodies that a producer compressed: do they decompress?

Their checksum is one of what is stored, so it says nothing of a record's flags, which no checksum covers as a rule, nor
of what a producer sent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from store.format.inflating import decompress
from store.format.layout import SYS_COMPRESSED
from store.log.dispatch import LogChunk
from store.model.errors import CorruptRecord, MessageTooLarge


class Broken(NamedTuple):
    """A body that does not decompress: log offset of its record, and what is wrong."""

    at: int
    what: str


def broken_bodies(chunk: LogChunk, max_bytes: int) -> list[Broken]:
    """Those of a chunk, in order. One that becomes more than `max_bytes` is good so far: it is not done further."""
    flags = chunk.records.field("sys_flag")
    rows = np.flatnonzero(flags & SYS_COMPRESSED)
    if not len(rows):
        return []
    starts, lengths = chunk.records.body_starts[rows], chunk.records.body_lengths[rows]
    bodies = chunk.records.slices(starts, lengths).to_pylist()
    found = []
    for body, flag, at in zip(bodies, flags[rows].tolist(), chunk.offsets[rows].tolist(), strict=True):
        try:
            decompress(body, flag, "", max_bytes)
        except CorruptRecord as error:
            found.append(Broken(at, str(error).removeprefix(": ")))
        except MessageTooLarge:
            continue
    return found
