"""Property strings of many messages: one property of all of them, or all as a map, without a loop over messages."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

Ints = npt.NDArray[np.int64]


class PropertyColumns:
    """The encoded properties of n messages, cut into pieces once.

    A piece is `name 0x01 value`, ended by 0x02 or by the end of the message's string. As RocketMQ's parser does:
    pieces without a name or a value do not count, and of a name that stands twice the last one wins.
    """

    def __init__(self, encoded: pa.BinaryArray) -> None:
        """`encoded`: length n, no nulls, its offsets begin at 0."""
        self._count = len(encoded)
        self._bounds = np.frombuffer(encoded.buffers()[1], np.int32)[: self._count + 1].astype(np.int64)
        data = encoded.buffers()[2]
        self._data = np.frombuffer(data if data is not None else b"", np.uint8)[: self._bounds[-1]]
        self._cut()

    def _cut(self) -> None:
        row_ends = self._bounds[1:]
        ends = np.flatnonzero(self._data == PROPERTY_SEPARATOR)
        rows = np.searchsorted(row_ends, ends, side="right")
        filled = np.flatnonzero(row_ends > self._bounds[:-1])
        unended = filled[self._data[row_ends[filled] - 1] != PROPERTY_SEPARATOR]
        if len(unended):
            rows, ends = np.concatenate([unended, rows]), np.concatenate([row_ends[unended], ends])
            order = np.lexsort((ends, rows))
            rows, ends = rows[order], ends[order]
        # a piece begins behind the separator before it, or where its message does
        inside = np.diff(rows, prepend=-1) == 0
        starts = np.where(inside, np.append(0, ends[:-1] + 1)[: len(ends)], self._bounds[rows])
        marks = np.flatnonzero(self._data == NAME_VALUE_SEPARATOR)
        first_mark = np.searchsorted(marks, starts)
        splits = np.append(marks, len(self._data))[first_mark]
        good = (splits > starts) & (splits + 1 < ends)
        self._rows, self._starts, self._splits, self._ends = (
            rows[good],
            starts[good],
            splits[good],
            ends[good],
        )

    def value(self, name: str) -> pa.StringArray:
        """The value of property `name` in every message, length n, null where there is none."""
        pieces = self._named(name.encode())
        starts, ends = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        rows = self._rows[pieces]
        starts[rows], ends[rows] = (
            self._splits[pieces] + 1,
            self._ends[pieces],
        )  # of equal rows the last one stays
        present = ends > 0
        if not present.any():
            return pa.nulls(self._count, pa.string())
        return _strings(self._data, starts[present], ends[present]).take(_index(present))

    def maps(self) -> pa.MapArray:
        """All properties, map<string, string>, length n; messages without any have an empty map."""
        keep = ~self._overridden
        rows = self._rows[keep]
        offsets = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        names = _strings(self._data, self._starts[keep], self._splits[keep])
        values = _strings(self._data, self._splits[keep] + 1, self._ends[keep])
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _named(self, name: bytes) -> Ints:
        """Pieces whose name is `name`."""
        pieces = np.flatnonzero(self._splits - self._starts == len(name))
        for position, byte in enumerate(name):
            pieces = pieces[self._data[self._starts[pieces] + position] == byte]
        return pieces

    @cached_property
    def _overridden(self) -> npt.NDArray[np.bool_]:
        """Pieces that a later one of the same name and message replaces."""
        overridden = np.zeros(len(self._rows), np.bool_)
        if len(self._rows):
            names = _strings(self._data, self._starts, self._splits).dictionary_encode()
            name_ids = names.indices.to_numpy().astype(np.int64)
            group = self._rows * len(names.dictionary) + name_ids
            order = np.argsort(group, kind="stable")
            overridden[order[:-1]] = group[order[:-1]] == group[order[1:]]
        return overridden


def _strings(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> pa.StringArray:
    """data[start:end] as strings; starts ascend and do not overlap. Bytes that are not UTF-8 are replaced."""
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    if not len(starts):
        return pa.array([], pa.string())
    pieces = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    taken = pieces.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))
    try:
        return taken.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in taken.to_pylist()], pa.string())


def _index(present: npt.NDArray[np.bool_]) -> pa.Int64Array:
    """Take indices that spread the rows where `present` holds, with nulls elsewhere."""
    index = np.cumsum(present) - 1
    return pa.array(index, mask=~present)
