"""RocketMQ's property strings, repeated `name 0x01 value 0x02` (MessageDecoder)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, constant, cut, flat, numbers, pc, texts
from store.format.layout import (
    MAX_PROPERTIES_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_SEPARATOR,
    SECTOR_BYTES,
)
from store.model.errors import MessageRefused, PutStatus

_NAME_VALUE = chr(NAME_VALUE_SEPARATOR)
_PROPERTY = chr(PROPERTY_SEPARATOR)
_PIECES = re.compile(f"(?<![^{_PROPERTY}])([^{_NAME_VALUE}{_PROPERTY}]+){_NAME_VALUE}([^{_PROPERTY}]+)")
LIKE_A_LOST_SECTOR = "\0" * SECTOR_BYTES

Ints = npt.NDArray[np.int64]
_END = constant(bytes([PROPERTY_SEPARATOR]))


def encode_properties(properties: Mapping[str, str], behind: bytes = b"") -> bytes:
    """Encode a user's properties. Empty values are left out, because RocketMQ's parser drops them.

    Raises `MessageRefused` for texts that cannot be stored, and for more than 32,767 bytes.
    """
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"property {name!r}={value!r}: names and values must be texts; write {str(value)!r}, or leave it out",
            )
        both = name + value
        if not name or _NAME_VALUE in both or _PROPERTY in both:
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"property {name!r}={value!r}: a name must not be empty, and neither part may contain "
                "the separators \\x01 or \\x02",
            )
        if LIKE_A_LOST_SECTOR in name or LIKE_A_LOST_SECTOR in value:
            raise too_many_zeros(f"property {name!r:.40}")
    return join_properties(properties, behind)


def join_properties(properties: Mapping[str, str], behind: bytes = b"") -> bytes:
    """Encode stored properties. Raises `MessageRefused` for their size or a lone surrogate."""
    text = "".join([f"{name}{_NAME_VALUE}{value}{_PROPERTY}" for name, value in properties.items() if value])
    try:
        encoded = text.encode() + behind
    except UnicodeEncodeError as error:
        raise MessageRefused(
            PutStatus.MESSAGE_ILLEGAL, f"properties {text!r} cannot be encoded as UTF-8: {error}"
        ) from error
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise properties_too_large(len(encoded))
    return encoded


def too_many_zeros(what: str) -> MessageRefused:
    """Return the error for zeros that recovery would take for a lost sector, and so for the log's end."""
    return MessageRefused(
        PutStatus.MESSAGE_ILLEGAL,
        f"{what}: {SECTOR_BYTES} zeros in a row look like a sector that the device lost; put such values into the body",
    )


def properties_too_large(length: int) -> MessageRefused:
    return MessageRefused(
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        f"the properties, tags and keys included, have {length} bytes, and at most {MAX_PROPERTIES_BYTES} are allowed. "
        "Put large values into the body",
    )


def decode_properties(encoded: bytes) -> dict[str, str]:
    """Decode as `MessageDecoder.string2messageProperties`, without the record's checksum.

    Pieces without a name or value are ignored. Of several values of a name, the last is returned.
    """
    properties = dict(_PIECES.findall(encoded.decode("utf-8", "replace")))
    properties.pop(PROPERTY_CRC, None)
    return properties


class PropertyColumns:
    """The properties of n messages, parsed as by `decode_properties`. Results have length n.

    encoded: no nulls.
    """

    def __init__(self, encoded: pa.BinaryArray) -> None:
        self._count = len(encoded)
        data, bounds = flat(encoded)
        if len(data) and (data[bounds[1:] - 1] != PROPERTY_SEPARATOR).any():  # the last separator may be missing
            data, bounds = flat(pc.binary_join_element_wise(encoded, constant(b""), _END))
        self._bounds, self._data = bounds, data
        self._separators = ends = (data == PROPERTY_SEPARATOR).nonzero()[0]
        starts = np.empty_like(ends)
        starts[:1], starts[1:] = 0, ends[:-1] + 1
        splits = (data == NAME_VALUE_SEPARATOR).nonzero()[0]
        if len(splits) != len(ends) or not ((splits > starts) & (splits + 1 < ends)).all():
            splits = np.append(splits, len(data))[np.searchsorted(splits, starts)]  # the first one of each piece
        self._good = good = (splits > starts) & (splits + 1 < ends)
        if not good.all():
            starts, splits, ends = starts[good], splits[good], ends[good]
        self._starts, self._splits, self._ends = starts, splits, ends

    def value(self, name: str) -> pa.StringArray:
        """Return a property's values, null if missing."""
        if self._layout is not None:
            return self._column(self._layout, name.encode())
        pieces = self._named(name.encode())
        if not len(pieces):
            return pa.nulls(self._count, pa.string())
        rows = self._rows[pieces]
        last = np.full(self._count, -1)
        last[rows] = np.arange(len(rows))  # for equal rows, numpy keeps the last value
        present = last >= 0
        kept = pieces[last[present]]
        index = arrow(np.cumsum(present) - 1, nulls=~present)
        return _strings(self._data, self._splits[kept] + 1, self._ends[kept]).take(index)

    def _column(self, layout: list[bytes], name: bytes) -> pa.StringArray:
        if name not in layout:
            return pa.nulls(self._count, pa.string())
        last = max(column for column, other in enumerate(layout) if other == name)
        pieces = slice(last, None, len(layout))
        return _strings(self._data, self._splits[pieces] + 1, self._ends[pieces])

    def maps(self) -> pa.MapArray:
        """Return the properties as maps, without the record's checksum. No nulls."""
        keep = ~self._overridden
        keep[self._named(PROPERTY_CRC.encode())] = False
        offsets = np.searchsorted(self._rows[keep], np.arange(self._count + 1)).astype(np.int32)
        names = _strings(self._data, self._starts[keep], self._splits[keep])
        values = _strings(self._data, self._splits[keep] + 1, self._ends[keep])
        return pa.MapArray.from_arrays(arrow(offsets), names, values)

    def without(self, names: Iterable[str]) -> pa.BinaryArray:
        """Return the encoded properties without `names`; all others keep their bytes."""
        pieces = np.concatenate([self._named(name.encode()) for name in names])
        edges = np.zeros(len(self._data) + 1, np.int64)
        edges[self._starts[pieces]] += 1
        edges[self._ends[pieces] + 1] -= 1  # after the separator
        kept = np.cumsum(edges[:-1]) == 0
        bounds = np.concatenate([[0], np.cumsum(kept)])[self._bounds].astype(np.int32)
        data = self._data[kept]
        return pa.BinaryArray.from_buffers(pa.binary(), self._count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])

    @cached_property
    def _layout(self) -> list[bytes] | None:
        """Names of the properties if all messages have the same in the same order, as is usual: their pieces then form
        a matrix.
        """
        width, left = divmod(len(self._ends), max(1, self._count))
        if not width or left or (self._ends[width - 1 :: width] + 1 != self._bounds[1:]).any():
            return None
        layout = [
            self._data[start:split].tobytes()
            for start, split in zip(self._starts[:width].tolist(), self._splits[:width].tolist(), strict=True)
        ]
        lengths = self._splits - self._starts
        for column, name in enumerate(layout):
            if (lengths[column::width] != len(name)).any() or not self._is(self._starts[column::width], name).all():
                return None
        return layout

    @cached_property
    def _rows(self) -> Ints:
        pieces = np.diff(np.searchsorted(self._separators, self._bounds))
        rows: Ints = np.repeat(np.arange(self._count), pieces)[self._good]
        return rows

    def _named(self, name: bytes) -> Ints:
        pieces = (self._splits - self._starts == len(name)).nonzero()[0]
        named: Ints = pieces[self._is(self._starts[pieces], name)]
        return named

    def _is(self, starts: Ints, name: bytes) -> npt.NDArray[np.bool_]:
        # The data must have as many bytes after each start.
        # Comparing integers is faster, and most names have four or eight bytes.
        kind = {4: "<u4", 8: "<u8"}.get(len(name), f"S{len(name)}")
        names = np.ndarray((max(0, len(self._data) - len(name) + 1),), kind, buffer=self._data, strides=(1,))
        found: npt.NDArray[np.bool_] = names[starts] == np.frombuffer(name, kind)
        return found

    @cached_property
    def _overridden(self) -> npt.NDArray[np.bool_]:
        overridden = np.zeros(len(self._rows), np.bool_)
        if len(self._rows):
            names = _strings(self._data, self._starts, self._splits).dictionary_encode()
            group = self._rows * len(names.dictionary) + numbers(names.indices).astype(np.int64)
            order = np.argsort(group, kind="stable")
            overridden[order[:-1]] = group[order[:-1]] == group[order[1:]]
        return overridden


def dicts(maps: pa.MapArray) -> list[dict[str, str]]:
    """Convert maps, without nulls, to dicts."""
    first = numbers(maps.offsets)
    pairs_of_all = slice(int(first[0]), int(first[-1]))
    names = maps.keys[pairs_of_all].dictionary_encode()  # each distinct text once
    named = map(names.dictionary.to_pylist().__getitem__, names.indices.to_pylist())
    pairs = zip(named, maps.items[pairs_of_all].to_pylist(), strict=True)
    return [dict(islice(pairs, count)) for count in np.diff(first).tolist()]


def _strings(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> pa.StringArray:
    """Return the texts in ranges, which must ascend without overlap. Bytes that are not UTF-8 are replaced."""
    if not len(starts):
        return texts([])
    taken = cut(data, starts, ends - starts)
    try:
        return taken.cast(pa.string())
    except pa.ArrowInvalid:
        return texts([value.decode("utf-8", "replace") for value in taken.to_pylist()])
