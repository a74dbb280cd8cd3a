from __future__ import annotations

import zlib
from collections import UserDict
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import InvalidColumns, Message, MessageRefused, PutStatus
from store.format.columns import FIRST_MS, LAST_MS
from store.format.encoding import encode_columns, encode_list
from store.format.hashes import java_hash_code
from store.format.message import encode_messages
from store.format.message_columns import MessageColumns, as_table, split
from store.format.records import EncodedRecords, Encoding, as_columns
from store.format.stored_message import decode_record
from tests.store.format.test_message import KEY, TAG, TEXT, messages

NO_TEXT = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))


def map_of(values: pa.Array) -> pa.MapArray:
    return pa.MapArray.from_arrays([0, 1], pa.array(["n"]), values)


HOST = (bytes([127, 0, 0, 1]), 10911)


def encode(table: pa.Table, max_message_size: int = 1000) -> EncodedRecords:
    (piece,) = split(as_table(table))
    columns = MessageColumns.of(piece)
    queues = np.zeros(len(columns), np.int64)
    return encode_columns("t", columns, queues, Encoding(HOST, max_message_size), 5)


def first_message(**columns: pa.Array) -> Any:
    records = encode(pa.table({"body": pa.array([b"b"]), **columns}))
    return decode_record(bytes(records.encoded(0, 1)), "here")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            pa.table({"bodies": ["x"]}),
            "unknown columns bodies. Required: body .binary or string, no nulls.. Optional: tags .string.",
        ),
        (pa.table({"tags": ["x"]}), "no column 'body'"),
        (pa.table({"body": [1]}), "column 'body' is int64, expected binary or string"),
        (pa.table({"body": [b"x", None]}), "column 'body' has 1 nulls in this table; fill or drop them first"),
        (pa.table({"body": ["x"], "queueId": ["a"]}), "column 'queueId' is string, expected integer"),
        (pa.table({"body": ["x"], "flag": pa.array([None], pa.int32())}), "column 'flag' has 1 nulls"),
        (pa.table({"body": ["x"], "tags": [[1]]}), "column 'tags' is list<.*int64>, expected string"),
        (
            pa.table({"body": ["x"], "properties": ["a=b"]}),
            "column 'properties' is string, expected map<string, string>",
        ),
        (pa.table({"body": ["x"], "tags": [5]}), "column 'tags' is int64, expected string"),
        (pa.table({"body": ["x"], "shardingKey": [True]}), "column 'shardingKey' is bool, expected string"),
        (pa.table({"body": ["x"], "keys": [["a", None]]}), "a list of keys contains a null. Remove the null"),
        (pa.table({"body": ["x"], "queueId": ["1"]}), "column 'queueId' is string, expected integer"),
        (pa.table({"body": ["x"], "queueId": [0.5]}), "column 'queueId' is double, expected integer: .*truncated"),
        (pa.table({"body": ["x"], "queueId": [True]}), "column 'queueId' is bool, expected integer"),
        (
            pa.table({"body": ["x", "y"], "queueId": [None, -(1 << 63)]}),
            "-9223372036854775808 is not a valid queue. Use null",
        ),
        (
            pa.table({"body": ["x"], "bornTimestamp": [LAST_MS + 1]}),
            "253402300800000 ms since 1970 is not in the years 1 to",
        ),
        (
            pa.table({"body": ["x"], "bornTimestamp": [FIRST_MS - 1]}),
            "-62135596800001 ms since 1970 is not in the years 1 to",
        ),
        (
            pa.table({"body": ["x"], "bornTimestamp": pa.array([1 << 40], pa.timestamp("s"))}),
            "1099511627776000 ms since 1970 is not in the years 1 to 9999",
        ),
        (pa.table({"body": ["x"], "flag": pa.array([0], pa.timestamp("ms"))}), "column 'flag' is timestamp"),
        (pa.table({"body": ["x"], "bornTimestamp": pa.array([1], pa.date32())}), "column 'bornTimestamp' is date32"),
        (
            pa.table({"body": ["x"], "bornTimestamp": pa.array([1 << 62], pa.timestamp("s"))}),
            "'bornTimestamp': .*out of",
        ),
        (pa.table({"body": ["x"], "tags": NO_TEXT}), "column 'tags': .*UTF8"),
        (pa.table({"body": ["x"], "tags": pa.array([b"\xff"])}), "column 'tags' is binary, expected string: .*UTF8"),
        (pa.table({"body": ["x"], "keys": NO_TEXT}), "column 'keys': .*UTF8"),
        (pa.table({"body": ["x"], "shardingKey": NO_TEXT}), "column 'shardingKey': .*UTF8"),
        (pa.table({"body": ["x"], "properties": map_of(NO_TEXT)}), "column 'properties': .*UTF8"),
        (pa.table({"body": ["x"], "properties": map_of(pa.array([5]))}), "column 'properties' is map<string, int64>"),
        (pa.table([["x"], ["a"], ["b"]], ["body", "tags", "tags"]), "columns named twice: tags; keep one"),
    ],
)
def test_wrong_columns_are_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(InvalidColumns, match=message):
        encode(table)


@pytest.mark.parametrize(
    ("columns", "status", "message"),
    [
        ({"body": ["x" * 1001]}, PutStatus.MESSAGE_ILLEGAL, "the body has 1001 bytes, and at most 1000 are allowed"),
        ({"body": ["x"], "tags": ["t" * 32767]}, PutStatus.PROPERTIES_SIZE_EXCEEDED, "have 32773 bytes"),
        ({"body": ["x"], "tags": ["a\x01b"]}, PutStatus.MESSAGE_ILLEGAL, "TAGS: no name or value may contain"),
        ({"body": ["x"], "keys": [["a\x02"]]}, PutStatus.MESSAGE_ILLEGAL, "KEYS: no name or value may contain"),
        ({"body": ["x"], "tags": ["a || b"]}, PutStatus.MESSAGE_ILLEGAL, r"tag 'a \|\| b': a message has one tag"),
        ({"body": ["x", "y"], "tags": [None, "a "]}, PutStatus.MESSAGE_ILLEGAL, "tag 'a ': a message has one tag"),
        ({"body": ["x"], "tags": ["\x7f"]}, PutStatus.MESSAGE_ILLEGAL, "control characters"),
        ({"body": ["x"], "tags": ["\x9f"]}, PutStatus.MESSAGE_ILLEGAL, "control characters"),
        (
            {"body": ["x"], "keys": [["a", "b c"]]},
            PutStatus.MESSAGE_ILLEGAL,
            "key 'b c': a key must not contain blanks",
        ),
        ({"body": ["x"], "flag": [1 << 31]}, PutStatus.MESSAGE_ILLEGAL, "flag 2147483648: must fit a signed 32-bit"),
    ],
)
def test_wrong_messages_are_refused(columns: dict[str, list[Any]], status: PutStatus, message: str) -> None:
    with pytest.raises(MessageRefused, match=message) as refused:
        encode(pa.table(columns))
    assert refused.value.status is status


@pytest.mark.parametrize("name", ["tags", "keys", "shardingKey"])
def test_bytes_under_a_null_do_not_matter(name: str) -> None:
    bounds, is_there = pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\x02")
    column = pa.StringArray.from_buffers(2, bounds, pa.py_buffer(b"\xffa"), is_there)
    records = encode(pa.table({"body": ["x", "y"], name: column}))
    read = [decode_record(bytes(records.encoded(row, row + 1)), "here") for row in range(2)]
    assert [list(message.properties.values()) for message in read] == [[], ["a"]]


@pytest.mark.parametrize("pair", [("", "v"), ("a\x02", "v"), ("a", "\x01")])
def test_ambiguous_properties_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(MessageRefused, match="properties"):
        first_message(properties=pa.array([[pair]], pa.map_(pa.string(), pa.string())))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary_view()])
def test_bodies_of_all_types_are_encoded(kind: pa.DataType) -> None:
    records = encode(pa.table({"body": pa.array([b"abc"], pa.binary()).cast(kind)}))
    assert decode_record(bytes(records.encoded(0, 1)), "here").body == b"abc"


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["a b"]),
        pa.array([["a", "b"]]),
        pa.array([["a", "b"]], pa.large_list(pa.string())),
        pa.array(["a b"]).dictionary_encode(),
    ],
)
def test_keys_of_all_types_are_encoded(keys: pa.Array) -> None:
    assert first_message(keys=keys).keys == ("a", "b")


@pytest.mark.parametrize(
    "born", [pa.array([1234]), pa.array([1234], pa.timestamp("ms")), pa.array([1234567], pa.timestamp("us", "UTC"))]
)
def test_born_timestamps_of_all_types_are_encoded(born: pa.Array) -> None:
    assert first_message(bornTimestamp=born).born_timestamp == 1234


def test_tags_with_unusual_characters_are_encoded() -> None:
    for tag in ("1 2", "\xa0", "\u3000a", "Â"):
        assert first_message(tags=pa.array([tag])).tags == tag


@pytest.mark.parametrize("queue", [pa.array([2.0]), pa.array([2], pa.uint8()), pa.array([2]).dictionary_encode()])
def test_integers_of_all_types_are_encoded(queue: pa.Array) -> None:
    assert first_message(flag=queue).flag == 2


def test_pandas_frame_is_encoded() -> None:
    frame = pandas.DataFrame({"body": ["a", "b"], "tags": ["x", None], "flag": [1, 2]}, index=[7, 8])
    records = encode(as_table(frame))
    stored = [decode_record(bytes(records.encoded(row, row + 1)), "here") for row in range(2)]
    assert [(one.body, one.tags, one.flag) for one in stored] == [(b"a", "x", 1), (b"b", None, 2)]


def test_stream_of_batches_is_encoded() -> None:
    table = pa.table({"body": ["a", "b"]})
    assert as_table(table.to_reader()).read_all() == table


@pytest.mark.parametrize("rows", [[{"body": b"x"}], {"body": [b"x"]}, "x", None])
def test_wrong_table_types_are_refused(rows: Any) -> None:
    with pytest.raises(
        InvalidColumns, match=r"append_table takes a pyarrow Table .* not \w+; pyarrow.Table.from_pylist"
    ):
        as_table(rows)


def test_frame_that_arrow_cannot_convert_is_refused() -> None:
    with pytest.raises(InvalidColumns, match="this DataFrame cannot be converted to an Arrow table"):
        as_table(pandas.DataFrame({"body": ["a", 5]}))


def test_born_timestamp_defaults_to_now() -> None:
    assert first_message().born_timestamp == 5


def test_tags_among_the_properties_count_as_tags() -> None:
    maps = pa.array([[("TAGS", "x")], [("TAGS", "x")], [], None], pa.map_(pa.string(), pa.string()))
    records = encode(pa.table({"body": ["1", "2", "3", "4"], "properties": maps, "tags": [None, "y", "z", None]}))
    assert records.tags_codes.tolist() == [java_hash_code("x"), java_hash_code("y"), java_hash_code("z"), 0]


@pytest.mark.parametrize(("rows", "size"), [(10_000, 5), (20, 500_000)])
def test_checksums_of_many_bodies_are_right(rows: int, size: int) -> None:
    bodies = [f"{n}".ljust(size, "x").encode() for n in range(rows)]
    crcs = encode(pa.table({"body": bodies}), max_message_size=size).headers["body_crc"]
    assert crcs.tolist() == [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]


def test_pieces_keep_all_rows_in_order() -> None:
    table = pa.table({"body": [f"{i:04d}" for i in range(1000)]})
    for piece_bytes in (1, 100, 1 << 20):
        assert pa.concat_tables(split(table, piece_bytes)) == table


def test_pieces_have_at_most_max_rows() -> None:
    table = pa.table({"body": ["x"] * 10})
    assert [len(piece) for piece in split(table, max_rows=4)] == [4, 4, 2]


def test_empty_table_has_no_pieces() -> None:
    assert list(split(pa.table({"body": pa.array([], pa.binary())}))) == []


@pytest.mark.parametrize("nothing", [None, ""])
def test_slice_is_encoded_like_its_rows(nothing: str | None) -> None:
    rows: list[dict[str, Any]] = [
        {"body": b"b%d" % n, "tags": "t", "keys": f"k{n} l", "properties": [("a", f"{n}")], "shardingKey": "s"}
        for n in range(6)
    ]
    rows[3] |= {"tags": nothing, "keys": nothing, "properties": [("b", nothing)], "shardingKey": nothing}
    rows[4] |= {"properties": None}
    kinds = pa.schema([("body", pa.binary()), *((name, pa.string()) for name in ("tags", "keys", "shardingKey"))])
    kinds = kinds.append(pa.field("properties", pa.map_(pa.string(), pa.string())))
    sliced = encode(pa.Table.from_pylist(rows, kinds).slice(2, 3))
    alone = encode(pa.Table.from_pylist(rows[2:5], kinds))
    assert sliced.encoded(0, len(sliced)) == alone.encoded(0, len(alone))
    assert sliced.tags_codes.tolist() == alone.tags_codes.tolist() == [java_hash_code("t"), 0, java_hash_code("t")]
    assert sliced.key_hashes.tolist() == alone.key_hashes.tolist()
    assert sliced.key_rows.tolist() == alone.key_rows.tolist() == [0, 0, 2, 2]


def test_too_large_column_is_refused() -> None:
    table = pa.table({"body": pa.chunked_array([pa.array([bytes(4 << 20)])] * 600)})
    with pytest.raises(InvalidColumns, match=r"column 'body': .*; append the rows in smaller tables"):
        MessageColumns.of(table)


MANY = 64
NOW = 1_700_000_000_000
ENCODING = Encoding((bytes([127, 0, 0, 1]), 10911), max_message_size=1000)


class Tag(StrEnum):
    PAID = "paid"


def many(rows: list[Message]) -> list[Message]:
    return rows * -(-MANY // len(rows))


def outcome(encode: Any, rows: list[Message], encoding: Encoding) -> Any:
    """Return every part of the records that an append uses, or the refusal."""
    try:
        records = as_columns(encode(rows, [row.queue_id or 0 for row in rows], encoding, NOW))
    except MessageRefused as refusal:
        return str(refusal), refusal.status
    return (
        bytes(records.encoded(0, len(rows))),
        bytes(records.encoded(len(rows) // 2, len(rows))),
        records.sizes.tolist(),
        [records.destinations[queue] for queue in records.queues],
        sorted(records.destinations),
        records.tags_codes.tolist(),
        records.key_hashes.tolist(),
        records.key_rows.tolist(),
    )


ODD = {
    "body": st.sampled_from(["text \u00e4", "\ud800", b"x" * 1001, bytearray(b"b"), memoryview(b"m"), None, 5]),
    "tags": st.sampled_from(["", "a|b", " a", "\x9f", "a\x01", Tag.PAID, 5, b"t", "x" * 32_768]) | TAG,
    "keys": st.sampled_from(
        ["one", "", "a b", ("a b",), ("", "a"), ["b", ""], (5,), {"set"}, None, "\x02", ("\ud800",)]
    ),
    "properties": st.sampled_from(
        [{"TAGS": "t"}, {"KEYS": "a b"}, {"UNIQ_KEY": "u"}, {"": "v"}, {"n": ""}, {"n": 5}, {5: "v"}, {"n": "\x01"}]
    )
    | st.sampled_from([UserDict({"a": "b"}), None, 0, {"\ud800": "v"}])
    | st.dictionaries(TEXT, TEXT, max_size=2),
    "sharding_key": st.sampled_from(["", "s", 0, False, b"s", "\x01"]),
    "flag": st.sampled_from([True, 1 << 31, -1, 0.0, None, "1", 1 << 70]),
    "born_timestamp": st.sampled_from([0, -1, LAST_MS + 1, FIRST_MS - 1, 1 << 63, 1 << 70, 0.0, True]),
}


@st.composite
def odd_messages(draw: st.DrawFn) -> Message:
    fields = {"topic": draw(st.sampled_from(["a", "b"])), "body": b"body"}
    for name in draw(st.sets(st.sampled_from(sorted(ODD)), min_size=1, max_size=2)):
        fields[name] = draw(ODD[name])
    return Message(**fields)


@given(st.lists(messages(), min_size=1, max_size=5), st.booleans(), st.booleans(), st.booleans())
def test_columns_and_single_messages_give_the_same_records(
    rows: list[Message], with_keys: bool, with_tags: bool, with_crc: bool
) -> None:
    encoding = replace(ENCODING, with_keys=with_keys, with_tags=with_tags, with_crc=with_crc)
    assert outcome(encode_list, many(rows), encoding) == outcome(encode_messages, many(rows), encoding)


@given(st.lists(odd_messages(), min_size=1, max_size=3))
def test_columns_and_single_messages_give_the_same_refusals(rows: list[Message]) -> None:
    encoding = replace(ENCODING, with_tags=True)
    assert outcome(encode_list, many(rows), encoding) == outcome(encode_messages, many(rows), encoding)


@given(st.lists(st.tuples(TAG, KEY), min_size=1, max_size=3))
def test_usual_messages_are_encoded_by_columns(fields: list[tuple[str, str]]) -> None:
    rows = many([Message("t", b"body", tags=tag, keys=(key,), properties={"n": key}) for tag, key in fields])
    assert isinstance(encode_list(rows, [0] * len(rows), ENCODING, NOW), EncodedRecords)


@pytest.mark.parametrize("row", [0, MANY - 1])
def test_wrong_message_of_many_is_named(row: int) -> None:
    rows = [Message("t", b"", tags="good")] * MANY
    rows[row] = Message("t", b"", tags="a|b")
    with pytest.raises(MessageRefused, match=r"tag 'a\|b': a message has one tag"):
        encode_list(rows, [0] * MANY, ENCODING, NOW)
