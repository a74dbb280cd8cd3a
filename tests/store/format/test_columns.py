"""Decoding many records (`Block`, `RecordView`) equals decoding one at a time (`decode_record`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import COLUMNS, CorruptRecord, InvalidColumns, Message
from store.format.columns import DEFAULT_COLUMNS, Block, BlockRows, check_columns
from store.format.layout import BODY_CRC_MASK, PROPERTY_CRC_BYTES, PROPERTY_CRC_NAME, RECORD_HEADERS, SYS_COMPRESSED
from store.format.record_view import RecordView, crc_matches
from store.format.stored_message import decode_record, host_text
from store.model.log_protocol import Queue
from tests import seen
from tests.store.format.test_message import encode, messages
from tests.store.golden_bytes import V1, V1_BORN_V6

LONG_TOPIC = "%RETRY%" + "g" * 140


def in_a_log(
    rows: list[Message], base: int, *, with_crc: bool = False
) -> tuple[bytes, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Encode records for the log at offset `base`. Returns bytes, physical offsets and sizes."""
    records = encode(*rows, with_crc=with_crc)
    physical = base + np.cumsum(records.sizes) - records.sizes
    records.stamp(np.arange(len(rows)), physical, 1_700_000_000_123)
    return bytes(records.encoded(0, len(rows))), physical, records.sizes


def block_of(data: bytes, base: int, topic: str, physical: Any, sizes: Any) -> Block:
    block = Block(
        Queue(topic, 3), np.frombuffer(data, np.uint8), base, BlockRows(np.arange(len(sizes)), physical, sizes)
    )
    block.check_crc()
    return block


def rows_of(block: Block) -> list[dict[str, Any]]:
    table = pa.table({name: block.column(name) for name in COLUMNS})
    assert table.schema == pa.schema(list(COLUMNS.items()))
    for name in ("bornTimestamp", "storeTimestamp"):
        column = pa.array(table[name].cast(pa.int64()).to_numpy() // 1000)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return [{**row, "properties": dict(row["properties"])} for row in table.to_pylist()]


def one_by_one(data: bytes, physical: Any, sizes: Any, base: int) -> list[dict[str, Any]]:
    """Decode record by record, with compressed bodies left as stored. The flags describe an inflated body."""
    starts = (physical - base).tolist()
    messages = (
        decode_record(data[start : start + size], "here") for start, size in zip(starts, sizes.tolist(), strict=True)
    )
    return [seen._message_row(one._replace(sys_flag=one.sys_flag & ~SYS_COMPRESSED)) for one in messages]


@given(
    st.lists(messages(), min_size=1, max_size=5),
    st.sampled_from(["orders", LONG_TOPIC]),
    st.integers(0, 1 << 40),
    st.booleans(),
)
def test_columns_equal_those_of_single_records(rows: list[Message], topic: str, base: int, with_crc: bool) -> None:
    rows = [Message(topic, row.body, row.tags, row.keys, row.properties, 3, flag=row.flag) for row in rows]
    data, physical, sizes = in_a_log(rows, base, with_crc=with_crc)
    assert len(data) == sizes.sum()
    assert rows_of(block_of(data, base, topic, physical, sizes)) == one_by_one(data, physical, sizes, base)


@given(data=st.data(), with_crc=st.booleans())
def test_changed_byte_gives_the_same_result_as_a_single_record(data: st.DataObject, with_crc: bool) -> None:
    rows = [Message("orders", b"body", "tag", ("key",), {"p": "q"}, 3) for _ in range(3)]
    content, physical, sizes = in_a_log(rows, 500, with_crc=with_crc)
    changed = bytearray(content)
    changed[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        rows_found = rows_of(block_of(bytes(changed), 500, "orders", physical, sizes))
    except CorruptRecord as error:
        assert str(error).startswith("topic orders, queue 3, offset ")  # noqa: PT017
    except pa.ArrowInvalid as error:
        raise AssertionError("an error of Arrow's, not ours") from error
    else:
        expected = one_by_one(bytes(changed), physical, sizes, 500)
        for row in rows_found + expected:  # no CRC covers times, and large ms overflow int64 us
            del row["bornTimestamp"], row["storeTimestamp"]
        assert rows_found == expected


@given(
    st.binary(min_size=100, max_size=300), st.lists(st.tuples(st.integers(-5, 300), st.integers(-5, 300)), max_size=5)
)
def test_arbitrary_bytes_are_no_record(data: bytes, claims: list[tuple[int, int]]) -> None:
    positions = np.array([position for position, _ in claims], np.int64)
    sizes = np.array([size for _, size in claims], np.int64)
    view = RecordView(np.frombuffer(data, np.uint8), positions, sizes)
    view.measure_topics()
    assert not view.sound.any()


def test_records_of_rocketmq_are_decoded() -> None:
    data = np.frombuffer(V1 + V1_BORN_V6, np.uint8)
    view = RecordView(data, np.array([0, len(V1)]), np.array([len(V1), len(V1_BORN_V6)]))
    view.measure_topics()
    assert view.sound.all()
    assert crc_matches(view).all()
    assert view.stored_bodies.to_pylist() == [b"hello-0-", b"v6"]
    assert view.field("store_timestamp").tolist() == [0x1A1FB038370, 0x1A1FB038501]
    assert view.field("physical_offset").tolist() == [0, 17679]
    assert view.expect_topic(b"TopicA").tolist() == [True, True]
    assert view.expect_topic(b"TopicB").tolist() == [False, False]
    assert view.properties.to_pylist()[1] == b"TAGS\x01T6\x02"


@pytest.mark.parametrize("families", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_ipv4_and_ipv6_hosts_are_decoded_together(families: tuple[int, int]) -> None:
    (plain,) = (in_a_log([Message("t", b"b", queue_id=3)], 0)[0],)
    dtype = RECORD_HEADERS[families[0]][families[1]]
    header = np.zeros(1, dtype)
    source = np.frombuffer(plain, RECORD_HEADERS[0][0], 1)
    for name in dtype.names or ():
        if not name.endswith("_ip"):
            header[name] = source[name]
    header["born_ip"], header["store_ip"] = 1, 2
    header["sys_flag"] = 0x10 * families[0] + 0x20 * families[1]
    header["total_size"] = len(plain) + dtype.itemsize - 88
    special = header.tobytes() + plain[88:]
    parts = [plain, special, plain]
    sizes = np.array([len(part) for part in parts])
    physical = np.cumsum(sizes) - sizes
    stamped = b""
    for n, part in enumerate(parts):
        edited = bytearray(part)
        edited[20:36] = n.to_bytes(8, "big") + int(physical[n]).to_bytes(8, "big")
        stamped += bytes(edited)
    rows = rows_of(block_of(stamped, 0, "t", physical, sizes))
    assert rows == one_by_one(stamped, physical, sizes, 0)
    assert rows[1]["bornHost"] == host_text(bytes([1]) * (16 if families[0] else 4), 0)
    assert len(rows[1]["msgId"]) == (56 if families[1] else 32)


def test_wrong_crc_is_named() -> None:
    content, physical, sizes = in_a_log([Message("t", b"body", queue_id=3) for _ in range(3)], 0)
    changed = bytearray(content)
    changed[int(physical[1]) + 88] ^= 1
    with pytest.raises(
        CorruptRecord, match=rf"topic t, queue 3, offset 1 \(commit log offset {physical[1]}\): its body"
    ):
        block_of(bytes(changed), 0, "t", physical, sizes)


def test_empty_body_needs_no_crc() -> None:
    """RocketMQ stores 0 as the CRC of an empty body; other writers may store another value."""
    content, physical, sizes = in_a_log([Message("t", b"", queue_id=3)], 0)
    changed = bytearray(content)
    changed[8:12] = BODY_CRC_MASK.to_bytes(4, "big")
    assert rows_of(block_of(bytes(changed), 0, "t", physical, sizes))[0]["body"] == b""


def test_column_names_are_checked() -> None:
    check_columns(tuple(COLUMNS))
    assert set(DEFAULT_COLUMNS) < set(COLUMNS)
    with pytest.raises(InvalidColumns, match=r"unknown columns a, b. The columns are topic"):
        check_columns(("topic", "a", "b"))
    with pytest.raises(InvalidColumns, match=r"columns named twice: body, tags; name each once"):
        check_columns(("topic", "tags", "body", "tags", "body"))
    with pytest.raises(InvalidColumns, match=r"no columns; name at least one. The columns are topic"):
        check_columns(())


def test_impossible_times_are_null() -> None:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    times = [first - 1, first, -1, 0, last, last + 1, (1 << 63) - 1, -(1 << 63)]
    data, physical, sizes = in_a_log([Message("t", b"x", queue_id=3)] * len(times), 0)
    log = bytearray(data)
    for at, time in zip(physical.tolist(), times, strict=True):
        np.frombuffer(log, RECORD_HEADERS[0][0], 1, at)["born_timestamp"] = time
    column = block_of(bytes(log), 0, "t", physical, sizes).column("bornTimestamp")
    years = [None if instant is None else instant.year for instant in column.to_pylist()]
    assert years == [None, 1, 1969, 1970, 9999, None, None, None]
    assert [None if time is None else time // 1000 for time in column.cast(pa.int64()).to_pylist()] == [
        time if first <= time <= last else None for time in times
    ]


def test_property_crc_detects_any_changed_byte() -> None:
    rows = [Message("orders", b"body", "tag", ("key",), {"p": "q"}, 3) for _ in range(3)]
    content, physical, sizes = in_a_log(rows, 0, with_crc=True)
    begin, end = int(physical[1]), int(physical[1] + sizes[1])
    name = range(end - PROPERTY_CRC_BYTES - 1, end - PROPERTY_CRC_BYTES + len(PROPERTY_CRC_NAME))
    for position in sorted(set(range(begin, end)) - set(name)):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(CorruptRecord, match=r"^topic orders, queue 3, offset 1 "):
            block_of(bytes(changed), 0, "orders", physical, sizes)


def test_block_may_mix_records_with_and_without_property_crc() -> None:
    rows = [Message("orders", f"{n}".encode(), "tag", queue_id=3) for n in range(4)]
    pieces = [encode(row, with_crc=bool(n % 2)) for n, row in enumerate(rows)]
    sizes = np.concatenate([piece.sizes for piece in pieces])
    physical = np.cumsum(sizes) - sizes
    for n, piece in enumerate(pieces):
        piece.stamp(np.array([n]), physical[n : n + 1], 5)
    data = b"".join(bytes(piece.encoded(0, 1)) for piece in pieces)
    assert [row["properties"] for row in rows_of(block_of(data, 0, "orders", physical, sizes))] == [{"TAGS": "tag"}] * 4
    for n in range(4):
        changed = bytearray(data)
        changed[int(physical[n]) + RECORD_HEADERS[0][0].itemsize] ^= 1
        what = "record" if n % 2 else "body"
        with pytest.raises(CorruptRecord, match=rf"offset {n} .*: its {what} does not match its CRC; restore"):
            block_of(bytes(changed), 0, "orders", physical, sizes)


def test_keys_column_has_no_blank_at_its_end() -> None:
    """RocketMQ's Go client appends a blank to the KEYS property, which belongs to no key."""
    rows = [Message("t", b"", properties={"KEYS": keys}, queue_id=3) for keys in ("k1 ", "k1 k2", "k1 k2 ")]
    data, physical, sizes = in_a_log(rows, 0)
    found = rows_of(block_of(data, 0, "t", physical, sizes))
    assert [row["keys"] for row in found] == ["k1", "k1 k2", "k1 k2"]
    assert [row["properties"]["KEYS"] for row in found] == ["k1 ", "k1 k2", "k1 k2 "]
