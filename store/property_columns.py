"""Property strings of many messages: one property of all of them, or all as a map, without a loop over messages."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from store.strings import flat

Ints = npt.NDArray[np.int64]


class PropertyColumns:
    """The encoded properties of n messages, cut into pieces once.

    A piece is `name 0x01 value`, ended by 0x02 or by the end of the message's string. As RocketMQ's parser does:
    pieces without a name or a value do not count, and of a name that stands twice the last one wins.
    """

    def __init__(self, encoded: pa.BinaryArray) -> None:
        """`encoded`: length n, no nulls."""
        self._count = len(encoded)
        data, bounds = flat(encoded)
        if len(data) and (data[bounds[1:] - 1] != PROPERTY_SEPARATOR).any():  # the last separator may be missing
            data, bounds = flat(pc.binary_join_element_wise(encoded, b"", bytes([PROPERTY_SEPARATOR])))
        self._data = data
        ends = np.flatnonzero(data == PROPERTY_SEPARATOR)
        starts = np.empty_like(ends)
        starts[:1], starts[1:] = 0, ends[:-1] + 1
        splits = np.flatnonzero(data == NAME_VALUE_SEPARATOR)
        if len(splits) != len(ends) or not ((splits > starts) & (splits + 1 < ends)).all():
            splits = np.append(splits, len(data))[np.searchsorted(splits, starts)]  # the first one of each piece
        pieces = np.diff(np.searchsorted(ends, bounds))
        rows = np.repeat(np.arange(self._count), pieces)
        good = (splits > starts) & (splits + 1 < ends)
        if not good.all():
            rows, starts, splits, ends = rows[good], starts[good], splits[good], ends[good]
        self._rows, self._starts, self._splits, self._ends = rows, starts, splits, ends

    def value(self, name: str) -> pa.StringArray:
        """The value of property `name` in every message, length n, null where there is none."""
        pieces = self._named(name.encode())
        if not len(pieces):
            return pa.nulls(self._count, pa.string())
        rows = self._rows[pieces]
        starts, ends = self._splits[pieces] + 1, self._ends[pieces]
        if len(rows) == self._count and (rows[1:] > rows[:-1]).all():
            return _strings(self._data, starts, ends)
        last = np.full(self._count, -1)
        last[rows] = np.arange(len(rows))  # of equal rows the last one stays
        present = last >= 0
        kept = last[present]
        index = pa.array(np.cumsum(present) - 1, mask=~present)
        return _strings(self._data, starts[kept], ends[kept]).take(index)

    def maps(self) -> pa.MapArray:
        """All properties, map<string, string>, length n; messages without any have an empty map."""
        keep = ~self._overridden
        offsets = np.searchsorted(self._rows[keep], np.arange(self._count + 1)).astype(np.int32)
        names = _strings(self._data, self._starts[keep], self._splits[keep])
        values = _strings(self._data, self._splits[keep] + 1, self._ends[keep])
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _named(self, name: bytes) -> Ints:
        """Pieces whose name is `name`."""
        pieces = np.flatnonzero(self._splits - self._starts == len(name))
        if not len(pieces):
            return pieces
        # Names of four and eight bytes, the usual ones, are compared as integers: that is faster.
        kind = {4: "<u4", 8: "<u8"}.get(len(name), f"S{len(name)}")
        names = np.ndarray((len(self._data) - len(name) + 1,), kind, buffer=self._data, strides=(1,))
        named: Ints = pieces[names[self._starts[pieces]] == np.frombuffer(name, kind)]
        return named

    @cached_property
    def _overridden(self) -> npt.NDArray[np.bool_]:
        """Pieces that a later one of the same name and message replaces."""
        overridden = np.zeros(len(self._rows), np.bool_)
        if len(self._rows):
            names = _strings(self._data, self._starts, self._splits).dictionary_encode()
            group = self._rows * len(names.dictionary) + names.indices.to_numpy().astype(np.int64)
            order = np.argsort(group, kind="stable")
            overridden[order[:-1]] = group[order[:-1]] == group[order[1:]]
        return overridden


def _strings(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> pa.StringArray:
    """data[start:end] as strings; starts ascend and do not overlap. Bytes that are not UTF-8 are replaced."""
    if not len(starts):
        return pa.array([], pa.string())
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    pieces = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    taken = pieces.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))
    try:
        return taken.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in taken.to_pylist()], pa.string())
