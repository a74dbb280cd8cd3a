"""Decompress bodies that a producer compressed, in steps up to a limit: a few bytes can decompress to gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, blobs, pc
from store.format.layout import SYS_COMPRESSED, SYS_COMPRESSION, SYS_COMPRESSION_MASK
from store.model.errors import MessageTooLarge, UnreadableBody
from store.model.log_protocol import Unreadable

_STEP_BYTES = 256 << 10


class BodyBounds(NamedTuple):
    """Limits of decompression. body, batch: bytes, of one decompressed body, and of all in a batch."""

    body: int
    batch: int
    unreadable: Unreadable


def decompress(body: bytes, sys_flag: int, max_bytes: int) -> bytes:
    """Decompress by the codec in bits 0x700 of `sys_flag`. An empty body stays empty, as in RocketMQ.

    Raises `UnreadableBody`, and `MessageTooLarge` above `max_bytes`.
    """
    return b"".join(_pieces(body, sys_flag, max_bytes))


def inflated_size(body: bytes, sys_flag: int, max_bytes: int) -> int:
    """Return a body's size after decompression, using little memory. Raises as `decompress`."""
    return sum(map(len, _pieces(body, sys_flag, max_bytes)))


def _pieces(body: bytes, sys_flag: int, max_bytes: int) -> Iterator[bytes]:
    if not body:
        return
    name = SYS_COMPRESSION.get(sys_flag & SYS_COMPRESSION_MASK)
    if name is None:
        raise UnreadableBody(f"sysFlag {sys_flag:#x} names a compression type that RocketMQ 5.3 does not know")
    size = 0
    try:
        for piece in _INFLATE[name](body):
            size += len(piece)
            if size > max_bytes:
                break
            yield piece
    except (zlib.error, OSError, ValueError) as error:
        raise UnreadableBody(f"a {name} body of {len(body):,} bytes does not decompress: {error}") from error
    if size > max_bytes:
        raise MessageTooLarge(
            f"a {name} body of {len(body):,} bytes decompresses to more than {max_bytes:,} bytes "
            "(maxDecompressedMessageSize)"
        )


def named(error: UnreadableBody, where: object) -> UnreadableBody:
    """Return the error with the message's place and advice how to continue."""
    return type(error)(
        f'{where}: {error}. To read the message without its body, set unreadable="null" (in scan, or as an option of a '
        "query). To skip the message, read on from the next offset"
    )


def inflated(
    batch: pa.RecordBatch, sys_flags: npt.NDArray[np.int64], where: Callable[[int], str], bounds: BodyBounds
) -> Iterator[pa.RecordBatch]:
    """Yield rows with decompressed bodies, in batches within `bounds` of at least one row.

    Depending on `bounds.unreadable`, raises `UnreadableBody` after the rows before that message.
    """
    compressed = (sys_flags & SYS_COMPRESSED) != 0
    if "body" not in batch.schema.names or not compressed.any():
        yield batch
        return
    bodies: list[bytes | None] = []
    errors: list[str | None] = []
    first = size = 0
    failed: UnreadableBody | None = None
    for row, stored in enumerate(batch["body"].to_pylist()):
        body, error = stored, None
        try:
            body = decompress(stored, int(sys_flags[row]), bounds.body) if compressed[row] else stored
        except UnreadableBody as unreadable:
            if bounds.unreadable == "error":
                failed = named(unreadable, where(row))
                break
            body, error = stored if bounds.unreadable == "raw" else None, str(unreadable)
        length = len(body or b"")
        if bodies and size + length > bounds.batch:
            yield _with_bodies(batch.slice(first, len(bodies)), bodies, errors)
            bodies, errors, first, size = [], [], row, 0
        bodies.append(body)
        errors.append(error)
        size += length
    if bodies:
        yield _with_bodies(batch.slice(first, len(bodies)), bodies, errors)
    if failed is not None:
        raise failed


def _with_bodies(batch: pa.RecordBatch, bodies: list[bytes | None], errors: list[str | None]) -> pa.RecordBatch:
    missing = arrow(np.array([body is None for body in bodies]))
    column = pc.if_else(missing, pa.nulls(len(bodies), pa.binary()), blobs([body or b"" for body in bodies]))
    replaced = {"body": column}
    if any(errors):
        replaced["bodyError"] = reasons = pa.array(errors, pa.string())
        if "sysFlag" in batch.schema.names:  # the compression bit stays set for a body as stored
            is_raw = pc.and_(reasons.is_valid(), column.is_valid())
            flags = batch["sysFlag"]
            marked = pc.bit_wise_or(flags, pa.scalar(SYS_COMPRESSED, flags.type))
            replaced["sysFlag"] = pc.if_else(is_raw, marked, flags)
    for name, values in replaced.items():
        if (at := batch.schema.get_field_index(name)) >= 0:
            batch = batch.set_column(at, batch.schema.field(at), values)
    return batch


def _zlib(body: bytes) -> Iterator[bytes]:
    stream = zlib.decompressobj()
    while not stream.eof:
        piece = stream.decompress(body, _STEP_BYTES)
        if not piece and not stream.eof:
            raise zlib.error("incomplete or truncated stream")
        yield piece
        body = stream.unconsumed_tail


def _arrow(codec: str, body: bytes) -> Iterator[bytes]:
    # Arrow's decoders for whole bodies need their size, which RocketMQ's frames may lack.
    stream = pa.CompressedInputStream(pa.BufferReader(body), codec)
    while piece := stream.read(_STEP_BYTES):
        yield piece


_INFLATE: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "zlib": _zlib,
    "lz4": partial(_arrow, "lz4"),
    "zstd": partial(_arrow, "zstd"),
}
