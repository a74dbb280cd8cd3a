"""A reader detects lost queue files and never takes such a queue for a shorter one."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from store import CorruptRecord, CorruptSegment, Message, MessageStore, UnknownTopic
from store.append.published_end import PublishedEnd
from store.format.layout import CQ_ENTRY, segment_name
from store.model.log_protocol import Bounds, Queue
from store.upkeep.verify import verify
from tests.store.disk.damages import (
    DAMAGES,
    SMALL,
    Damage,
    damage_entry,
    first_file,
    folder,
    last_file,
    moved_folder,
    note_ends,
    recorded_ends,
    zeroed,
)

LOST = [damage for damage in DAMAGES if "index" not in damage.__name__ and "ends" not in damage.__name__]


@pytest.mark.parametrize("damage", LOST)
def test_queue_without_files_or_last_entries_is_an_error(path: Path, damage: Damage) -> None:
    damage(path)
    with MessageStore.open(path, read_only=True) as reader:
        for _ in range(2):
            with pytest.raises(CorruptSegment, match="consumequeue"):
                reader.offsets("t", 1)
            with pytest.raises(CorruptSegment, match="consumequeue"):
                reader.bounds([Queue("t", 1)])
            if damage is not first_file:
                with pytest.raises(CorruptSegment, match="consumequeue"):
                    reader.max_offset("t", 1)
        with suppress(CorruptSegment):
            assert reader.offsets("t", 2) == (0, 25)
    MessageStore.open(path).close()
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 1) == (0, 25)


@pytest.mark.parametrize("first", range(0, 25, 4))
@pytest.mark.parametrize("count", [4, 7, 10])
def test_zeroed_entries_do_not_end_the_queue(path: Path, first: int, count: int) -> None:
    (path / "queueends").unlink()
    for offset in range(first, min(first + count, 24)):
        damage_entry(path, offset, bytes(CQ_ENTRY.itemsize))
    with MessageStore.open(path, read_only=True) as reader:
        found = []
        try:
            found.append(reader.max_offset("t", 1))
        except CorruptSegment as error:
            found.append(str(error))
    assert found == [25] or "is damaged, but entries follow it" in str(found)


@pytest.mark.parametrize(("batch", "removed"), [(2, 1), (2, 2), (3, 1)])
def test_first_file_lost_after_retention_is_an_error(path: Path, batch: int, removed: int) -> None:
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(200), queue_id=n % 3) for n in range(75)])
        store.clean(forced=True, config=replace(SMALL, deleteFileBatchMax=batch))
        first = store.min_offset("t", 1)
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 1) == (first, 50)
    for taken in sorted((path / "consumequeue/t/1").iterdir())[:removed]:
        taken.unlink()
    for file in ("queueends", "watermark"):
        with (
            MessageStore.open(path, read_only=True) as reader,
            pytest.raises(CorruptSegment, match=f"has the message of offset {first}.|existed before and is missing."),
        ):
            reader.offsets("t", 1)
        (path / file).unlink()


def test_begin_at_the_start_of_a_file_is_searched_once(path: Path) -> None:
    """At the queue's begin the log has earlier records of other queues only."""
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(200), queue_id=0) for _ in range(60)])
        end = store.put(Message("t", b"next", queue_id=1)).physical_offset
    for file in sorted((path / "commitlog").iterdir()):
        if int(file.name) + 2 * SMALL.mappedFileSizeCommitLog < end:
            file.unlink()
    for file in sorted((path / "consumequeue/t/1").iterdir())[:-1]:
        file.unlink()
    damage_entry(path, 20, (path / "consumequeue/t/1" / segment_name(400)).read_bytes()[100:120])
    for offset in range(21, 26):
        damage_entry(path, offset, bytes(CQ_ENTRY.itemsize))
    (path / "queueends").unlink()
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.bounds([Queue("t", 1)]) == {Queue("t", 1): Bounds(20, 21)}


def test_entries_of_a_dead_append_are_no_damage(path: Path) -> None:
    """They stay until the next append undoes them, even in files of their own."""
    with MessageStore.open(path) as store:
        end = store.confirm_offset
        store.put_many([Message("t", b"dead", queue_id=1) for _ in range(40)])
        announced = store.confirm_offset
    published = PublishedEnd(path, writable=True)
    published.announce(announced, published.store_timestamp)
    published.publish(end)
    published.close()
    (path / "abort").touch()
    note_ends(path, {**recorded_ends(path), "logOffset": end, "queues": [["t", queue, 25] for queue in range(3)]})
    with MessageStore.open(path, read_only=True) as reader:
        assert [reader.offsets("t", queue) for queue in range(3)] == [(0, 25)] * 3


@pytest.mark.parametrize("damage", [folder, last_file, zeroed])
def test_saved_ends_beyond_the_published_end_are_ignored(path: Path, damage: Damage) -> None:
    """Or a broker used the directory and no published end exists."""
    damage(path)
    noted = recorded_ends(path)
    note_ends(path, {**noted, "logOffset": noted["logOffset"] + 1})
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.max_offset("t", 1) < 25
    note_ends(path, noted)
    (path / "watermark").unlink()
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.max_offset("t", 1) < 25


def test_reader_that_saw_the_deleted_topic_reads_the_new_one(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader, MessageStore.open(path) as store:
        assert reader.offsets("t", 1) == (0, 25)
        store.delete_topic("t")
        with pytest.raises(UnknownTopic):
            reader.offsets("t", 1)
        store.create_topic("t", 3)
        assert reader.offsets("t", 1) == (25, 25)
        store.put(Message("t", b"new", queue_id=1))
        assert reader.offsets("t", 1) == (25, 26)
        with MessageStore.open(path, read_only=True) as second:
            assert second.bounds([Queue("t", queue) for queue in range(3)]) == {
                Queue("t", queue): Bounds(25, 25 + int(queue == 1)) for queue in range(3)
            }


def test_garbage_is_not_mistaken_for_retention(path: Path) -> None:
    """The garbage gives a negative log offset, which retention cannot leave."""
    for offset in range(4):
        damage_entry(path, offset, b"\xff" * CQ_ENTRY.itemsize)
    for read_only in (True, False):
        with MessageStore.open(path, read_only=read_only) as store:
            assert store.offsets("t", 1) == (0, 25)
            with pytest.raises(CorruptRecord):
                list(store.scan("t", 1, 0, 25))


@pytest.mark.parametrize("count", [1, 2])
def test_entry_that_points_back_is_not_mistaken_for_retention(path: Path, count: int) -> None:
    """Otherwise the reader would skip the first remaining messages."""
    with MessageStore.open(path) as store:
        store.clean(forced=True)
        first = store.min_offset("t", 1)
    assert first % 10
    older = (path / "consumequeue/t/1" / segment_name(first // 10 * 200)).read_bytes()[: CQ_ENTRY.itemsize]
    for offset in range(first, first + count):
        damage_entry(path, offset, older)
    with (
        MessageStore.open(path, read_only=True) as reader,
        pytest.raises(CorruptSegment, match=f"entry {first + count - 1} is damaged"),
    ):
        reader.min_offset("t", 1)


@pytest.mark.parametrize("read_only", [True, False])
def test_first_entry_that_points_back_is_no_retention(path: Path, read_only: bool) -> None:
    """One flipped bit is enough, and no earlier entry reveals it."""
    with MessageStore.open(path) as store:
        store.create_topic("u", 1)
        at = store.put_many([Message("u", b"%d" % n) for n in range(3)])[0].physical_offset
        first = store.clean(forced=True).min_offset
    file = path / "consumequeue/u/0" / segment_name(0)
    content = bytearray(file.read_bytes())
    content[6] &= 0x0F
    file.write_bytes(content)
    assert int.from_bytes(content[:8], "big") < first < at
    with MessageStore.open(path, read_only=read_only) as store:
        with pytest.raises(
            CorruptSegment, match=r"entries before 1 are lost or damaged, because the log has the message of offset 0\."
        ):
            store.offsets("u", 0)
        with pytest.raises(CorruptSegment):
            store.bounds([Queue("u", 0)])
    moved_folder(path, "u/0")
    with MessageStore.open(path) as store:
        assert store.offsets("u", 0) == (0, 3)


def test_zeros_are_not_mistaken_for_retention(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.clean(forced=True)
        first = store.min_offset("t", 1)
        assert 10 < first < 20
    told = set()
    for lost in range(10, 24):
        file = path / "consumequeue/t/1" / segment_name(lost // 10 * 200)
        before = file.read_bytes()
        damage_entry(path, lost, bytes(CQ_ENTRY.itemsize))
        with MessageStore.open(path, read_only=True) as reader:
            try:
                assert reader.min_offset("t", 1) == first
            except CorruptSegment as error:
                assert f"entry {lost} is damaged" in str(error)  # noqa: PT017
                told.add(lost)
        assert lost < first or verify(path).findings
        file.write_bytes(before)
    assert told, "a search reads some of them"
    assert min(told) >= first - 1


@pytest.mark.parametrize("killed", [False, True])
def test_damaged_end_of_a_brokers_log_is_a_warning(path: Path, killed: bool) -> None:
    """Without a published end, the reader warns of bytes after the last sound record."""
    with MessageStore.open(path, read_only=True) as reader:
        at = reader.get_message("g", "t", 0, 23).messages[0].physical_offset
    (path / "watermark").unlink()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with MessageStore.open(path, read_only=True) as reader:
            assert reader.max_offset("t", 0) == 25
    assert not told
    with (path / "commitlog" / segment_name(at // 4096 * 4096)).open("r+b") as file:
        file.seek(at % 4096 + 4)
        file.write(b"?")
    if killed:
        (path / "abort").touch()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with MessageStore.open(path, read_only=True) as reader:
            assert reader.max_offset("t", 0) == 23
    assert [f"the readable log ends at log offset {at}, but damaged" in str(warning.message) for warning in told] == [
        True
    ] * (not killed)


def test_damage_before_the_last_segment_of_a_broker_is_an_error(path: Path) -> None:
    """A run of damaged entries does not end a queue that has a sound entry after it."""
    (path / "watermark").unlink()
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.max_offset("t", 0) == 25
    first = path / "commitlog" / segment_name(0)
    first.write_bytes(bytes(first.stat().st_size))
    with (
        MessageStore.open(path, read_only=True) as reader,
        pytest.raises(CorruptSegment, match="entry 0 is damaged, but entries follow it"),
    ):
        reader.max_offset("t", 0)
    assert verify(path).findings


@pytest.mark.parametrize("name", [None, segment_name(0)])
def test_queue_of_a_broker_may_have_no_file_yet(path: Path, name: str | None) -> None:
    """A broker creates a queue's folder first, then an empty file. Nothing gives the file's final length yet."""
    (path / "watermark").unlink()
    (path / "config" / "store.conf").unlink()
    queue = path / "consumequeue/t/1"
    for file in queue.iterdir():
        file.unlink()
    if name is not None:
        (queue / name).touch()
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 1) == (0, 0)
        assert reader.get_message("g", "t", 1, 0).messages == []
