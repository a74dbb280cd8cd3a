"""Bodies that a producer compressed (sysFlag bit 0x1), as they were before; and no further than a bound.

A few bytes can become as many gigabytes, and what they become is known only by doing it. So it is done in steps.
"""

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
from store.model.errors import CorruptRecord, MessageTooLarge
from store.model.log_protocol import Oversized

_STEP_BYTES = 256 << 10


class BodyBounds(NamedTuple):
    """How many bytes bodies may become: one of them, and those of a batch; and what a larger one is to be."""

    body: int
    batch: int
    oversized: Oversized


def decompress(body: bytes, sys_flag: int, where: str, max_bytes: int) -> bytes:
    """One compressed body, whose type is in bits 0x700 of `sys_flag`; an empty one stays empty, as in RocketMQ.

    Raises `MessageTooLarge` when it becomes more than `max_bytes`, of which a little more memory is taken, and
    `CorruptRecord`; both begin with `where`.
    """
    if not body:
        return body
    name = SYS_COMPRESSION.get(sys_flag & SYS_COMPRESSION_MASK)
    if name is None:
        raise CorruptRecord(f"{where}: sysFlag {sys_flag:#x}: a compression type that RocketMQ 5.3 does not know")
    try:
        inflated = _INFLATE[name](body, max_bytes + 1)
    except (zlib.error, OSError, ValueError) as error:
        raise CorruptRecord(f"{where}: a {name} body of {len(body)} bytes does not decompress: {error}") from error
    if len(inflated) > max_bytes:
        raise MessageTooLarge(
            f"{where}: a {name} body of {len(body):,} bytes becomes more than {max_bytes:,}; raise "
            'maxDecompressedMessageSize, or read on without it: oversized="null", of scan or as an option of the '
            "query, or from the offset behind it"
        )
    return inflated


def inflated(
    batch: pa.RecordBatch, sys_flags: npt.NDArray[np.int64], where: Callable[[int], str], bounds: BodyBounds
) -> Iterator[pa.RecordBatch]:
    """The rows of `batch`, with compressed bodies decompressed, in batches that are no larger than `bounds` say.

    sys_flags: shape (batch.num_rows,). where: names a row in errors. A batch has one row at least. Raises
    `CorruptRecord`, and by `bounds` `MessageTooLarge`; otherwise a body that becomes too large is null.
    """
    compressed = (sys_flags & SYS_COMPRESSED) != 0
    if "body" not in batch.schema.names or not compressed.any():
        yield batch
        return
    bodies: list[bytes | None] = []
    first = size = 0
    for row, stored in enumerate(batch["body"].to_pylist()):
        body = _of_row(stored, int(sys_flags[row]), where(row), bounds) if compressed[row] else stored
        length = len(body or b"")
        if bodies and size + length > bounds.batch:
            yield _with_bodies(batch.slice(first, len(bodies)), bodies)
            bodies, first, size = [], row, 0
        bodies.append(body)
        size += length
    yield _with_bodies(batch.slice(first), bodies)


def _of_row(body: bytes, sys_flag: int, where: str, bounds: BodyBounds) -> bytes | None:
    try:
        return decompress(body, sys_flag, where, bounds.body)
    except MessageTooLarge:
        if bounds.oversized == "null":
            return None
        raise


def _with_bodies(batch: pa.RecordBatch, bodies: list[bytes | None]) -> pa.RecordBatch:
    at = batch.schema.get_field_index("body")
    missing = arrow(np.array([body is None for body in bodies]))
    column = pc.if_else(missing, pa.nulls(len(bodies), pa.binary()), blobs([body or b"" for body in bodies]))
    return batch.set_column(at, batch.schema.field(at), column)


def _zlib(body: bytes, most: int) -> bytes:
    """The first `most` bytes of what `body` becomes."""
    stream = zlib.decompressobj()
    start = stream.decompress(body, most)
    if len(start) < most and not stream.eof:
        raise zlib.error("incomplete or truncated stream")
    return start


def _arrow(codec: str, body: bytes, most: int) -> bytes:
    """The same; RocketMQ's frames do not all carry the decompressed size, so one-shot decoders will not do."""
    stream = pa.CompressedInputStream(pa.BufferReader(body), codec)
    steps = []
    while most and (step := stream.read(min(most, _STEP_BYTES))):
        steps.append(step)
        most -= len(step)
    return b"".join(steps)


_INFLATE: dict[str, Callable[[bytes, int], bytes]] = {
    "zlib": _zlib,
    "lz4": partial(_arrow, "lz4"),
    "zstd": partial(_arrow, "zstd"),
}
