"""Arrow strings as numpy sees them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow

Bytes = npt.NDArray[np.uint8]  # a stretch of a file, or of an Arrow buffer
_INLINE_VIEW_BYTES = 12  # Arrow's views hold so short values in themselves


def flat(strings: pa.StringArray | pa.BinaryArray) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """The bytes of n strings back to back, without a copy, and their bounds, int64, shape (n + 1,), from 0 on.

    `strings` may be a slice of a longer array. Nulls have any length.
    """
    offsets, data = strings.buffers()[1:]
    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    bounds = np.frombuffer(offsets, np.int32)[strings.offset : strings.offset + len(strings) + 1].astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    return np.frombuffer(data if data is not None else b"", np.uint8)[first:last], bounds - first


def lengths(strings: pa.StringArray | pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Bytes of each of n strings, int64, shape (n,); nulls have any."""
    return np.diff(flat(strings)[1])


def cut(buffer: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """The bytes [start, start + size) of `buffer` for each of n pieces, copied in one go, length n.

    Pieces ascend, do not overlap, and lie in the buffer, which has less than 2 GiB.
    """
    if len(sizes) and sizes.min() > _INLINE_VIEW_BYTES:
        views = np.zeros((len(starts), 4), np.int32)  # Arrow's: length, first bytes (for comparisons), buffer, offset
        views[:, 0], views[:, 3] = sizes, starts
        buffers = [None, pa.py_buffer(views), pa.py_buffer(buffer)]
        return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())
    bounds = np.empty(2 * len(starts), np.int32)  # pieces and what is between them, in turns
    bounds[0::2], bounds[1::2] = starts, starts + sizes
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    pieces = pa.BinaryArray.from_buffers(pa.binary(), max(0, len(bounds) - 1), buffers)
    return pieces.take(arrow(np.arange(0, len(bounds), 2, dtype=np.int32)))
