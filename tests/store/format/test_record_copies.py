from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import Message, MessageRefused, StoredMessage
from store.format.arrays import texts
from store.format.layout import SECTOR_BYTES, SYS_BORN_HOST_V6
from store.format.record_copies import CopyDestinations, RecordCopies
from store.format.record_view import RecordView
from store.format.records import EncodedRecords, Encoding
from store.format.stored_message import decode_record
from tests.store.format.test_columns import in_a_log
from tests.store.format.test_message import encode, messages
from tests.store.golden_bytes import PROPERTY_CRC, V1, V1_BORN_V6

ENCODING = Encoding((b"\x7f\0\0\1", 10911), 1)


def copies_of(*records: bytes) -> RecordCopies:
    data = b"".join(records)
    sizes = np.array([len(record) for record in records], np.int64)
    view = RecordView(np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes, sizes)
    view.measure_topics()
    assert view.sound.all()
    return RecordCopies.of(view)


def stored(pieces: list[EncodedRecords], places: list[int]) -> list[StoredMessage]:
    """Stamp the records for a log from offset 0 and decode them. places: their queue offsets."""
    found = []
    at = 0
    for piece in pieces:
        offsets = at + np.cumsum(piece.sizes) - piece.sizes
        piece.stamp(np.array(places[len(found) : len(found) + len(piece)]), offsets, 1_800_000_000_000)
        data = bytes(piece.encoded(0, len(piece)))
        assert len(data) == piece.sizes.sum()
        for start, size in zip((offsets - at).tolist(), piece.sizes.tolist(), strict=True):
            found.append(decode_record(data[start : start + size], "here"))
        at += len(data)
    return found


@settings(deadline=None)
@given(st.lists(messages(), min_size=1, max_size=6), st.booleans(), st.booleans(), st.data())
def test_copy_keeps_everything_except_the_place(
    rows: list[Message], was_crc: bool, with_crc: bool, data: st.DataObject
) -> None:
    rows = [replace(row, topic="waiting", queue_id=3) for row in rows]
    content, physical, sizes = in_a_log(rows, 0, with_crc=was_crc)
    originals = [content[start : start + size] for start, size in zip(physical.tolist(), sizes.tolist(), strict=True)]
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    copies = copies_of(*originals).take(order)
    topics = ["orders", "%RETRY%" + "g" * 140]
    chosen = [data.draw(st.sampled_from(topics)) for _ in rows]
    places = CopyDestinations(texts(chosen), np.arange(len(rows)))
    made = list(copies.records(places, replace(ENCODING, with_crc=with_crc)))
    again = stored(made, list(range(len(rows))))
    assert len(made) == 1
    for row, (copy, was) in enumerate(zip(again, [decode_record(originals[n], "there") for n in order], strict=True)):
        moved = {"topic": chosen[row], "queue_id": row, "queue_offset": row, "store_timestamp": copy.store_timestamp}
        assert copy == was._replace(**moved, physical_offset=copy.physical_offset, msg_id=copy.msg_id)


@settings(deadline=None)
@given(st.lists(messages(), min_size=1, max_size=6))
def test_copies_of_messages_equal_copies_of_records(rows: list[Message]) -> None:
    content, physical, sizes = in_a_log([replace(row, topic="waiting", queue_id=3) for row in rows], 0)
    records = [content[start : start + size] for start, size in zip(physical.tolist(), sizes.tolist(), strict=True)]
    records += [V1_BORN_V6, PROPERTY_CRC]
    read = [decode_record(record, "there") for record in records]
    places, offsets = CopyDestinations("orders", np.zeros(len(records), np.int64)), list(range(len(records)))
    again, expected = (
        stored(list(copies.records(places, ENCODING)), offsets)
        for copies in (RecordCopies.of_messages(read), copies_of(*records))
    )
    assert again == expected


def test_copy_has_the_tags_code_and_keys_of_a_put() -> None:
    row = Message("orders", b"", "paid", ("a", "b"), {"UNIQ_KEY": "U"})
    content, _, _ = in_a_log([replace(row, topic="waiting", queue_id=3)], 0)
    made = next(copies_of(content).records(CopyDestinations("orders", np.array([0])), ENCODING))
    put = encode(row)
    assert made.tags_codes.tolist() == put.tags_codes.tolist()
    assert (made.key_hashes.tolist(), made.key_rows.tolist()) == (put.key_hashes.tolist(), put.key_rows.tolist())


def test_properties_are_changed_added_and_removed() -> None:
    content, _, _ = in_a_log(
        [Message("t", b"1", "A", "k", {"p": "1", "q": "2", "größe": "ß"}, 3), Message("t", b"2")], 0
    )
    first = int.from_bytes(content[:4], "big")
    changes: dict[str, Any] = {"p": texts(["other", "new"]), "q": texts(["", "3"]), "TAGS": texts(["B", ""])}
    fields = {"reconsume_times": np.array([1, 2]), "prepared_transaction_offset": np.array([1 << 40, 0])}
    places = CopyDestinations("t", np.array([0, 1]), changes, fields)
    one, two = stored(list(copies_of(content[:first], content[first:]).records(places, ENCODING)), [0, 1])
    assert one.properties == {"KEYS": "k", "p": "other", "größe": "ß", "TAGS": "B"}
    assert two.properties == {"p": "new", "q": "3"}
    assert [each.reconsume_times for each in (one, two)] == [1, 2]
    assert [each.prepared_transaction_offset for each in (one, two)] == [1 << 40, 0]


def test_records_with_ipv6_hosts_and_checksums_are_copied() -> None:
    copies = copies_of(V1, V1_BORN_V6, PROPERTY_CRC, V1_BORN_V6)
    made = list(copies.records(CopyDestinations("real", np.arange(4)), ENCODING))
    assert [len(piece) for piece in made] == [1, 1, 1, 1]
    again = stored(made, [5, 6, 7, 8])
    for copy, was in zip(again, map(decode_record, (V1, V1_BORN_V6, PROPERTY_CRC, V1_BORN_V6), "...."), strict=True):
        assert (copy.body, copy.properties, copy.flag) == (was.body, was.properties, was.flag)
        assert (copy.born_host, copy.born_timestamp) == (was.born_host, was.born_timestamp)
        assert copy.sys_flag & SYS_BORN_HOST_V6 == was.sys_flag & SYS_BORN_HOST_V6
    assert [copy.queue_offset for copy in again] == [5, 6, 7, 8]


def test_too_large_properties_are_refused() -> None:
    content, _, _ = in_a_log([Message("t", b"1", properties={"p": "x" * 32_000})], 0)
    places = CopyDestinations("t", np.array([0]), {"more": texts(["y" * 1000])})
    with pytest.raises(MessageRefused, match="have 33009 bytes"):
        next(copies_of(content).records(places, ENCODING))


def test_checksum_is_left_out_if_there_is_no_space() -> None:
    content, _, _ = in_a_log([Message("t", b"1", properties={"p": "x" * 32_740})], 0)
    (made,) = copies_of(content).records(CopyDestinations("t", np.array([0])), replace(ENCODING, with_crc=True))
    (copy,) = stored([made], [0])
    assert copy.properties == {"p": "x" * 32_740}


def with_properties(encoded: bytes) -> bytes:
    content, _, _ = in_a_log([Message("t", b"1", properties={"p": "x" * (len(encoded) - 3)})], 0)
    return content[: -len(encoded)] + encoded


@pytest.mark.parametrize("end", [b"\2", b"", b"\0"])
def test_record_that_looks_like_a_lost_sector_gets_a_checksum(end: bytes) -> None:
    """Only such records get one by default, even if a client omitted the last separator."""
    zeros, text = b"p\1" + bytes(SECTOR_BYTES) + end, b"p\1value\2"
    records = [with_properties(each) for each in (text, zeros, zeros, b"p\1v\0\0", text, b"p\1v\0v")]
    copies = copies_of(*records)
    made = list(copies.records(CopyDestinations("here", np.arange(6)), ENCODING))
    assert [(len(piece), piece.with_crc) for piece in made] == [(1, False), (3, True), (2, False)]
    was = [decode_record(record, "t").properties for record in records]
    assert [each.properties for each in stored(made, list(range(6)))] == was
    _, piece, _ = made
    again = copies_of(*(bytes(piece.encoded(n, n + 1)) for n in range(3)))
    assert [value.strip(b"\2") for value in again.properties.to_pylist()] == [
        value.strip(b"\2") for value in copies.properties.to_pylist()[1:4]
    ]


def test_checksum_may_follow_unterminated_properties() -> None:
    copies = copies_of(with_properties(b"p\1value"), with_properties(b"p\1v\2"))
    (made,) = copies.records(CopyDestinations("here", np.arange(2)), replace(ENCODING, with_crc=True))
    assert [each.properties for each in stored([made], [0, 1])] == [{"p": "value"}, {"p": "v"}]


def test_record_that_only_a_broker_accepts_is_copied() -> None:
    """Otherwise a message that a consumer fails to process could never be sent back."""
    was = decode_record(with_properties(b"p\1a\1b\2zeros\1" + bytes(2 * SECTOR_BYTES) + b"\2"), "t")
    (made,) = RecordCopies.of_messages([was]).records(CopyDestinations("here", np.array([0])), ENCODING)
    (copy,) = stored([made], [0])
    assert made.with_crc
    assert copy.properties == was.properties == {"p": "a\1b", "zeros": "\0" * 2 * SECTOR_BYTES}
