"""Encoded records before their append: columns, or plain values, which are faster for a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import Bytes, blobs, constant, pc
from store.format.hashes import crc_digits, crcs_between, property_crc
from store.format.layout import (
    CQ_ENTRY,
    PROPERTY_CRC_BYTES,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_NAME,
    RECORD_HEADER,
    struct_of,
)
from store.model.errors import MessageRefused, PutStatus

_MOST_BYTES = (1 << 31) - 1
_HEADER, _ENTRY = struct_of(RECORD_HEADER), struct_of(CQ_ENTRY)
_NUMBERS = {name: number for number, name in enumerate(RECORD_HEADER.names or ())}
_QUEUE_OFFSET, _PHYSICAL_OFFSET, _STORE_TIMESTAMP = map(
    _NUMBERS.__getitem__, ("queue_offset", "physical_offset", "store_timestamp")
)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a store encodes messages.

    store_host: address and port. max_message_size: of a body, bytes. with_keys, with_tags: hash them for the index.
    with_crc: end each record with its CRC.
    """

    store_host: tuple[bytes, int]
    max_message_size: int
    with_keys: bool = True
    with_tags: bool = False
    with_crc: bool = False


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """n records, complete except for the fields that `stamp` sets. Arrays have length n unless noted.

    headers: dtype RECORD_HEADER.
    rests: the parts after each header. An array has a value for each record, bytes are the same in all.
    sizes: bytes.
    queues: index into `destinations`, the distinct (topic, queue id) pairs.
    tags_codes: Java hashes, 0 without tags.
    delays: in SCHEDULE_TOPIC, ms; 0 for other records.
    key_hashes: length m, for the index. key_rows: length m, the record of each key, ascending.
    with_crc: whether each record's last PROPERTY_CRC_BYTES are reserved for its CRC.
    """

    headers: npt.NDArray[np.void]
    rests: tuple[pa.BinaryArray | bytes, ...]
    sizes: npt.NDArray[np.int64]
    queues: npt.NDArray[np.int32]
    destinations: list[tuple[str, int]]
    tags_codes: npt.NDArray[np.int64]
    key_hashes: npt.NDArray[np.int32]
    key_rows: npt.NDArray[np.int64]
    with_crc: bool = False
    delays: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.headers)

    def stamp(
        self,
        queue_offsets: npt.NDArray[np.int64],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamp: int,
    ) -> None:
        self.headers["queue_offset"] = queue_offsets
        self.headers["physical_offset"] = physical_offsets
        self.headers["store_timestamp"] = store_timestamp

    def encoded(self, first: int, last: int) -> memoryview:
        """Return the bytes of records [first, last): at least one record, less than 2 GiB."""
        headers = self.headers[first:last].view(np.uint8).reshape(last - first, -1)
        parts = [constant(part) if isinstance(part, bytes) else part[first:last] for part in self.rests]
        joined = pc.binary_join_element_wise(rows_as_binary(headers), *parts, constant(b""))
        data = np.frombuffer(joined.buffers()[2], np.uint8)[: int(self.sizes[first:last].sum())]
        if self.with_crc:
            data, ends = data if data.flags.writeable else data.copy(), np.cumsum(self.sizes[first:last])
            write_crcs(data, ends - self.sizes[first:last], ends)
        return data.data

    def entries(self, physical_offsets: npt.NDArray[np.int64], store_timestamp: int) -> npt.NDArray[np.void]:
        """Return ConsumeQueue entries, dtype CQ_ENTRY."""
        entries = np.empty(len(self), CQ_ENTRY)
        entries["physical_offset"] = physical_offsets
        entries["size"] = self.sizes
        entries["tags_code"] = self.tags_codes
        if self.delays is not None:
            entries["tags_code"] = np.where(self.delays, store_timestamp + self.delays, self.tags_codes)
        return entries


def write_crcs(data: Bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
    """Write records' CRCs into the bytes reserved for them. The records must ascend."""
    crcs = crcs_between(data, starts, ends - PROPERTY_CRC_BYTES)
    template = np.frombuffer(property_crc(b""), np.uint8)
    last = np.repeat(template[None], len(starts), axis=0)
    digits = len(PROPERTY_CRC_NAME)
    last[:, digits : digits + PROPERTY_CRC_DIGITS] = crc_digits(crcs)
    data[ends[:, None] + np.arange(-PROPERTY_CRC_BYTES, 0)] = last


def gather(buffer: Bytes, positions: npt.NDArray[np.int64], kind: str) -> npt.NDArray[np.int64]:
    """Read big-endian integers of dtype `kind`, such as '>i4', at any byte positions.

    A view with a stride of one byte needs no copy and no alignment.
    """
    width = np.dtype(kind).itemsize
    view = np.ndarray((max(0, len(buffer) - width + 1),), kind, buffer=buffer, strides=(1,))
    return view[positions].astype(np.int64)


def gather_rows(buffer: Bytes, positions: npt.NDArray[np.int64], width: int) -> Bytes:
    """Copy `width` (at least 1) bytes from each position, shape (n, width)."""
    view = np.ndarray((max(0, len(buffer) - width + 1),), f"V{width}", buffer=buffer, strides=(1,))
    return view[positions].view(np.uint8).reshape(len(positions), width)


def rows_as_binary(matrix: Bytes) -> pa.BinaryArray:
    """Convert an (n, k) byte matrix without a copy."""
    count, width = matrix.shape
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(matrix)])


class EncodedRecord(NamedTuple):
    """One record, with the fields of `EncodedRecords`.

    header: values of RECORD_HEADER's fields, in order. rest: the bytes after it.
    """

    header: list[Any]
    rest: bytes
    size: int
    queue: tuple[str, int]
    tags_code: int
    key_hashes: list[int]
    with_crc: bool

    def stamped(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        header = self.header
        header[_QUEUE_OFFSET], header[_PHYSICAL_OFFSET] = queue_offset, physical_offset
        header[_STORE_TIMESTAMP] = store_timestamp
        data = _HEADER.pack(*header) + self.rest
        if self.with_crc:
            data = data[:-PROPERTY_CRC_BYTES]
            data += property_crc(data)
        return data

    def entry(self, physical_offset: int) -> bytes:
        return _ENTRY.pack(physical_offset, self.size, self.tags_code)


def set_field(records: EncodedRecords | Sequence[EncodedRecord], name: str, values: npt.ArrayLike) -> None:
    """Set a header field of records. values: one for all records, or n."""
    if isinstance(records, EncodedRecords):
        records.headers[name] = values
        return
    kind = RECORD_HEADER[name]
    column = np.empty(len(records), kind)
    column[:] = values
    for record, value in zip(records, column.tolist(), strict=True):
        record.header[_NUMBERS[name]] = bytes(value) if kind.shape else value


def as_columns(records: EncodedRecords | Sequence[EncodedRecord]) -> EncodedRecords:
    """Return at least one record as columns. Raises `MessageRefused` for more bytes than columns can have."""
    return records if isinstance(records, EncodedRecords) else _columns(records)


def _columns(few: Sequence[EncodedRecord]) -> EncodedRecords:
    total = sum(record.size for record in few)
    if total > _MOST_BYTES:
        raise MessageRefused(
            PutStatus.MESSAGE_ILLEGAL,
            f"{len(few)} messages have {total} bytes, and one call takes at most {_MOST_BYTES}. Put fewer at a time",
        )
    destinations = list(dict.fromkeys(record.queue for record in few))
    return EncodedRecords(
        headers=np.frombuffer(bytearray().join(_HEADER.pack(*record.header) for record in few), RECORD_HEADER),
        rests=(blobs([record.rest for record in few]),),
        sizes=np.array([record.size for record in few], np.int64),
        queues=np.array([destinations.index(record.queue) for record in few], np.int32),
        destinations=destinations,
        tags_codes=np.array([record.tags_code for record in few], np.int64),
        key_hashes=np.array(list(chain.from_iterable(record.key_hashes for record in few)), np.int32),
        key_rows=np.repeat(np.arange(len(few)), [len(record.key_hashes) for record in few]),
        with_crc=few[0].with_crc,
    )
