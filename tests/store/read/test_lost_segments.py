"""A segment lost from the middle is not retention: readers raise and skip no message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store import CorruptSegment, GetStatus, Message, MessageStore, OffsetLost, StoreConfig
from store.api.message_finder import MessageFinder
from store.format.layout import CQ_ENTRY, segment_name
from tests.store.disk.damages import ENTRIES

SIZE = 4096
CONFIG = StoreConfig(mappedFileSizeCommitLog=SIZE, mappedFileSizeConsumeQueue=200, deleteFileBatchMax=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Eight segments of six messages. Retention deleted the first two."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(500), "tag", keys="k") for _ in range(48)])
        store.clean(forced=True)
        assert store.min_offset("t", 0) == 12
    return path


def by_get(store: MessageFinder) -> list[int]:
    found, offset = [], 12
    while (result := store.get_message("g", "t", 0, offset, 5)).status is not GetStatus.OFFSET_OVERFLOW_ONE:
        found += [message.queue_offset for message in result.messages]
        offset = result.next_begin_offset
    return found


def by_many(store: MessageFinder) -> list[int]:
    return [message.queue_offset for message in store.get_message("g", "t", 0, 22, 4000).messages]


def as_records(store: MessageFinder) -> list[int]:
    return [len(record) for record in store.get_message("g", "t", 0, 22, as_records=True).records]


def by_key(store: MessageFinder) -> list[int]:
    return [message.queue_offset for message in store.query("t", "k")]


def by_scan(store: MessageFinder) -> list[int]:
    return [row for batch in store.scan("t", 0, 12, 48, ("queueOffset",)) for row in batch["queueOffset"].to_pylist()]


READS: list[Callable[[MessageFinder], list[int]]] = [by_get, by_many, as_records, by_key, by_scan]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("is_open", [False, True])
def test_lost_segment_is_an_error(path: Path, read: Callable[[MessageFinder], list[int]], is_open: bool) -> None:
    reader = MessageStore.open(path, read_only=True)
    if is_open:
        assert read(reader)
        reader._log.segments.forget()
    (path / "commitlog" / segment_name(4 * SIZE)).unlink()
    with reader, pytest.raises(OffsetLost, match=f"{segment_name(4 * SIZE)}: this segment is missing"):
        read(reader)


@pytest.mark.parametrize("read", [by_get, by_many, as_records, by_scan])
def test_queue_file_lost_during_a_read_is_an_error(path: Path, read: Callable[[MessageFinder], list[int]]) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 0) == (12, 48)
        (path / "consumequeue/t/0" / segment_name(2 * ENTRIES * CQ_ENTRY.itemsize)).unlink()
        reader._queues._files.forget_all()
        with pytest.raises((OffsetLost, CorruptSegment)):
            read(reader)


@pytest.mark.parametrize("read", [by_get, by_many, as_records, by_scan])
def test_entry_before_the_log_is_an_error(path: Path, read: Callable[[MessageFinder], list[int]]) -> None:
    with (path / "consumequeue/t/0" / segment_name(400)).open("r+b") as file:
        file.seek(5 * CQ_ENTRY.itemsize)
        file.write((100).to_bytes(8, "big"))
    with MessageStore.open(path, read_only=True) as reader, pytest.raises((OffsetLost, CorruptSegment)):
        read(reader)


def test_messages_deleted_by_retention_are_skipped(path: Path) -> None:
    with MessageStore.open(path) as store, MessageStore.open(path, read_only=True) as reader:
        minimum = reader.min_offset("t", 0)
        store.clean(forced=True)
        reader._log.segments.forget()
        assert store.min_offset("t", 0) > minimum
        assert by_key(reader) == list(range(24, 48))
        assert reader.get_message("g", "t", 0, minimum).status is GetStatus.OFFSET_TOO_SMALL
