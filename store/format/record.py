"""One encoded record that has no place in the log yet, in plain values: `Records` of a few would take longer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from store.format.arrays import blobs
from store.format.crc import property_crc
from store.format.layout import CQ_ENTRY, PROPERTY_CRC_BYTES, RECORD_HEADER, struct_of
from store.format.records import Records
from store.model.errors import MessageRefused, PutStatus

_MOST_BYTES = (1 << 31) - 1
_HEADER, _ENTRY = struct_of(RECORD_HEADER), struct_of(CQ_ENTRY)
_NUMBERS = {name: number for number, name in enumerate(RECORD_HEADER.names or ())}
_QUEUE_OFFSET, _PHYSICAL_OFFSET, _STORE_TIMESTAMP = map(
    _NUMBERS.__getitem__, ("queue_offset", "physical_offset", "store_timestamp")
)


class Record(NamedTuple):
    """The fields are those of `Records`, of one.

    header: the values of RECORD_HEADER's fields, in order. rest: what follows the header. size: of the record, bytes.
    """

    header: list[Any]
    rest: bytes
    size: int
    queue: tuple[str, int]
    tags_code: int
    key_hashes: list[int]
    with_crc: bool

    def stamped(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        """The record as it stands in the log, with the three fields that the append decides."""
        header = self.header
        header[_QUEUE_OFFSET], header[_PHYSICAL_OFFSET] = queue_offset, physical_offset
        header[_STORE_TIMESTAMP] = store_timestamp
        data = _HEADER.pack(*header) + self.rest
        if self.with_crc:
            data = data[:-PROPERTY_CRC_BYTES]
            data += property_crc(data)
        return data

    def entry(self, physical_offset: int) -> bytes:
        """Its ConsumeQueue entry."""
        return _ENTRY.pack(physical_offset, self.size, self.tags_code)


def set_field(records: Records | Sequence[Record], name: str, values: npt.ArrayLike) -> None:
    """Write a field into the headers of n records. values: one for all, or one each."""
    if isinstance(records, Records):
        records.headers[name] = values
        return
    kind = RECORD_HEADER[name]
    column = np.empty(len(records), kind)
    column[:] = values
    for record, value in zip(records, column.tolist(), strict=True):
        record.header[_NUMBERS[name]] = bytes(value) if kind.shape else value


def as_columns(records: Records | Sequence[Record]) -> Records:
    """The same, one at least, as columns. Raises `MessageRefused` for more bytes than columns hold."""
    return records if isinstance(records, Records) else _columns(records)


def _columns(few: Sequence[Record]) -> Records:
    total = sum(record.size for record in few)
    if total > _MOST_BYTES:
        raise MessageRefused(
            PutStatus.MESSAGE_ILLEGAL,
            f"{len(few)} messages of {total} bytes in one call, at most {_MOST_BYTES}; put fewer at a time",
        )
    destinations = list(dict.fromkeys(record.queue for record in few))
    return Records(
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
