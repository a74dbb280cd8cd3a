"""What an append answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Where(NamedTuple):
    """Where one message went."""

    queue_id: int
    queue_offset: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where n messages went, in their order.

    queue_ids: int32, queue_offsets and physical_offsets: int64, each of shape (n,).
    """

    queue_ids: npt.NDArray[np.int32]
    queue_offsets: npt.NDArray[np.int64]
    physical_offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.queue_ids)

    @staticmethod
    def of(each: Sequence[Where]) -> AppendResult:
        """The same of a few messages."""
        rows = np.array(each, np.int64).reshape(-1, len(Where._fields))
        return AppendResult(rows[:, 0].astype(np.int32), rows[:, 1].copy(), rows[:, 2].copy())

    @staticmethod
    def concatenate(results: list[AppendResult]) -> AppendResult:
        """The results of the pieces of an append."""
        if len(results) == 1:
            return results[0]
        return AppendResult(
            np.concatenate([np.empty(0, np.int32), *(result.queue_ids for result in results)]),
            np.concatenate([np.empty(0, np.int64), *(result.queue_offsets for result in results)]),
            np.concatenate([np.empty(0, np.int64), *(result.physical_offsets for result in results)]),
        )

    def each(self) -> list[Where]:
        """Where each message went."""
        columns = self.queue_ids.tolist(), self.queue_offsets.tolist(), self.physical_offsets.tolist()
        return list(map(Where._make, zip(*columns, strict=True)))
