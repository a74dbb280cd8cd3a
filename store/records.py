"""Encoded records that have no place in the log yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from store.layout import CQ_ENTRY, RECORD_HEADER, field_offset
from store.segments import Bytes


@dataclass(frozen=True, slots=True)
class Records:
    """n records back to back, complete but for what only the append can know.

    buffer: uint8, shape (sum of sizes,), writable; queue offset, physical offset and store timestamp are zero.
    sizes: int64, shape (n,), bytes of each record.
    queues: int32, shape (n,), index into `destinations`.
    destinations: the (topic, queue id) pairs that occur.
    tags_codes: int64, shape (n,), Java hash of the tags, 0 without.
    key_hashes: int32, shape (m,), for the index, in the order in which they are filed; key_rows: int64, shape (m,),
    the record of each, ascending.
    """

    buffer: Bytes
    sizes: npt.NDArray[np.int64]
    queues: npt.NDArray[np.int32]
    destinations: list[tuple[str, int]]
    tags_codes: npt.NDArray[np.int64]
    key_hashes: npt.NDArray[np.int32]
    key_rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    def stamp(
        self,
        queue_offsets: npt.NDArray[np.int64],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamp: int,
    ) -> None:
        """Write the three fields that the append decides into every record."""
        positions = np.cumsum(self.sizes) - self.sizes
        scatter_i8(self.buffer, positions + field_offset(RECORD_HEADER, "queue_offset"), queue_offsets)
        scatter_i8(self.buffer, positions + field_offset(RECORD_HEADER, "physical_offset"), physical_offsets)
        scatter_i8(self.buffer, positions + field_offset(RECORD_HEADER, "store_timestamp"), store_timestamp)

    def entries(self, physical_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """ConsumeQueue entries, shape (n,), dtype CQ_ENTRY, in the order of the records."""
        entries = np.empty(len(self), CQ_ENTRY)
        entries["physical_offset"] = physical_offsets
        entries["size"] = self.sizes
        entries["tags_code"] = self.tags_codes
        return entries


def gather(buffer: Bytes, positions: npt.NDArray[np.int64], kind: str) -> npt.NDArray[np.int64]:
    """Big-endian integers of dtype `kind` ('>i4', '>i8', ...) at any byte positions, as int64, shape of positions.

    A view of the buffer with a stride of one byte makes every position an element: no copy, no alignment.
    """
    width = np.dtype(kind).itemsize
    view = np.ndarray((max(0, len(buffer) - width + 1),), kind, buffer=buffer, strides=(1,))
    return view[positions].astype(np.int64)


def gather_rows(buffer: Bytes, positions: npt.NDArray[np.int64], width: int) -> Bytes:
    """`width` bytes from each position, copied, uint8, shape (n, width); `width` >= 1."""
    view = np.ndarray((max(0, len(buffer) - width + 1),), f"V{width}", buffer=buffer, strides=(1,))
    return view[positions].view(np.uint8).reshape(len(positions), width)


def scatter_i8(buffer: Bytes, positions: npt.NDArray[np.int64], values: npt.NDArray[np.int64] | int) -> None:
    """Write big-endian 64-bit integers at any byte positions."""
    np.ndarray((len(buffer) - 7,), ">i8", buffer=buffer, strides=(1,))[positions] = values
