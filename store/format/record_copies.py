"""Copy stored records to other topics or queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, constant, flat, lengths, numbers, pc
from store.format.encoding import RecordTopics, encode_property
from store.format.entering import tags_codes
from store.format.hashes import body_crc, key_hashes
from store.format.layout import (
    IPV4_BYTES,
    IPV6_BYTES,
    MAX_PROPERTIES_BYTES,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_CRC,
    PROPERTY_CRC_BYTES,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_HEADERS,
    SECTOR_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
)
from store.format.properties import PropertyColumns, join_properties, properties_too_large
from store.format.record_view import RecordView
from store.format.records import EncodedRecords, Encoding, gather_rows, rows_as_binary
from store.format.stored_message import StoredMessage, host_of

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_WIDEST = RECORD_HEADERS[True][False]  # our store host is IPv4
_KEPT = ("body_crc", "flag", "sys_flag", "born_timestamp", "born_port", "reconsume_times", "body_length")


class CopyDestinations(NamedTuple):
    """The destinations of n copies, and their changes.

    topics: one for all, or n.
    properties: new values by name; null or "" removes a property.
    fields: new values of fields of the header.
    delays: ms, see `EncodedRecords`.
    """

    topics: str | pa.StringArray
    queue_ids: Ints
    properties: Mapping[str, pa.StringArray] = {}
    fields: Mapping[str, Ints] = {}
    delays: Ints | None = None


@dataclass(frozen=True)
class RecordCopies:
    """The content of n stored records.

    headers: with space for an IPv6 born host; an IPv4 host is in its first bytes. bodies: as stored. properties:
    encoded, without the record's checksum.
    """

    headers: npt.NDArray[np.void]
    bodies: pa.BinaryArray
    properties: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.headers)

    @staticmethod
    def of(records: RecordView) -> RecordCopies:
        """Copy records, which must be sound and ascending, with measured topics."""
        headers = np.zeros(len(records), _WIDEST)
        for name in _KEPT:
            headers[name] = records.field(name)
        v6 = headers["sys_flag"] & SYS_BORN_HOST_V6 != 0
        for rows, width in ((np.flatnonzero(~v6), IPV4_BYTES), (np.flatnonzero(v6), IPV6_BYTES)):
            ips = gather_rows(records.view, records.field_positions("born_ip")[rows], width)
            headers["born_ip"][rows, :width] = ips
        headers["sys_flag"] &= ~SYS_STORE_HOST_V6
        properties = records.properties
        if records.have_property_crc.any():
            properties = PropertyColumns(properties).without([PROPERTY_CRC])
        return RecordCopies(headers, records.stored_bodies, properties)

    @staticmethod
    def of_messages(messages: Sequence[StoredMessage]) -> RecordCopies:
        """Copy messages from another log, or deleted here. Raises `MessageRefused`."""
        headers = np.zeros(len(messages), _WIDEST)
        headers["body_crc"] = [body_crc(each.body) for each in messages]
        headers["body_length"] = [len(each.body) for each in messages]
        headers["flag"] = [each.flag for each in messages]
        headers["sys_flag"] = [each.sys_flag & ~SYS_STORE_HOST_V6 for each in messages]
        headers["born_timestamp"] = [each.born_timestamp or 0 for each in messages]  # None: out of range
        headers["reconsume_times"] = [each.reconsume_times for each in messages]
        for row, (ip, port) in enumerate(host_of(each.born_host) for each in messages):
            headers["born_ip"][row, : len(ip)] = np.frombuffer(ip, np.uint8)
            headers["born_port"][row] = port
        parts = [each.body for each in messages], [join_properties(each.properties) for each in messages]
        return RecordCopies(headers, *(pa.array(part, pa.binary()) for part in parts))

    @staticmethod
    def concatenate(parts: Sequence[RecordCopies]) -> RecordCopies:
        """Join at least one part."""
        if len(parts) == 1:
            return parts[0]
        return RecordCopies(
            np.concatenate([part.headers for part in parts]),
            pa.concat_arrays([part.bodies for part in parts]),
            pa.concat_arrays([part.properties for part in parts]),
        )

    def take(self, rows: Ints) -> RecordCopies:
        index = arrow(rows.astype(np.int64))
        return RecordCopies(self.headers[rows], self.bodies.take(index), self.properties.take(index))

    def value(self, name: str) -> pa.StringArray:
        """Return a property's values, null if missing."""
        return self._named.value(name)

    def field(self, name: str) -> Ints:
        return self.headers[name].astype(np.int64)

    @cached_property
    def _named(self) -> PropertyColumns:
        return PropertyColumns(self.properties)

    def records(self, places: CopyDestinations, encoding: Encoding) -> Iterator[EncodedRecords]:
        """Yield the encoded copies in order, in pieces.

        All born hosts of a piece are IPv4, or all are IPv6. Recovery could take zeros in properties for a lost sector,
        so such copies are in pieces of their own, and get a checksum even without `encoding.with_crc`.

        The size of bodies is not limited, because they are in the log already. Raises `MessageRefused` if the
        properties of a copy are too large.
        """
        tags, keys, unique_keys = map(self.value, (PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_UNIQ_KEY))
        filed = (unique_keys, keys, tags if encoding.with_tags else None) if encoding.with_keys else (None, None, None)
        properties, codes = self._changed(places.properties), tags_codes(tags)
        headers = self.headers.copy()
        for name, values in places.fields.items():
            headers[name] = values
        ip, headers["store_port"] = encoding.store_host
        headers["store_ip"] = np.frombuffer(ip, np.uint8)
        headers["queue_id"] = places.queue_ids
        v6 = headers["sys_flag"] & SYS_BORN_HOST_V6 != 0
        look_lost = _may_have_lost_sector(properties)
        cuts = [0, *(np.flatnonzero(np.diff(v6) | np.diff(look_lost)) + 1).tolist(), len(self)]
        for first, last in pairwise(cuts):
            rows = slice(first, last)
            topics = places.topics if isinstance(places.topics, str) else places.topics[rows]
            named = RecordTopics.of(topics)
            hashes, owners = key_hashes(topics, *(None if each is None else each[rows] for each in filed))
            destinations, queues = named.destinations(places.queue_ids[rows])
            some = _as(headers[rows], RECORD_HEADERS[bool(v6[first])][False])
            ended = _with_last_separator(properties[rows]) if encoding.with_crc or look_lost[first] else None
            # Without room for the checksum, copy the record without one.
            with_crc = ended is not None and lengths(ended).max() + PROPERTY_CRC_BYTES <= MAX_PROPERTIES_BYTES
            parts = _parts_after_headers(
                self.bodies[rows], named, ended if with_crc else properties[rows], with_crc=with_crc
            )
            some["magic"] = named.magic
            some["total_size"] = sizes = some.itemsize + sum(map(_lengths, parts))
            yield EncodedRecords(
                headers=some,
                rests=parts,
                sizes=np.broadcast_to(sizes, len(some)).astype(np.int64),
                queues=queues,
                destinations=destinations,
                tags_codes=codes[rows],
                key_hashes=hashes,
                key_rows=owners,
                with_crc=with_crc,
                delays=None if places.delays is None else places.delays[rows],
            )

    def _changed(self, changes: Mapping[str, pa.StringArray]) -> pa.BinaryArray:
        if not changes:
            return self.properties
        pieces = [self._named.without(list(changes))]
        for name, values in changes.items():
            before, encoded, after = encode_property(name, values)
            pieces += [constant(before), encoded, constant(after)]
        return pc.binary_join_element_wise(*pieces, constant(b""))


def _may_have_lost_sector(properties: pa.BinaryArray) -> Mask:
    data, bounds = flat(properties)
    if not len(data):
        return np.zeros(len(properties), np.bool_)
    look: Mask = data[bounds[1:] - 1] == 0  # a few zeros at the end may be alone in a sector
    if (data[::SECTOR_BYTES] == 0).any():  # rarely
        look |= numbers(pc.match_substring(properties, bytes(SECTOR_BYTES)))
    return look


def _with_last_separator(properties: pa.BinaryArray) -> pa.BinaryArray:
    data, bounds = flat(properties)
    if not len(data):
        return properties
    # A client may omit the last separator.
    is_open = (data[bounds[1:] - 1] != PROPERTY_SEPARATOR) & (np.diff(bounds) > 0)
    if not is_open.any():
        return properties
    ends = pc.if_else(arrow(is_open), constant(bytes([PROPERTY_SEPARATOR])), constant(b""))
    return pc.binary_join_element_wise(properties, ends, constant(b""))


def _parts_after_headers(
    bodies: pa.BinaryArray, topics: RecordTopics, properties: pa.BinaryArray, *, with_crc: bool
) -> tuple[pa.BinaryArray | bytes, ...]:
    checksum = bytes(PROPERTY_CRC_BYTES) if with_crc else b""
    sizes = lengths(properties) + len(checksum)
    if sizes.max() > MAX_PROPERTIES_BYTES:
        raise properties_too_large(int(sizes.max()))
    fields = np.ascontiguousarray(sizes.astype(">i2").view(np.uint8).reshape(-1, PROPERTIES_LENGTH_BYTES))
    return bodies, *topics.each, topics.same, rows_as_binary(fields), properties, checksum


def _lengths(part: pa.BinaryArray | bytes) -> Ints | int:
    return len(part) if isinstance(part, bytes) else lengths(part)


def _as(headers: npt.NDArray[np.void], kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    made = np.empty(len(headers), kind)
    for name in kind.names or ():  # the born host may become shorter
        made[name] = headers[name][:, : kind[name].shape[0]] if kind[name].shape else headers[name]
    return made
