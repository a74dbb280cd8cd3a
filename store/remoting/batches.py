"""The body of SEND_BATCH_MESSAGE: int size | int 0 | int 0 | int flag | int n, body | short n, properties; repeated."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from store.errors import BadFrame

_HEAD = struct.Struct(">iiiii")  # up to the body's length
_PROPERTIES = struct.Struct(">h")


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


def encode_batch(messages: Iterable[Batched]) -> bytes:
    """The body of these messages."""
    pieces = []
    for message in messages:
        size = _HEAD.size + len(message.body) + _PROPERTIES.size + len(message.properties)
        pieces += [_HEAD.pack(size, 0, 0, message.flag, len(message.body)), message.body]
        pieces += [_PROPERTIES.pack(len(message.properties)), message.properties]
    return b"".join(pieces)
