"""Read fields and bounds of many records in one buffer, vectorised. No access leaves the buffer, also for damaged
records.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import Bytes, cut, flat
from store.format.hashes import body_crcs, crcs_between, crcs_of_digits
from store.format.layout import (
    IPV6_EXTRA,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_CRC,
    PROPERTY_CRC_BYTES,
    PROPERTY_CRC_DIGITS,
    PROPERTY_SEPARATOR,
    RECORD_HEADER,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    field_offset,
)
from store.format.records import gather, gather_rows, write_crcs

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BODY_LENGTH_BYTES = RECORD_HEADER["body_length"].itemsize
_BEHIND_BORN_IP = field_offset(RECORD_HEADER, "born_ip")
_BEHIND_STORE_IP = field_offset(RECORD_HEADER, "store_ip")
_WORD = np.dtype(np.uint64)
_CRC_WORD = np.frombuffer(PROPERTY_CRC.encode(), _WORD)
_PROPERTIES_LENGTH = np.dtype(f">i{PROPERTIES_LENGTH_BYTES}")
_DELIVERY_MARK = "prepared_transaction_offset"  # negative in delivered messages, see `delivery_progress.delivery_marks`
_SYS_HOST_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6


class RecordView:
    """n records in `view`, which is at least as long as a record header. sizes: from entries or headers.

    *_starts are positions in `view`, *_lengths are bytes. Both are undefined for records that are not `sound`: their
    lengths do not add up.
    """

    def __init__(self, view: Bytes, positions: Ints, sizes: Ints) -> None:
        self.view = view
        self.positions = positions
        self.sizes = sizes
        self.ends = positions + sizes
        self.sound: Mask = (positions >= 0) & (sizes >= RECORD_HEADER.itemsize) & (self.ends <= len(view))
        # One gather of whole headers is several times faster than one per field.
        rows = gather_rows(view, self._inside(positions), RECORD_HEADER.itemsize)
        self._header_bytes = rows
        self._headers = rows.view(RECORD_HEADER)[:, 0]
        self._v1 = self._headers["magic"] == MAGIC_V1
        self.sound &= self._headers["total_size"] == sizes
        if not self._v1.all():
            self.sound &= self._v1 | (self._headers["magic"] == MAGIC_V2)
        sys_flags = self._headers["sys_flag"]
        self.hosts_are_v4 = not (sys_flags & _SYS_HOST_V6).any()
        body_field = self.field_positions("body_length")
        self.body_starts = body_field + _BODY_LENGTH_BYTES
        self.sound &= self.body_starts <= self.ends
        self.body_lengths = self.field("body_length")
        self._topic_fields = self.body_starts + self.body_lengths
        self.sound &= (self.body_lengths >= 0) & (self._topic_fields < self.ends)

    def __len__(self) -> int:
        return len(self.sizes)

    def field(self, name: str) -> Ints:
        if self.hosts_are_v4 or field_offset(RECORD_HEADER, name) <= _BEHIND_BORN_IP:
            return self._headers[name].astype(np.int64)
        return gather(self.view, self._inside(self.field_positions(name)), RECORD_HEADER[name].str)

    def field_positions(self, name: str) -> Ints:
        """Return a field's positions in `view`. IPv6 hosts shift the fields after them."""
        offset = field_offset(RECORD_HEADER, name)
        positions = self.positions + offset
        if self.hosts_are_v4:
            return positions
        if offset > _BEHIND_BORN_IP:
            positions += ((self._headers["sys_flag"] & SYS_BORN_HOST_V6) != 0) * IPV6_EXTRA
        if offset > _BEHIND_STORE_IP:
            positions += ((self._headers["sys_flag"] & SYS_STORE_HOST_V6) != 0) * IPV6_EXTRA
        return positions

    def v4_hosts(self, which: str) -> Bytes:
        """Return ip and port of the "born" or "store" hosts, shape (n, 8). All must be IPv4."""
        first = field_offset(RECORD_HEADER, f"{which}_ip")
        behind = field_offset(RECORD_HEADER, f"{which}_port") + RECORD_HEADER[f"{which}_port"].itemsize
        hosts: Bytes = np.ascontiguousarray(self._header_bytes[:, first:behind])
        return hosts

    def expect_topic(self, topic: bytes) -> Mask:
        """Return a mask of the sound records with this topic.

        Also sets the positions and lengths of topics and properties, and updates `sound`.
        """
        widths = self._topic_widths()
        if isinstance(widths, int):
            return self._expect_topic_of_width(widths, topic)
        self.measure_topics()
        same: Mask = self.sound & (self.topic_lengths == len(topic))
        found = gather_rows(self.view, np.where(same, self.topic_starts, 0), len(topic))
        same &= (found == np.frombuffer(topic, np.uint8)).all(axis=1)
        return same

    def _expect_topic_of_width(self, width: int, topic: bytes) -> Mask:
        """Do `expect_topic` if the topic's length field has `width` bytes in all records.

        Compares machine words that end with the properties' length, and masks out the bytes before the topic: several
        times faster than comparing strings.
        """
        expected = len(topic).to_bytes(width, "big") + topic
        parts = self._topic_fields + len(expected)
        self.sound &= parts + PROPERTIES_LENGTH_BYTES <= self.ends
        ahead = -(len(expected) + PROPERTIES_LENGTH_BYTES) % _WORD.itemsize
        wanted = np.frombuffer(bytes(ahead) + expected + bytes(PROPERTIES_LENGTH_BYTES), _WORD)
        counts = np.frombuffer(bytes(ahead) + b"\xff" * len(expected) + bytes(PROPERTIES_LENGTH_BYTES), _WORD)
        if len(self.view) < wanted.nbytes:
            return np.zeros(len(self), np.bool_)
        rows = gather_rows(self.view, self._inside(self._topic_fields - ahead), wanted.nbytes)
        same: Mask = self.sound.copy()
        for index, words in enumerate(rows.view(_WORD).T):
            same &= (words & counts[index]) == wanted[index]
        lengths = rows.view(_PROPERTIES_LENGTH)[:, -1].astype(np.int64)
        self._set_parts(parts - len(topic), np.full(len(self), len(topic)), lengths)
        return same

    def measure_topics(self) -> None:
        widths = self._topic_widths()
        self.sound &= self._topic_fields + widths <= self.ends
        lengths = gather(self.view, self._inside(self._topic_fields), "u1")
        if not self._v1.all():
            lengths = np.where(self._v1, lengths, gather(self.view, self._inside(self._topic_fields), ">i2"))
        starts = self._topic_fields + widths
        properties_fields = starts + lengths
        self.sound &= (lengths >= 0) & (properties_fields + PROPERTIES_LENGTH_BYTES <= self.ends)
        properties_lengths = gather(self.view, self._inside(properties_fields), ">i2")
        self._set_parts(starts, lengths, properties_lengths)

    def slices(self, starts: Ints, lengths: Ints) -> pa.BinaryArray:
        """Return bytes of each record; all must be sound."""
        return cut(self.view, starts, lengths)

    @cached_property
    def stored_bodies(self) -> pa.BinaryArray:
        """Bodies as stored. All records must be sound."""
        return self.slices(self.body_starts, self.body_lengths)

    @cached_property
    def properties(self) -> pa.BinaryArray:
        """Encoded properties. Records must be as for `crc_matches`."""
        return self.slices(self.properties_starts, self.properties_lengths)

    @cached_property
    def have_property_crc(self) -> Mask:
        """Mask of records with a CRC of the whole record. They must be as for `crc_matches`."""
        if self.properties_lengths.sum() < _CRC_WORD.nbytes:
            return np.zeros(len(self), np.bool_)
        data, bounds = flat(self.properties)  # denser than the log
        words = np.ndarray((len(data) - _CRC_WORD.nbytes + 1,), np.uint64, buffer=data, strides=(1,))
        starts = bounds[1:] - PROPERTY_CRC_BYTES
        have: Mask = (words[np.maximum(starts, 0)] == _CRC_WORD) & (starts >= bounds[:-1])
        rows = have.nonzero()[0]
        if len(rows):
            is_first = starts[rows] == bounds[rows]
            have[rows] = is_first | (data[starts[rows] - 1] == PROPERTY_SEPARATOR)
            have[rows] &= data[starts[rows] + _CRC_WORD.nbytes] == NAME_VALUE_SEPARATOR
        return have

    def _topic_widths(self) -> Ints | int:
        if self._v1.all():
            return TOPIC_LENGTH_BYTES[MAGIC_V1]
        return np.where(self._v1, TOPIC_LENGTH_BYTES[MAGIC_V1], TOPIC_LENGTH_BYTES[MAGIC_V2])

    def _set_parts(self, topic_starts: Ints, topic_lengths: Ints, properties_lengths: Ints) -> None:
        self.topic_starts = topic_starts
        self.topic_lengths = topic_lengths
        self.properties_starts = topic_starts + topic_lengths + PROPERTIES_LENGTH_BYTES
        self.properties_lengths = properties_lengths
        self.sound &= (properties_lengths >= 0) & (self.properties_starts + properties_lengths == self.ends)

    def _inside(self, positions: Ints) -> Ints:
        return positions if self.sound.all() else np.where(self.sound, positions, 0)


def moved_records(records: RecordView, physical_offsets: Ints, *, with_delivery_marks: bool = True) -> Bytes:
    """Copy records back to back, with new log offsets and matching CRCs. They must be as for `crc_matches`.

    with_delivery_marks: whether delivered messages keep the log offset of their delayed record in the old log.
    """
    data, bounds = flat(records.slices(records.positions, records.sizes))
    data = data.copy()
    starts, ends = bounds[:-1], bounds[1:]
    offsets = physical_offsets.astype(RECORD_HEADER["physical_offset"])
    places = (starts + field_offset(RECORD_HEADER, "physical_offset"))[:, None] + np.arange(offsets.itemsize)
    data[places] = offsets.view(np.uint8).reshape(places.shape)
    if not with_delivery_marks:
        width = RECORD_HEADER[_DELIVERY_MARK].itemsize
        at = (starts + records.field_positions(_DELIVERY_MARK) - records.positions)[records.field(_DELIVERY_MARK) < 0]
        data[at[:, None] + np.arange(width)] = 0
    if (whole := records.have_property_crc).any():
        write_crcs(data, starts[whole], ends[whole])
    return data


def crc_matches(records: RecordView) -> Mask:
    """Return a mask of the records that match their CRC, of the record or else of its body. An empty body matches.

    All records must be sound, with expected or measured topics.
    """
    whole = records.have_property_crc
    if whole.all():
        return _property_crc_matches(records, whole)
    matches: Mask = (body_crcs(records.stored_bodies) == records.field("body_crc")) | (records.body_lengths == 0)
    if whole.any():
        matches[whole] = _property_crc_matches(records, whole)
    return matches


def _property_crc_matches(records: RecordView, rows: Mask) -> Mask:
    ends = records.ends[rows]
    crcs = crcs_between(records.view, records.positions[rows], ends - PROPERTY_CRC_BYTES)
    digits = gather_rows(records.view, ends - PROPERTY_CRC_DIGITS - 1, PROPERTY_CRC_DIGITS)
    matches: Mask = (crcs_of_digits(digits) == crcs) & (records.view[ends - 1] == PROPERTY_SEPARATOR)
    return matches
