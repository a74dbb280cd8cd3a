"""Many records in one stretch of bytes: their fields and the bounds of their parts, vectorised.

Nothing is trusted: a record whose lengths do not add up is not `sound`, and no access leaves the stretch.
"""

from __future__ import annotations

import zlib
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.layout import (
    BODY_CRC_MASK,
    IPV6_EXTRA,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD_HEADER,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    field_offset,
)
from store.records import gather
from store.segments import Bytes

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BODY_LENGTH_BYTES = RECORD_HEADER["body_length"].itemsize
_BEHIND_BORN_IP = field_offset(RECORD_HEADER, "born_ip")
_BEHIND_STORE_IP = field_offset(RECORD_HEADER, "store_ip")


class RecordView:
    """n records at `positions` of `view`, each said to be `sizes` bytes long.

    view: uint8. positions, sizes: int64, shape (n,). All attributes named *_starts are positions in `view`, all
    named *_lengths are bytes, int64, shape (n,); where `sound` (bool, shape (n,)) is False they mean nothing.
    """

    def __init__(self, view: Bytes, positions: Ints, sizes: Ints) -> None:
        self.view = view
        self.positions = positions
        self.sizes = sizes
        self._ends = positions + sizes
        self.sound: Mask = (positions >= 0) & (sizes >= RECORD_HEADER.itemsize) & (self._ends <= len(view))
        self.sound &= self.field("total_size") == sizes
        self.magic = self.field("magic")
        self.sound &= (self.magic == MAGIC_V1) | (self.magic == MAGIC_V2)
        self.sys_flags = self.field("sys_flag")
        self._born_extra = _extra(self.sys_flags, SYS_BORN_HOST_V6)
        self._store_extra = _extra(self.sys_flags, SYS_STORE_HOST_V6)
        self._measure_parts()

    def __len__(self) -> int:
        return len(self.sizes)

    def field(self, name: str) -> Ints:
        """A header field of every record, int64, shape (n,)."""
        return gather(self.view, self._inside(self.field_positions(name)), RECORD_HEADER[name].str)

    def field_positions(self, name: str) -> Ints:
        """Byte position of a header field in every record: IPv6 hosts push back what follows them."""
        offset = field_offset(RECORD_HEADER, name)
        positions = self.positions + offset
        if offset > _BEHIND_BORN_IP:
            positions = positions + self._born_extra
        if offset > _BEHIND_STORE_IP:
            positions = positions + self._store_extra
        return positions

    def slices(self, starts: Ints, lengths: Ints) -> pa.BinaryArray:
        """The bytes [start, start + length) of every record, copied out of the view in one go; all must be sound."""
        bounds = np.empty(2 * len(self), np.int32)
        bounds[0::2], bounds[1::2] = starts, starts + lengths
        pieces = pa.BinaryArray.from_buffers(
            pa.binary(), max(0, len(bounds) - 1), [None, pa.py_buffer(bounds), pa.py_buffer(self.view)]
        )
        return pieces.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))

    @cached_property
    def stored_bodies(self) -> pa.BinaryArray:
        """Bodies as stored, length n; all records must be sound."""
        return self.slices(self.body_starts, self.body_lengths)

    @cached_property
    def properties(self) -> pa.BinaryArray:
        """Encoded properties, length n; all records must be sound."""
        return self.slices(self.properties_starts, self.properties_lengths)

    def crc_matches(self) -> Mask:
        """Where the body's CRC32 is the stored one, or there is no body; all records must be sound."""
        bodies = self.stored_bodies.to_numpy(zero_copy_only=False)
        crcs = np.fromiter(map(zlib.crc32, bodies), np.int64, len(self)) & BODY_CRC_MASK
        matches: Mask = (crcs == self.field("body_crc")) | (self.body_lengths == 0)
        return matches

    def _measure_parts(self) -> None:
        body_field = self.field_positions("body_length")
        self.body_starts = body_field + _BODY_LENGTH_BYTES
        self.sound &= self.body_starts <= self._ends
        self.body_lengths = gather(self.view, self._inside(body_field), ">i4")
        topic_field = self.body_starts + self.body_lengths
        v1 = self.magic == MAGIC_V1
        topic_width = np.where(v1, TOPIC_LENGTH_BYTES[MAGIC_V1], TOPIC_LENGTH_BYTES[MAGIC_V2])
        self.sound &= (self.body_lengths >= 0) & (topic_field + topic_width <= self._ends)
        self.topic_lengths = gather(self.view, self._inside(topic_field), "u1")
        if not v1.all():
            wide = gather(self.view, self._inside(topic_field), ">i2")
            self.topic_lengths = np.where(v1, self.topic_lengths, wide)
        self.topic_starts = topic_field + topic_width
        properties_field = self.topic_starts + self.topic_lengths
        self.properties_starts = properties_field + PROPERTIES_LENGTH_BYTES
        self.sound &= (self.topic_lengths >= 0) & (self.properties_starts <= self._ends)
        self.properties_lengths = gather(self.view, self._inside(properties_field), ">i2")
        self.sound &= (self.properties_lengths >= 0) & (self.properties_starts + self.properties_lengths == self._ends)

    def _inside(self, positions: Ints) -> Ints:
        """Positions that can be read; those of records already found unsound are pulled inside."""
        return positions if self.sound.all() else np.where(self.sound, positions, 0)


def _extra(sys_flags: Ints, bit: int) -> Ints | int:
    v6 = (sys_flags & bit) != 0
    return v6 * IPV6_EXTRA if v6.any() else 0
