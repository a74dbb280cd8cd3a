from __future__ import annotations

import multiprocessing
import os
import sys
import time
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import CorruptSegment, OffsetLost
from store.disk.consume_queue import ConsumeQueue
from store.disk.queue_files import Entries, queue_segments
from store.disk.segments import Segments
from store.format.layout import CQ_ENTRY, CQ_PRE_BLANK_SIZE, segment_name

PER_FILE = 10


def queue(root: Path, per_file: int = PER_FILE) -> ConsumeQueue:
    return ConsumeQueue.at(root, "t", 0, per_file * CQ_ENTRY.itemsize, writable=True)


def entries(first: int, last: int, size: int = 100) -> Entries:
    """Entries [first, last) of a queue whose records of `size` bytes fill a log without gaps."""
    made = np.zeros(last - first, CQ_ENTRY)
    made["physical_offset"] = np.arange(first, last) * size
    made["size"] = size
    made["tags_code"] = np.arange(first, last)
    return made


@given(written=st.integers(0, 45), published=st.integers(0, 45), known=st.integers(0, 45))
def test_queue_ends_at_the_end_of_the_log(
    written: int, published: int, known: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    it = queue(tmp_path_factory.mktemp("queue"))
    it.write(0, entries(0, written))
    assert it.max_offset(known * 100) == min(written, known)
    tail = min(written, published)
    assert it.max_offset(published * 100) == tail
    assert it.max_offset(published * 100 + 99) == tail


@given(start=st.integers(0, 3 * PER_FILE), count=st.integers(1, 2 * PER_FILE))
def test_queue_with_a_cut_head_keeps_its_offsets(
    start: int, count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A first file that starts before the first entry is padded with blank entries, as in RocketMQ."""
    it = queue(tmp_path_factory.mktemp("queue"))
    it.begin_at(start, 1)
    it.write(start, entries(start, start + count))
    confirm = (start + count) * 100
    assert it.first() == start - start % PER_FILE
    assert it.max_offset(confirm) == start + count
    assert it.min_offset(0, start + count) == start
    assert it.min_offset((start + 1) * 100, start + count) == start + 1
    assert it.min_offset(confirm, start + count) == start + count
    blanks = it.entries(it.first(), start)
    assert (blanks["size"] == CQ_PRE_BLANK_SIZE).all()
    assert it.entries(start, start + count).tobytes() == entries(start, start + count).tobytes()


def test_queue_without_files_is_empty(tmp_path: Path) -> None:
    it = queue(tmp_path)
    assert (it.first(), it.max_offset(1000), it.min_offset(0, 0)) == (0, 0, 0)
    assert len(it.entries(3, 3)) == 0
    it.truncate(0)
    with pytest.raises(OffsetLost):
        it.entries(0, 1)


def files(root: Path) -> list[int]:
    return sorted(int(file.name) // CQ_ENTRY.itemsize for file in (root / "consumequeue/t/0").iterdir())


def test_truncate_drops_later_entries(tmp_path: Path) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, 35))
    it.truncate(12)
    assert it.max_offset(1 << 40) == 12
    assert it.entries(0, 12).tobytes() == entries(0, 12).tobytes()
    assert it.entries(12, 20).tobytes() == bytes(8 * CQ_ENTRY.itemsize)
    assert files(tmp_path) == [0, 10], "RocketMQ counts the first entry of a last file that is empty"


@pytest.mark.parametrize("tail", [0, 10, 20, 30])
def test_truncate_deletes_files_without_entries(tmp_path: Path, tail: int) -> None:
    it, other, writer = queue(tmp_path), queue(tmp_path), queue(tmp_path)
    it.write(0, entries(0, 35))
    for each in (other, writer):
        assert each.max_offset(3500) == 35
        assert len(each.entries(0, 35)) == 35
    it.truncate(tail)
    assert files(tmp_path) == list(range(0, tail, 10))
    assert other.max_offset(3500) == tail
    writer.write(tail, entries(tail, 38))
    for each in (it, other, writer):
        assert each.entries(0, 38).tobytes() == entries(0, 38).tobytes()
        assert each.max_offset(3800) == 38


def test_queue_keeps_its_offsets_after_retention(tmp_path: Path) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, 25))
    it.expire(2000)
    it.truncate(20)
    for each in (it, queue(tmp_path)):
        assert each.max_offset(1 << 40) == 20
        assert each.min_offset(2000, 20) == 20
    it.write(20, entries(20, 22))
    assert (it.min_offset(2000, 22), it.max_offset(2200)) == (20, 22)


@pytest.mark.parametrize("cut", range(CQ_ENTRY.itemsize))
def test_torn_entry_does_not_count(tmp_path: Path, cut: int) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, 7))
    torn = bytearray(entries(7, 8, size=1 << 20).tobytes())  # so that every byte of its size is significant
    torn[cut:] = bytes(len(torn) - cut)
    with (tmp_path / "consumequeue/t/0" / segment_name(0)).open("r+b") as file:
        file.seek(7 * CQ_ENTRY.itemsize)
        file.write(torn)
    assert it.max_offset(700) == 7


def test_file_missing_in_the_middle_is_an_error(tmp_path: Path) -> None:
    queue(tmp_path).write(0, entries(0, 45))
    (tmp_path / "consumequeue/t/0" / segment_name(2 * PER_FILE * CQ_ENTRY.itemsize)).unlink()
    with pytest.raises(
        CorruptSegment, match=r"t/0: the file of bytes 400 to 600 is missing. Close the store in all processes, move"
    ):
        queue(tmp_path).max_offset(4500)


def test_file_that_shrinks_during_a_read_is_an_error(tmp_path: Path) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, 10))
    os.truncate(tmp_path / "consumequeue/t/0" / segment_name(0), 50)
    with pytest.raises(CorruptSegment, match=r"t/0/0+: 50 bytes, but segments of this store have 200\. Restore"):
        it.entries(0, 10)


def test_retention_runs_during_a_search_for_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it, other, is_behind = queue(tmp_path), queue(tmp_path), ConsumeQueue._is_behind
    it.write(0, entries(0, 35))

    def look(seen: ConsumeQueue, index: int, min_physical_offset: int) -> bool:
        it.expire(2000)  # all entries before 20, in files that `seen` knows but has not opened
        return is_behind(seen, index, min_physical_offset)

    monkeypatch.setattr(ConsumeQueue, "_is_behind", look)
    assert [other.min_offset(2000, 35) for _ in range(3)] == [20] * 3
    assert other.first() == 20


@pytest.mark.parametrize("known", [0, 3, 20, 27, 35])
def test_known_end_survives_retention_of_its_file(tmp_path: Path, known: int) -> None:
    it, other = queue(tmp_path), queue(tmp_path)
    it.write(0, entries(0, 35))
    assert other.max_offset(known * 100) == known
    gone = it.expire(2200)
    assert [Path(path).name for path, _ in gone] == [segment_name(0), segment_name(PER_FILE * CQ_ENTRY.itemsize)]
    for each in (it, other, queue(tmp_path)):
        assert each.max_offset(3500) == 35
        assert each.min_offset(2200, 35) == 22
        assert each.first() == 20
        with pytest.raises(OffsetLost):
            each.entries(19, 25)


@pytest.mark.parametrize(
    ("written", "min_offset", "first"),
    [(30, 3000, 20), (31, 3100, 30), (35, 900, 0), (35, 901, 10), (35, 1900, 10), (35, 1901, 20), (5, 500, 0)],
)
def test_files_except_the_last_expire_with_their_last_record(
    tmp_path: Path, written: int, min_offset: int, first: int
) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, written))
    it.expire(min_offset)
    assert it.first() == first
    assert it.max_offset(written * 100) == written


def test_partly_written_file_does_not_expire(tmp_path: Path) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, 5))
    it.write(10, entries(10, 11))
    assert it.expire(1 << 40) == []
    assert it.max_offset(500) == 5


def test_head_is_found_from_any_earlier_position(tmp_path: Path) -> None:
    it = queue(tmp_path, 4)
    it.write(0, entries(0, 9))
    it.expire(400)
    for known in range(10):
        for head in range(10):
            assert it.min_offset(known * 100, 9) == max(known, 4)
            assert it.min_offset(head * 100, 9) == max(head, 4)


def test_log_offset_after_the_last_entry(tmp_path: Path) -> None:
    it = queue(tmp_path)
    assert it.dispatched(700) == 0
    it.begin_at(12, 1)
    assert it.dispatched(1 << 40) == 0, "pre-blank entries have no record"
    it.write(12, entries(12, 15))
    assert [it.dispatched(confirm_offset) for confirm_offset in (1499, 1500, 1 << 40)] == [1400, 1500, 1500]
    it.write(15, entries(15, 21))
    it.expire(2000)
    assert it.dispatched(2100) == 2100, "the remaining entry is the only one of its file"


def test_entries_of_a_deleted_file_are_left_out(tmp_path: Path) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, 35))
    it.expire(2200)
    left = queue(tmp_path).entries_or_zeros(5, 33)
    assert left[:15].tobytes() == bytes(15 * CQ_ENTRY.itemsize)
    assert left[15:].tobytes() == entries(20, 33).tobytes()


@pytest.mark.parametrize(("start", "first"), [(25, 20), (30, 20), (31, 30)])
def test_empty_queue_keeps_its_next_offset(tmp_path: Path, start: int, first: int) -> None:
    it = queue(tmp_path)
    it.write(0, entries(0, 35))
    it.begin_empty(start)
    assert files(tmp_path) == [first]
    assert (it.max_offset(1 << 40), it.min_offset(0, start)) == (start, start)
    assert (it.entries(first, start)["size"] == CQ_PRE_BLANK_SIZE).all()
    it.write(start, entries(start, 40))
    assert it.max_offset(4000) == 40


def known(root: Path, least_end: int) -> ConsumeQueue:
    return ConsumeQueue(
        "t", 0, queue_segments(root, "t", 0, PER_FILE * CQ_ENTRY.itemsize, writable=True), least_end=least_end
    )


def test_queue_shorter_than_its_known_end_is_an_error(tmp_path: Path) -> None:
    queue(tmp_path).write(0, entries(0, 35))
    queue(tmp_path).write(5, np.zeros(10, CQ_ENTRY))
    assert known(tmp_path, 20).max_offset(3500) == 35
    queue(tmp_path).write(19, np.zeros(1, CQ_ENTRY))
    with pytest.raises(
        CorruptSegment, match=r"t/0: entry 19 existed before and is missing\. Close the store in all processes"
    ):
        known(tmp_path, 20).max_offset(3500)


def test_entries_without_their_record_do_not_count(tmp_path: Path) -> None:
    queue(tmp_path).write(0, entries(0, 35))
    asked: list[tuple[object, ...]] = []

    def is_message(*entry: object) -> bool:
        asked.append(entry)
        return entry[2] in range(20)

    it = ConsumeQueue("t", 0, queue_segments(tmp_path, "t", 0, None, writable=False), is_message=is_message)
    assert it.max_offset(3500) == 20
    assert {(topic, queue_id, size) for topic, queue_id, _, _, size in asked} == {("t", 0, 100)}
    assert all(offset == 100 * index for _, _, index, offset, _ in asked)


@pytest.mark.parametrize("tail", [0, 7, 20, 34])
def test_entries_after_the_end_are_stale(tmp_path: Path, tail: int) -> None:
    it = queue(tmp_path)
    assert it.stale(0) is None
    it.write(0, entries(0, 35))
    assert (it.stale(tail), it.stale(35)) == (tail, None)
    it.truncate(tail)
    assert it.stale(tail) is None


def test_replaced_file_is_read_again_if_current_is_required(tmp_path: Path) -> None:
    it, other = queue(tmp_path), queue(tmp_path)
    it.write(0, entries(0, 12))
    assert other.max_offset(1200) == 12
    (tmp_path / "consumequeue/t/0" / segment_name(PER_FILE * CQ_ENTRY.itemsize)).unlink()
    it.write(10, entries(30, 32))
    assert other.entries(10, 12).tobytes() == entries(10, 12).tobytes()
    assert other.entries(10, 12, current=True).tobytes() == entries(30, 32).tobytes()
    it.truncate(10)
    it.write(10, entries(10, 15))
    assert other.entries(12, 15).tobytes() == entries(12, 15).tobytes(), "a deleted file is looked up again"


_PATIENCE = 60.0
_STRADDLING = [index for index in range(300_000) if index * CQ_ENTRY.itemsize % 4096 == 4096 - 8]
"""Indices of entries whose physical offset is on one page and whose size on the next."""


def _write_straddling(root: Path, turn: Synchronized[int]) -> None:
    it = queue(root, _STRADDLING[-1] + 1)
    deadline = time.monotonic() + _PATIENCE
    for number, index in enumerate(_STRADDLING):
        while turn.value < number:
            assert time.monotonic() < deadline, "the reading process has ended"
        it.write(index, entries(index, index + 1))


def test_partly_visible_entry_does_not_count(tmp_path: Path) -> None:
    """A read is not atomic against a write across two pages: it may see the size without the offset. This happens most
    often on tmpfs, which holds the tests' directories."""
    it = queue(tmp_path, _STRADDLING[-1] + 1)
    fork = multiprocessing.get_context("fork")
    turn = fork.Value("l", -1, lock=False)
    writer = fork.Process(target=_write_straddling, args=(tmp_path, turn))
    writer.start()
    deadline = time.monotonic() + _PATIENCE
    try:
        first = 0
        for number, index in enumerate(_STRADDLING):
            it.write(first, entries(first, index))
            confirm_offset, first = index * 100, index + 1
            turn.value = number
            tails = {it.max_offset(confirm_offset) for _ in range(10)}
            while it.entries(index, first)["physical_offset"][0] == 0:
                assert time.monotonic() < deadline, "the writing process does not write"
                tails.add(it.max_offset(confirm_offset))
            assert tails == {index}
    finally:
        writer.terminate()
        writer.join()


def test_entry_without_its_offset_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it, read, seen = queue(tmp_path), Segments.read, list[int]()
    it.write(0, entries(0, 6))
    entry, offset_size = 5 * CQ_ENTRY.itemsize, CQ_ENTRY["physical_offset"].itemsize

    def read_amid_the_write(segments: Segments, position: int, size: int, **how: bool) -> bytes:
        data, at = bytearray(read(segments, position, size, **how)), entry - position
        if 0 <= at < size and not seen:
            seen.append(position)
            data[at : at + offset_size] = bytes(offset_size)
        return bytes(data)

    monkeypatch.setattr(Segments, "read", read_amid_the_write)
    assert it.max_offset(500) == 5
    assert seen


def test_queue_without_files_lists_no_directory(tmp_path: Path) -> None:
    queue, listed = ConsumeQueue.at(tmp_path, "t", 0, 200, writable=True), []
    sys.addaudithook(lambda event, arguments: listed.append(arguments) if event == "os.scandir" else None)
    assert queue.max_offset(1000) == 0
    assert [path for (path, *_) in listed if str(path).startswith(str(tmp_path))] == []
    queue.begin_empty(7)
    assert queue.max_offset(1000) == 7


@pytest.mark.parametrize("damage", [b"\7", bytes(20), bytes(11) + b"\1"])
@pytest.mark.parametrize("index", range(24))
def test_damaged_entry_does_not_end_the_queue(tmp_path: Path, damage: bytes, index: int) -> None:
    queue(tmp_path).write(0, entries(0, 25))
    file = tmp_path / "consumequeue/t/0" / segment_name(index // PER_FILE * PER_FILE * CQ_ENTRY.itemsize)
    with file.open("r+b") as opened:
        opened.seek(index % PER_FILE * CQ_ENTRY.itemsize)
        opened.write(damage)
    told = f"entry {index} is damaged, but entries follow it. Close the store"
    for first in (25, index + 1, index):
        looked, found = queue(tmp_path), []
        with suppress(CorruptSegment):
            looked.max_offset(first * 100)
        try:
            found.append(looked.max_offset(2500))
        except CorruptSegment as error:
            found.append(str(error))
        assert found == [25] or told in str(found)


def test_last_entry_may_belong_to_a_running_append(tmp_path: Path) -> None:
    queue(tmp_path).write(0, entries(0, 25))
    for end in range(26):
        assert queue(tmp_path).max_offset(end * 100) == end
