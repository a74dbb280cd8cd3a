"""`Due`: messages whose time has come, as the queues that they wait in know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from store.model.log_protocol import Int64s

# Of each queue in a step, which takes some 20 ms, for which others who append wait; and no more memory than this.
_MOST, _MOST_BYTES = 4096, 8 << 20


class Due(NamedTuple):
    """n messages, each of shape (n,), int64.

    times: when they were due, ms since 1970. physical_offsets, sizes: their records in the log.
    """

    times: Int64s
    physical_offsets: Int64s
    sizes: Int64s

    def __len__(self) -> int:
        return len(self.times)

    @staticmethod
    def in_order(parts: Sequence[Due]) -> Due:
        """All of them by their times; equal ones in the order in which they were put."""
        columns = [np.concatenate([np.empty(0, np.int64), *column]) for column in zip(*parts, strict=True)]
        times, physical_offsets, sizes = columns or [np.empty(0, np.int64)] * 3
        order = np.lexsort((physical_offsets, times))
        return Due(times[order], physical_offsets[order], sizes[order])

    @staticmethod
    def at_once(sizes: Int64s) -> int:
        """How many messages of these sizes one step takes of a queue, from the first on; one, if there is any."""
        ends = np.cumsum(sizes[:_MOST])
        return min(len(ends), max(1, int(np.searchsorted(ends, _MOST_BYTES, side="right"))))

    def without(self, physical_offsets: Int64s, before: int) -> Due:
        """Those that are not at one of these log offsets, nor before that one."""
        at = self.physical_offsets
        is_before = (at >= 0) & (at < before) & (self.sizes > 0)  # or else their entry is damaged, which is to be told
        left = ~np.isin(at, physical_offsets) & ~is_before
        return Due(self.times[left], self.physical_offsets[left], self.sizes[left])
