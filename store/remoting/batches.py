"""The body of SEND_BATCH_MESSAGE: int size | int 0 | int 0 | int flag | int n, body | short n, properties; repeated."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format import compute as pc
from store.format.arrays import constant
from store.format.records import rows_as_binary
from store.format.strings import lengths
from store.model.errors import BadFrame

_HEAD = struct.Struct(">iiiii")  # up to the body's length
_PROPERTIES = struct.Struct(">h")
_HEADS = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_length", ">i4")])
assert _HEADS.itemsize == _HEAD.size


class Batched(NamedTuple):
    """One message of a batch. properties: encoded, as in a record."""

    flag: int
    body: bytes
    properties: bytes


def decode_batch(data: bytes) -> list[Batched]:
    """The messages of a body. Raises `BadFrame`."""
    found: list[Batched] = []
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size + _PROPERTIES.size:
            raise BadFrame(f"a batch with {len(data) - at} bytes behind message {len(found)}")
        size, _, _, flag, length = _HEAD.unpack_from(data, at)
        body = at + _HEAD.size
        properties = body + length + _PROPERTIES.size
        if length < 0 or properties > len(data):
            raise BadFrame(f"message {len(found)} of a batch: a body of {length} bytes")
        (width,) = _PROPERTIES.unpack_from(data, body + length)
        end = properties + width
        if width < 0 or end > len(data) or end - at != size:
            raise BadFrame(f"message {len(found)} of a batch: {size} bytes with properties of {width}")
        found.append(Batched(flag, data[body : body + length], data[properties:end]))
        at = end
    return found


def batch_entries(bodies: pa.BinaryArray, properties: pa.BinaryArray, flags: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Each of n messages as a batch has it; several of them, one behind another, are a batch.

    properties: encoded. flags: shape (n,).
    """
    heads = np.zeros(len(bodies), _HEADS)
    heads["flag"], heads["body_length"] = flags, lengths(bodies)
    widths = lengths(properties)
    heads["size"] = _HEADS.itemsize + heads["body_length"] + _PROPERTIES.size + widths
    behind = np.ascontiguousarray(widths.astype(">i2").view(np.uint8).reshape(-1, _PROPERTIES.size))
    rows = heads.view(np.uint8).reshape(-1, _HEADS.itemsize)
    return pc.binary_join_element_wise(rows_as_binary(rows), bodies, rows_as_binary(behind), properties, constant(b""))
