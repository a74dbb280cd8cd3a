from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store import MessageRefused, PutStatus
from store.format.properties import PropertyColumns, decode_properties, encode_properties

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_encoded_properties_are_decoded(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_bytes_equal_rocketmqs() -> None:
    encoded = b"KEYS\x01k0 common\x02UNIQ_KEY\x01UID0\x02TAGS\x01TagA\x02"
    properties = {"KEYS": "k0 common", "UNIQ_KEY": "UID0", "TAGS": "TagA"}
    assert encode_properties(properties) == encoded
    assert decode_properties(encoded) == properties


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"", {}),
        (b"\x02\x02", {}),
        (b"a\x01b", {"a": "b"}),  # RocketMQ 4.9 omits the last separator
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),  # no value
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),  # no name
        (b"ab\x02c\x01d\x02", {"c": "d"}),  # no separator
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),  # the last one wins
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),  # cut at the first mark
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_unusual_strings_are_read_as_in_rocketmq(encoded: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(encoded) == expected


@pytest.mark.parametrize("properties", [{"": "v"}, {"a\x01": "v"}, {"a": "v\x02"}, {"a\x02": "v"}, {"a": "\x01"}])
def test_ambiguous_properties_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageRefused, match="separators") as refused:
        encode_properties(properties)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(MessageRefused, match="UTF-8") as refused:
        encode_properties({"a": "\ud800"})
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


def test_property_size_limit_is_exact() -> None:
    assert len(encode_properties({"a": "v" * 32764})) == 32767
    with pytest.raises(MessageRefused, match=r"have 32768 bytes, and at most 32767 are allowed") as refused:
        encode_properties({"a": "v" * 32765})
    assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED


NAMES = ("TAGS", "KEYS", "a", "ab", "é")
PIECES = st.sampled_from(
    [b"\x01", b"\x02", b"a", b"b", b"ab", b"TAGS", b"KEYS", "é".encode(), b"\xc3", b"\xff", b"\xe6\xbc", "漢".encode()]
)
STRINGS = st.lists(PIECES, max_size=12).map(b"".join)


@given(st.lists(STRINGS, max_size=6))
@example([b"a\x01b\x02a\x01c\x02"])
@example([b"a\x01b", b"ab\x01c"])
@example([b"", b"TAGS\x01x\x02", b""])
@example([b"a\x01", b"\x02"])
def test_columns_equal_single_decoding(strings: list[bytes]) -> None:
    columns = PropertyColumns(pa.array(strings, pa.binary()))
    expected = [decode_properties(string) for string in strings]
    for name in NAMES:
        assert columns.value(name).to_pylist() == [properties.get(name) for properties in expected], name
    assert [dict(row) for row in columns.maps().to_pylist()] == expected


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_arbitrary_bytes_are_decoded(strings: list[bytes]) -> None:
    columns = PropertyColumns(pa.array(strings, pa.binary()))
    assert [dict(row) for row in columns.maps().to_pylist()] == [decode_properties(string) for string in strings]


def test_map_has_each_name_once() -> None:
    columns = PropertyColumns(pa.array([b"a\x01b\x02c\x01d\x02a\x01e\x02"], pa.binary()))
    assert sorted(columns.maps().to_pylist()[0]) == [("a", "e"), ("c", "d")]
