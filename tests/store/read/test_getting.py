"""RocketMQ's answers to `getMessage`, one line of its table after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, GetStatus, Message, MessageStore, StoreConfig, TagFilter
from store.format.layout import CQ_ENTRY, segment_name

SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=10 * 20,
    maxTransferCountOnMessageInMemory=8,
    maxTransferBytesOnMessageInMemory=1000,
    maxFilterMessageSize=6 * 20,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """25 messages in queue 0; every fifth, from 4 on, has tag B, the others A."""
    with MessageStore.open(tmp_path, config=SMALL) as it:
        it.create_topic("t", 2)
        it.put_many([Message("t", f"{n}".encode(), queue_id=0, tags="AAAAB"[n % 5]) for n in range(25)])
        yield it


@pytest.mark.parametrize(
    ("queue", "offset", "status", "next_begin"),
    [
        (1, 0, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (1, 7, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (7, 0, GetStatus.NO_MESSAGE_IN_QUEUE, 0),  # an unknown queue
        (0, -1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, 25, GetStatus.OFFSET_OVERFLOW_ONE, 25),
        (0, 26, GetStatus.OFFSET_OVERFLOW_BADLY, 25),
        (0, 24, GetStatus.FOUND, 25),
    ],
)
def test_statuses(store: MessageStore, queue: int, offset: int, status: GetStatus, next_begin: int) -> None:
    result = store.get_message("g", "t", queue, offset)
    assert (result.status, result.next_begin_offset) == (status, next_begin)
    assert (result.min_offset, result.max_offset) == ((0, 25) if queue == 0 else (0, 0))
    assert bool(result.messages) == (status is GetStatus.FOUND)


@pytest.mark.parametrize(
    ("offset", "max_messages", "count"),
    [(0, 1, 1), (0, 3, 3), (0, 32, 8), (7, 32, 3), (9, 32, 1), (10, 5, 5), (20, 32, 5)],
)
def test_one_call_stays_in_one_queue_file_and_below_the_limits(
    store: MessageStore, offset: int, max_messages: int, count: int
) -> None:
    result = store.get_message("g", "t", 0, offset, max_messages)
    assert [message.queue_offset for message in result.messages] == list(range(offset, offset + count))
    assert result.next_begin_offset == offset + count


def test_at_most_so_many_bytes_but_one_message(store: MessageStore) -> None:
    store.put_many([Message("t", bytes(500), queue_id=1) for _ in range(3)] + [Message("t", bytes(3000), queue_id=1)])
    assert [store.get_message("g", "t", 1, offset).next_begin_offset for offset in range(4)] == [1, 2, 3, 4]


def test_a_filter_ends_where_it_has_looked_enough(store: MessageStore) -> None:
    only_b = TagFilter.parse("B")
    first = store.get_message("g", "t", 0, 0, 2, only_b)
    assert [message.body for message in first.messages] == [b"4"]
    assert first.next_begin_offset == 6, "maxFilterMessageSize / 20 entries"
    none = store.get_message("g", "t", 0, 5, 2, TagFilter.parse("C"))
    assert (none.status, none.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)
    collected, offset = [], 0
    while (result := store.get_message("g", "t", 0, offset, 2, only_b)).status is not GetStatus.OFFSET_OVERFLOW_ONE:
        collected += [message.body for message in result.messages]
        offset = result.next_begin_offset
    assert collected == [b"4", b"9", b"14", b"19", b"24"]


def test_messages_that_are_being_removed(store: MessageStore) -> None:
    """They are passed over; only when there is nothing else does the status tell."""
    store.put_many([Message("t", bytes(800), queue_id=1) for _ in range(9)])
    (store.path / "commitlog" / segment_name(4096)).unlink()
    with MessageStore.open(store.path, read_only=True) as reader:
        found = [reader.get_message("g", "t", 1, offset, 1).messages[0].queue_offset for offset in range(9)]
        assert found == [0, 5, 5, 5, 5, 5, 6, 7, 8]
    (store.path / "commitlog" / segment_name(8192)).unlink()
    with MessageStore.open(store.path, read_only=True) as reader:
        result = reader.get_message("g", "t", 1, 1)
        assert (result.status, result.next_begin_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 9)


def change_entry(store: MessageStore, index: int, field: str, value: int) -> None:
    file = store.path / "consumequeue/t/0" / segment_name(0)
    entries = np.frombuffer(bytearray(file.read_bytes()), CQ_ENTRY)
    entries[field][index] = value
    file.write_bytes(entries.tobytes())


@pytest.mark.parametrize("other", [0, 2])
def test_an_entry_that_points_at_another_message(store: MessageStore, other: int) -> None:
    entries = np.frombuffer((store.path / "consumequeue/t/0" / segment_name(0)).read_bytes(), CQ_ENTRY)
    change_entry(store, 1, "physical_offset", int(entries["physical_offset"][other]))
    message = r"topic t, queue 0, offset 1 \(commit log offset \d+\): the log holds another message there"
    with pytest.raises(CorruptRecord, match=message):
        store.get_message("g", "t", 0, 1)
    with pytest.raises(CorruptRecord, match=message):
        list(store.scan("t", 0, 1, 2))
    with pytest.raises(CorruptRecord, match="t, queue 0"):
        list(store.scan("t", 0, 0, 3))


@pytest.mark.parametrize("size", [1, 50, 90, 101, 4096])
def test_an_entry_with_a_wrong_size(store: MessageStore, size: int) -> None:
    change_entry(store, 1, "size", size)
    with pytest.raises(CorruptRecord, match="t, queue 0, offset"):
        store.get_message("g", "t", 0, 1)
    with pytest.raises(CorruptRecord, match="t, queue 0, offset"):
        list(store.scan("t", 0, 1, 2))


def test_a_body_that_changed(store: MessageStore) -> None:
    file = store.path / "commitlog" / segment_name(0)
    entry = np.frombuffer((store.path / "consumequeue/t/0" / segment_name(0)).read_bytes(), CQ_ENTRY)[5]
    content = bytearray(file.read_bytes())
    content[entry["physical_offset"] + 88] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptRecord, match=r"topic t, queue 0, offset 5 .*: body CRC 0x"):
        store.get_message("g", "t", 0, 5)
    with pytest.raises(CorruptRecord, match=r"topic t, queue 0, offset 5 .*: its body does not match its CRC; restore"):
        list(store.scan("t", 0, 0, 10))
    assert sum(batch.num_rows for batch in store.scan("t", 0, 0, 10, check_crc=False)) == 10
