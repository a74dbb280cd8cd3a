from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import Message, MessageRefused, PutStatus, StoredMessage
from store.format.columns import FIRST_MS, LAST_MS
from store.format.encoding import encode_columns
from store.format.hashes import java_hash_code
from store.format.layout import PROPERTY_CRC_BYTES, RECORD_HEADER, field_offset
from store.format.message import encode_messages, topic_magic
from store.format.message_columns import MessageColumns, split
from store.format.records import EncodedRecords, Encoding, as_columns
from store.format.stored_message import decode_record
from tests.store.golden_bytes import PROPERTY_CRC, V1

HOST = (bytes([127, 0, 0, 1]), 10911)
NOW = 1_700_000_000_000
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=6)
NAME = TEXT.filter(lambda text: text and text not in ("TAGS", "KEYS", "__SHARDINGKEY"))
TAG = st.text(st.characters(exclude_characters="| ", exclude_categories=["Cs", "Cc"]), max_size=6)
KEY = st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1, max_size=6)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    return Message(
        draw(st.sampled_from(["orders", "%RETRY%" + "g" * 140])),
        draw(st.binary(max_size=30)),
        tags=draw(st.none() | TAG),
        keys=tuple(draw(st.lists(KEY, max_size=3))),
        properties=draw(st.dictionaries(NAME, TEXT, max_size=3)),
        queue_id=draw(st.integers(0, 7)),
        sharding_key=draw(st.none() | TEXT),
        flag=draw(INT32),
        born_timestamp=draw(st.integers(0, 1 << 42)),
    )


def encode(*rows: Message, max_message_size: int = 1 << 20, with_crc: bool = False) -> EncodedRecords:
    queue_ids = [row.queue_id or 0 for row in rows]
    return as_columns(encode_messages(rows, queue_ids, Encoding(HOST, max_message_size, with_crc=with_crc), NOW))


def decode(records: EncodedRecords) -> list[StoredMessage]:
    return [decode_record(bytes(records.encoded(n, n + 1)), "here") for n in range(len(records))]


@settings(deadline=None)
@given(st.lists(messages(), min_size=1, max_size=4), st.booleans())
def test_encoded_message_is_decoded(rows: list[Message], with_crc: bool) -> None:
    records = encode(*rows, with_crc=with_crc)
    for row, stored in zip(rows, decode(records), strict=True):
        assert stored.topic == row.topic
        assert stored.body == row.body
        assert stored.queue_id == row.queue_id
        assert stored.properties == {name: value for name, value in row.all_properties().items() if value}
        assert stored.tags == (row.tags or None)
        assert stored.keys == row.keys
        assert stored.flag == row.flag
        assert stored.born_timestamp == row.born_timestamp
        assert stored.born_host == stored.store_host.replace(":10911", ":0")


@settings(deadline=None)
@given(st.lists(messages(), min_size=1, max_size=4), st.integers(0, 2), st.booleans())
def test_table_gives_the_same_bytes(rows: list[Message], cut: int, with_crc: bool) -> None:
    topic = rows[0].topic
    rows = [Message(**{**fields(row), "topic": topic}) for row in rows]
    table = pa.table(
        {
            "body": pa.array([row.body for row in rows], pa.binary()),
            "tags": pa.array([row.tags for row in rows], pa.string()),
            "keys": pa.array([list(row.keys) for row in rows], pa.list_(pa.string())),
            "properties": pa.array([list(row.properties.items()) for row in rows], pa.map_(pa.string(), pa.string())),
            "queueId": pa.array([row.queue_id for row in rows], pa.int32()),
            "shardingKey": pa.array([row.sharding_key for row in rows], pa.string()),
            "flag": pa.array([row.flag for row in rows], pa.int32()),
            "bornTimestamp": pa.array([row.born_timestamp for row in rows], pa.timestamp("ms")),
        }
    )
    rows, table = rows[cut:], table.slice(cut)
    for piece in split(table):
        columns = MessageColumns.of(piece)
        assert columns.queue_ids is not None
        bulk = encode_columns(topic, columns, columns.queue_ids, Encoding(HOST, 1 << 20, with_crc=with_crc), NOW)
        single = encode(*rows, with_crc=with_crc)
        assert bulk.encoded(0, len(rows)) == single.encoded(0, len(rows))
        assert bulk.sizes.tolist() == single.sizes.tolist()
        assert bulk.tags_codes.tolist() == single.tags_codes.tolist()
        assert [bulk.destinations[i] for i in bulk.queues] == [single.destinations[i] for i in single.queues]


def fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in Message.__dataclass_fields__}


def test_record_of_rocketmq_is_read_and_written() -> None:
    stored = decode_record(V1, "here")
    assert stored == StoredMessage(
        topic="TopicA",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        msg_id="UID0",
        body=b"hello-0-",
        properties={"KEYS": "k0 common", "UNIQ_KEY": "UID0", "TAGS": "TagA"},
        born_timestamp=0x18BCFE56800,
        store_timestamp=0x1A1FB038370,
        born_host="10.1.2.3:54321",
        store_host="127.0.0.1:10911",
        reconsume_times=0,
        flag=7,
        sys_flag=0,
        body_crc=0x551F0A28,
        prepared_transaction_offset=0,
    )
    assert (stored.tags, stored.keys) == ("TagA", ("k0", "common"))
    records = encode(
        Message(
            "TopicA",
            b"hello-0-",
            properties=stored.properties,
            flag=7,
            born_timestamp=stored.born_timestamp,
            queue_id=0,
        )
    )
    records.stamp(np.array([0]), np.array([0]), stored.store_timestamp)
    ours = bytearray(records.encoded(0, 1))
    born = field_offset(RECORD_HEADER, "born_ip")
    ours[born : born + 8] = V1[born : born + 8]
    assert bytes(ours) == V1


def test_property_crc_equals_rocketmqs() -> None:
    records = encode(Message("TopicA", b"abc", "T", flag=7, born_timestamp=0x18BCFE56800, queue_id=0), with_crc=True)
    stored = decode_record(PROPERTY_CRC, "here")
    assert stored.properties == {"TAGS": "T"}, "the CRC is no property of the user"
    records.stamp(np.array([0]), np.array([0]), stored.store_timestamp)
    born = field_offset(RECORD_HEADER, "born_ip")
    header = records.headers.view(np.uint8)
    header[born : born + 8] = np.frombuffer(PROPERTY_CRC, np.uint8)[born : born + 8]
    assert bytes(records.encoded(0, 1)) == PROPERTY_CRC


def test_property_crc_needs_space_in_the_properties() -> None:
    room = 32_767 - PROPERTY_CRC_BYTES - len("n\x01\x02")
    encode(Message("t", b"", properties={"n": "x" * room}), with_crc=True)
    with pytest.raises(MessageRefused, match="have 32768 bytes"):
        encode(Message("t", b"", properties={"n": "x" * (room + 1)}), with_crc=True)


def test_tags_among_the_properties_count_as_tags() -> None:
    assert encode(Message("t", b"", properties={"TAGS": "x"})).tags_codes.tolist() == [java_hash_code("x")]
    assert encode(Message("t", b"", tags="y", properties={"TAGS": "x"})).tags_codes.tolist() == [java_hash_code("y")]


def test_body_size_limit_is_exact() -> None:
    encode(Message("t", b"x" * 100), max_message_size=100)
    with pytest.raises(
        MessageRefused, match=r"the body has 101 bytes, and at most 100 are allowed\. Raise maxMessageSize"
    ) as refused:
        encode(Message("t", b"x" * 101), max_message_size=100)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"body": 5}, "a body of type int: must be bytes, or a text"),
        ({"body": None}, "a body of type NoneType"),
        ({"body": "\ud800"}, "the body cannot be encoded as UTF-8"),
        ({"tags": ["a", "b"]}, "a message has one tag, a text; put more into keys or properties"),
        ({"tags": "a || b"}, "tag 'a || b': a message has one tag"),
        ({"tags": "a|b"}, "no subscription can name one with"),
        ({"tags": " a"}, "blanks around it"),
        ({"tags": "a\n"}, "control characters"),
        ({"tags": "\udcff"}, "cannot be encoded as UTF-8"),
        ({"properties": {"TAGS": "a "}}, "tag 'a '"),
        (
            {"keys": ("a b",)},
            "key 'a b': a key must not contain blanks, because they separate keys. Give several keys as a list",
        ),
        ({"keys": "a b"}, "key 'a b': a key must not contain blanks"),
        ({"keys": 17}, "keys=17: must be a text, or a sequence of texts"),
        ({"keys": ["a", 17]}, "key 17: must be a text"),
        ({"keys": ["\ud800"]}, "cannot be encoded as UTF-8"),
        ({"properties": {"n": 5}}, "property 'n'=5: names and values must be texts; write '5', or leave it out"),
        ({"properties": {"n": True}}, "must be texts"),
        ({"properties": {"n": None}}, "must be texts"),
        ({"properties": {5: "n"}}, "must be texts"),
        ({"properties": {"n": "\udc00"}}, "cannot be encoded as UTF-8"),
        ({"properties": [("n", "v")]}, "must be a mapping"),
        ({"properties": None}, "must be a mapping"),
        ({"sharding_key": 5}, "must be texts"),
        ({"sharding_key": 0}, "must be texts"),
        ({"tags": 0}, "a message has one tag, a text"),
        ({"flag": 1.5}, "flag=1.5: must be a whole number"),
        ({"flag": "1"}, "flag='1': must be a whole number"),
        ({"born_timestamp": 1.0}, "born_timestamp=1.0: must be a whole number"),
    ],
)
def test_wrong_messages_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MessageRefused, match=message) as refused:
        encode(Message(**{"topic": "t", "body": b"", **changes}))
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize("body", ["grün", "grün".encode(), bytearray("grün".encode()), memoryview("grün".encode())])
def test_bodies_of_all_types_are_encoded(body: Any) -> None:
    (stored,) = decode(encode(Message("t", body)))
    assert stored.body == "grün".encode()


def test_single_text_is_one_key() -> None:
    (stored,) = decode(encode(Message("t", b"", keys="o-17")))
    assert stored.keys == ("o-17",)


def test_only_blanks_separate_keys() -> None:
    (stored,) = decode(encode(Message("t", b"", keys=("a\tb", "c\u3000d"))))
    assert stored.keys == ("a\tb", "c\u3000d")


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"", flag=1 << 31),
        Message("t", b"", born_timestamp=1 << 63),
        Message("t", b"", born_timestamp=LAST_MS + 1),
        Message("t", b"", born_timestamp=FIRST_MS - 1),
    ],
)
def test_too_large_number_is_refused(message: Message) -> None:
    with pytest.raises(MessageRefused, match=r"flag|born_timestamp") as refused:
        encode(message)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


def test_long_topics_are_version_2() -> None:
    assert topic_magic("t" * 127) == struct.unpack(">i", bytes.fromhex("daa320a7"))[0]
    assert topic_magic("t" * 128) == struct.unpack(">i", bytes.fromhex("daa320ab"))[0]
