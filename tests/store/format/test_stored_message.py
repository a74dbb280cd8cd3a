from __future__ import annotations

import copy
import pickle
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import CorruptRecord, StoredMessage
from store.format.entering import QueueEntry
from store.format.hashes import java_hash_code
from store.format.layout import PROPERTY_CRC_BYTES, PROPERTY_CRC_NAME
from store.format.stored_message import decode_record, host_text, must_match_entry, offset_msg_id, offset_msg_ids
from tests.store.golden_bytes import PROPERTY_CRC, V1, V1_BORN_V6

HOST = (bytes([127, 0, 0, 1]), 10911)


def test_ipv6_born_host_and_property_crc_are_decoded() -> None:
    stored = decode_record(V1_BORN_V6, "here")
    assert stored.born_host == "[2001:db8::1]:1"
    assert (stored.queue_offset, stored.body, stored.tags) == (20, b"v6", "T6")
    assert stored.msg_id == offset_msg_id(*HOST, 17679)
    with_crc = decode_record(PROPERTY_CRC, "here")
    assert (with_crc.body, with_crc.tags) == (b"abc", "T")


@given(st.integers(0, len(PROPERTY_CRC) - 1), st.integers(1, 255))
def test_property_crc_detects_any_changed_byte(position: int, change: int) -> None:
    """A change in the CRC property's name leaves the record without that CRC. Then only the body's CRC is checked."""
    changed = bytearray(PROPERTY_CRC)
    changed[position] ^= change
    named = len(PROPERTY_CRC) - PROPERTY_CRC_BYTES - 1
    if named <= position < named + 1 + len(PROPERTY_CRC_NAME):
        with suppress(CorruptRecord):
            decode_record(bytes(changed), "here")
    else:
        with pytest.raises(CorruptRecord):
            decode_record(bytes(changed), "here")


@given(st.integers(0, len(V1) - 1), st.integers(1, 255))
def test_changed_byte_gives_an_error_or_a_message(position: int, change: int) -> None:
    changed = bytearray(V1)
    changed[position] ^= change
    with suppress(CorruptRecord):
        assert isinstance(decode_record(bytes(changed), "here"), StoredMessage)


@given(st.integers(0, len(V1) - 1))
def test_truncated_record_is_an_error(length: int) -> None:
    with pytest.raises(CorruptRecord, match="here: "):
        decode_record(V1[:length], "here")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(data, "here")


def test_wrong_crc_is_named_and_may_be_ignored() -> None:
    changed = V1.replace(b"hello", b"hullo")
    with pytest.raises(
        CorruptRecord,
        match=r"here: the body's CRC is 0x[0-9a-f]+, but 0x551f0a28 is stored; restore the segment",
    ):
        decode_record(changed, "here")
    assert decode_record(changed, "here", check_crc=False).body == b"hullo-0-"


def test_ids_and_hosts_are_decoded() -> None:
    assert offset_msg_id(*HOST, 0x90) == "7F00000100002A9F0000000000000090"
    assert host_text(HOST[0], 10911) == "127.0.0.1:10911"
    assert host_text(bytes.fromhex("20010db8000000000000000000000001"), 1) == "[2001:db8::1]:1"


def test_decoded_message_equals_a_constructed_one() -> None:
    decoded = decode_record(V1, "here")
    made = StoredMessage(**decoded._asdict())
    assert type(decoded) is StoredMessage
    assert decoded == made == decoded._replace() == pickle.loads(pickle.dumps(decoded)) == copy.deepcopy(decoded)
    assert repr(decoded) == repr(made)
    assert decoded != decoded._replace(flag=8)
    with pytest.raises(AttributeError):
        decoded.flag = 8  # type: ignore[misc]


ENTRY = QueueEntry("TopicA", 0, 0, 0, len(V1), java_hash_code("TagA"))


def test_entry_must_match_its_message() -> None:
    message = decode_record(V1, "here")
    must_match_entry(message, ENTRY)
    must_match_entry(message, ENTRY._replace(tags_code=-(1 << 31) - 1))  # an address in a queue extension
    with_place = message._replace(properties={"INNER_MULTI_DISPATCH": "x,%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "1,5"})
    light = QueueEntry("%LMQ%a", 0, 5, 0, len(V1), 0)
    must_match_entry(with_place, light)
    for found, entry in [
        (message, ENTRY._replace(topic="TopicB")),
        (message, ENTRY._replace(queue_id=1)),
        (message, ENTRY._replace(queue_offset=1)),
        (message, ENTRY._replace(physical_offset=1)),
        (message, ENTRY._replace(tags_code=5)),
        (message, light),
        (with_place, light._replace(queue_offset=1)),
        (with_place, light._replace(physical_offset=1)),
    ]:
        where = rf"topic {entry.topic}, queue {entry.queue_id}, offset {entry.queue_offset} \(commit log offset"
        with pytest.raises(CorruptRecord, match=rf"{where} {entry.physical_offset}\): the log has another message"):
            must_match_entry(found, entry)


@pytest.mark.parametrize("ip", [bytes([127, 0, 0, 1]), bytes(range(0xF0, 0x100))])
@pytest.mark.parametrize("offsets", [[], [0], [1, 1 << 40, (1 << 63) - 1]])
def test_ids_of_many_equal_single_ids(ip: bytes, offsets: list[int]) -> None:
    assert offset_msg_ids(ip, 10911, offsets) == [offset_msg_id(ip, 10911, at) for at in offsets]
