"""`get_message` with as_records=True returns the raw records of the same messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import CorruptRecord, Message, MessageStore, StoreConfig, TagFilter, message_filter
from store.format.layout import RECORD_HEADER
from store.format.stored_message import decode_record
from store.model.log_protocol import MessageFilter
from tests.store.read.test_getting import change_entry

SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=10 * 20,
    maxTransferBytesOnMessageInMemory=1000,
    maxFilterMessageSize=6 * 20,
)
WIDTH = RECORD_HEADER["total_size"].itemsize


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A store with 100 messages of topic t, tags A to E in turn, in runs between messages of another topic."""
    with MessageStore.open(tmp_path, config=SMALL) as it:
        it.create_topic("t", 1)
        it.create_topic("other", 1)
        for n in range(100):
            it.put(Message("t", f"{n}".encode() * (n % 7), tags="ABCDE"[n % 5]))
            if n % 4 == 0:
                it.put(Message("other", b"between"))
        yield it


def split(pieces: list[memoryview]) -> Iterator[bytes]:
    for piece in pieces:
        at = 0
        while at < len(piece):
            size = int.from_bytes(piece[at : at + WIDTH], "big")
            yield bytes(piece[at : at + size])
            at += size


@pytest.mark.parametrize("max_messages", [0, 1, 5, 32])
@pytest.mark.parametrize("accept", [None, TagFilter.parse("A || C"), message_filter("TAGS = 'B'", "SQL92")])
def test_raw_records_are_of_the_same_messages(
    store: MessageStore, accept: MessageFilter | None, max_messages: int
) -> None:
    for offset in range(-1, 102):
        plain = store.get_message("g", "t", 0, offset, max_messages, accept)
        raw = store.get_message("g", "t", 0, offset, max_messages, accept, as_records=True)
        assert [decode_record(record, offset) for record in split(raw.records)] == plain.messages
        assert (raw.status, raw.next_begin_offset) == (plain.status, plain.next_begin_offset)
        assert (raw.min_offset, raw.max_offset, raw.messages) == (plain.min_offset, plain.max_offset, [])


def test_adjacent_records_are_one_piece(store: MessageStore) -> None:
    assert len(store.get_message("g", "t", 0, 1, 4, as_records=True).records) == 1


@pytest.mark.parametrize(("body", "pieces"), [(b"short", 1), (bytes(2000), 3)])
def test_only_short_scattered_records_are_copied(tmp_path: Path, body: bytes, pieces: int) -> None:
    with MessageStore.open(tmp_path) as store:
        for topic in ("t", "other"):
            store.create_topic(topic, 1)
        store.put_many([Message(topic, body) for _ in range(3) for topic in ("t", "other")])
        records = store.get_message("g", "t", 0, 0, as_records=True).records
        assert (len(records), len(list(split(records)))) == (pieces, 3)


def test_filter_selects_raw_records_by_hash(store: MessageStore) -> None:
    store.create_topic("alike", 1)
    store.put_many([Message("alike", b"", tags=tag) for tag in ("Aa", "BB", "C")])
    raw = store.get_message("g", "alike", 0, 0, 32, TagFilter.parse("Aa"), as_records=True)
    assert [decode_record(record, 0).tags for record in split(raw.records)] == ["Aa", "BB"]


def test_wrong_entry_is_an_error(store: MessageStore) -> None:
    for field, value in (("size", 5), ("size", 1 << 20), ("physical_offset", -1)):
        change_entry(store, 3, field, value)
        with pytest.raises(CorruptRecord, match="queue 0, offset 3"):
            store.get_message("g", "t", 0, 3, 1, as_records=True)
        change_entry(store, 3, field, 1)
