from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.layout import RECORD_HEADER
from store.message import decode_record
from store.records import gather, gather_rows, scatter_i8
from tests.store.test_message import Message, encode, messages


@given(st.binary(min_size=8, max_size=64), st.data())
def test_integers_at_any_position(data: bytes, draw: st.DataObject) -> None:
    positions = draw.draw(st.lists(st.integers(0, len(data) - 8), max_size=6))
    view = np.frombuffer(data, np.uint8)
    for kind, width, signed in ((">i4", 4, True), (">i8", 8, True), ("u1", 1, False), (">i2", 2, True)):
        expected = [int.from_bytes(data[at : at + width], "big", signed=signed) for at in positions]
        assert gather(view, np.array(positions, np.int64), kind).tolist() == expected
    rows = gather_rows(view, np.array(positions, np.int64), 5)
    assert [row.tobytes() for row in rows] == [data[at : at + 5] for at in positions]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5))
def test_what_was_scattered_is_gathered(values: list[int]) -> None:
    buffer = np.zeros(9 * len(values) + 8, np.uint8)
    positions = np.arange(len(values), dtype=np.int64) * 9 + 1
    scatter_i8(buffer, positions, np.array(values, np.int64))
    assert gather(buffer, positions, ">i8").tolist() == values


@given(st.lists(messages(), min_size=1, max_size=4))
def test_an_append_stamps_three_fields_and_nothing_else(rows: list[Message]) -> None:
    records, untouched = encode(*rows), encode(*rows)
    count = len(rows)
    records.stamp(np.arange(5, 5 + count), np.arange(count) * 1000, 77)
    ends = np.cumsum(records.sizes).tolist()
    for n, end in enumerate(ends):
        record = records.buffer[end - int(records.sizes[n]) : end].tobytes()
        stored = decode_record(record, "here")
        assert (stored.queue_offset, stored.physical_offset, stored.store_timestamp) == (5 + n, 1000 * n, 77)
        header = np.frombuffer(bytearray(record), RECORD_HEADER, 1)
        for name in ("queue_offset", "physical_offset", "store_timestamp"):
            header[name] = 0
        before = untouched.buffer[end - int(records.sizes[n]) : end].tobytes()
        assert header.tobytes() + record[RECORD_HEADER.itemsize :] == before


@given(st.lists(messages(), min_size=1, max_size=4))
def test_entries_say_where_and_how_long(rows: list[Message]) -> None:
    records = encode(*rows)
    physical = np.arange(len(rows)) * 10_000
    entries = records.entries(physical)
    assert entries["physical_offset"].tolist() == physical.tolist()
    assert entries["size"].tolist() == records.sizes.tolist()
    assert entries["tags_code"].tolist() == records.tags_codes.tolist()
    assert records.sizes.sum() == len(records.buffer)
