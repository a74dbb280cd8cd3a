"""Arrow strings as numpy sees them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def flat(strings: pa.StringArray | pa.BinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of n strings back to back, without a copy, and their bounds, int64, shape (n + 1,), from 0 on.

    `strings` may be a slice of a longer array. Nulls have any length.
    """
    offsets, data = strings.buffers()[1:]
    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    bounds = np.frombuffer(offsets, np.int32)[strings.offset : strings.offset + len(strings) + 1].astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    return np.frombuffer(data if data is not None else b"", np.uint8)[first:last], bounds - first
