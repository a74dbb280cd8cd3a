"""What an append answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
    def concatenate(results: list[AppendResult]) -> AppendResult:
        """The results of the pieces of an append."""
        if len(results) == 1:
            return results[0]
        return AppendResult(
            np.concatenate([np.empty(0, np.int32), *(result.queue_ids for result in results)]),
            np.concatenate([np.empty(0, np.int64), *(result.queue_offsets for result in results)]),
            np.concatenate([np.empty(0, np.int64), *(result.physical_offsets for result in results)]),
        )

    def __getitem__(self, rows: slice) -> AppendResult:
        """The result of some of the messages."""
        return AppendResult(self.queue_ids[rows], self.queue_offsets[rows], self.physical_offsets[rows])
