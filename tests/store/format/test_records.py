from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.format.layout import RECORD_HEADER
from store.format.records import gather, gather_rows
from store.format.stored_message import decode_record
from tests.store.format.test_message import Message, encode, messages


@given(st.binary(min_size=8, max_size=64), st.data())
def test_integers_are_read_at_any_position(data: bytes, draw: st.DataObject) -> None:
    positions = draw.draw(st.lists(st.integers(0, len(data) - 8), max_size=6))
    view = np.frombuffer(data, np.uint8)
    for kind, width, signed in ((">i4", 4, True), (">i8", 8, True), ("u1", 1, False), (">i2", 2, True)):
        expected = [int.from_bytes(data[at : at + width], "big", signed=signed) for at in positions]
        assert gather(view, np.array(positions, np.int64), kind).tolist() == expected
    rows = gather_rows(view, np.array(positions, np.int64), 5)
    assert [row.tobytes() for row in rows] == [data[at : at + 5] for at in positions]


@given(st.lists(messages(), min_size=1, max_size=4))
def test_append_stamps_exactly_three_fields(rows: list[Message]) -> None:
    records, untouched = encode(*rows), encode(*rows)
    count = len(rows)
    records.stamp(np.arange(5, 5 + count), np.arange(count) * 1000, 77)
    for n in range(count):
        record = bytes(records.encoded(n, n + 1))
        stored = decode_record(record, "here")
        assert (stored.queue_offset, stored.physical_offset, stored.store_timestamp) == (5 + n, 1000 * n, 77)
        header = np.frombuffer(bytearray(record), RECORD_HEADER, 1)
        for name in ("queue_offset", "physical_offset", "store_timestamp"):
            header[name] = 0
        assert header.tobytes() + record[RECORD_HEADER.itemsize :] == untouched.encoded(n, n + 1)


@given(st.lists(messages(), min_size=1, max_size=5), st.data())
def test_any_range_of_records_is_encoded(rows: list[Message], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first + 1, len(rows)))
    alone = [bytes(encode(row).encoded(0, 1)) for row in rows[first:last]]
    records = encode(*rows)
    assert records.encoded(first, last) == b"".join(alone)
    assert records.sizes[first:last].tolist() == list(map(len, alone))


@given(st.lists(messages(), min_size=1, max_size=4))
def test_entries_have_offset_size_and_tags_code(rows: list[Message]) -> None:
    records = encode(*rows)
    physical = np.arange(len(rows)) * 10_000
    entries = records.entries(physical, 0)
    assert entries["physical_offset"].tolist() == physical.tolist()
    assert entries["size"].tolist() == records.sizes.tolist()
    assert entries["tags_code"].tolist() == records.tags_codes.tolist()
