"""`Due`: messages whose time has come, as the queues that they wait in know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from store.any_log import Int64s


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

    def without(self, physical_offsets: Int64s) -> Due:
        """Those that are not at one of these log offsets."""
        if not len(physical_offsets):
            return self
        left = ~np.isin(self.physical_offsets, physical_offsets)
        return Due(self.times[left], self.physical_offsets[left], self.sizes[left])
