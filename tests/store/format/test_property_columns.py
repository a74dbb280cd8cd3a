"""`PropertyColumns` against `decode_properties`, on whatever bytes may stand there."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from store.format.properties import decode_properties
from store.format.property_columns import PropertyColumns

NAMES = ("TAGS", "KEYS", "a", "ab", "é")
# every separator, letters of the names, half a character, a byte that is never UTF-8
PIECES = st.sampled_from(
    [b"\x01", b"\x02", b"a", b"b", b"ab", b"TAGS", b"KEYS", "é".encode(), b"\xc3", b"\xff", b"\xe6\xbc", "漢".encode()]
)
STRINGS = st.lists(PIECES, max_size=12).map(b"".join)


@given(st.lists(STRINGS, max_size=6))
@example([b"a\x01b\x02a\x01c\x02"])
@example([b"a\x01b", b"ab\x01c"])
@example([b"", b"TAGS\x01x\x02", b""])
@example([b"a\x01", b"\x02"])
def test_same_as_one_by_one(strings: list[bytes]) -> None:
    columns = PropertyColumns(pa.array(strings, pa.binary()))
    expected = [decode_properties(string) for string in strings]
    for name in NAMES:
        assert columns.value(name).to_pylist() == [properties.get(name) for properties in expected], name
    assert [dict(row) for row in columns.maps().to_pylist()] == expected


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_arbitrary_bytes(strings: list[bytes]) -> None:
    columns = PropertyColumns(pa.array(strings, pa.binary()))
    assert [dict(row) for row in columns.maps().to_pylist()] == [decode_properties(string) for string in strings]


def test_a_name_stands_once_in_the_map() -> None:
    columns = PropertyColumns(pa.array([b"a\x01b\x02c\x01d\x02a\x01e\x02"], pa.binary()))
    assert sorted(columns.maps().to_pylist()[0]) == [("a", "e"), ("c", "d")]
