from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from store.disk.index_file import IndexFile, IndexSlots, file_bytes
from store.disk.segment_file import SegmentFile
from store.format.layout import INDEX_NO_ENTRY
from store.model.errors import CorruptSegment

SLOTS, ENTRIES = 50, 400
START = 1_700_000_000_000
HASHES = np.random.default_rng(1).integers(0, 1 << 31, 60).astype(np.int32)
OFFSETS = np.arange(60) * 100


def made(path: Path, count: int, *, at_a_time: int = 100, ms_each: int = 300) -> IndexFile:
    path.write_bytes(bytes(file_bytes(SLOTS, ENTRIES)))
    file = IndexFile(path, SLOTS, ENTRIES, writable=True)
    times = START + np.arange(60) * ms_each
    for start in range(0, count, at_a_time):
        rows = slice(start, min(start + at_a_time, count))
        assert file.append(HASHES[rows], OFFSETS[rows], times[rows]) == rows.stop - rows.start
    return file


@pytest.mark.parametrize("kept", [1, 20, 59])
def test_truncate_restores_the_header(tmp_path: Path, kept: int) -> None:
    never, cut = made(tmp_path / "never", kept), made(tmp_path / "cut", 60)
    cut.truncate(int(OFFSETS[kept]))
    expected, found = never.header(), cut.header()
    assert 0 <= found.pop("end_timestamp") - expected.pop("end_timestamp") < 1000, "the index stores whole seconds"
    assert found == expected
    assert found["slots_used"] == len(np.unique(HASHES[:kept] % SLOTS))
    assert cut.slot_values(0, SLOTS).tolist() == never.slot_values(0, SLOTS).tolist()


@pytest.mark.parametrize("ms_each", [-300, 0, 300])
def test_single_appends_make_the_same_file(tmp_path: Path, ms_each: int) -> None:
    one, many = made(tmp_path / "one", 40, at_a_time=1, ms_each=ms_each), made(tmp_path / "many", 40, ms_each=ms_each)
    assert one.path.read_bytes() == many.path.read_bytes()
    assert (many.entries(1, 41)["seconds"] >= 0).all()


def test_search_continues_while_an_append_is_undone(tmp_path: Path) -> None:
    """Another slot's entry replaces the undone one. The search must still find older entries of its key."""
    path = tmp_path / "file"
    path.write_bytes(bytes(file_bytes(SLOTS, ENTRIES)))
    file, ours, theirs = IndexFile(path, SLOTS, ENTRIES, writable=True), [7], [8]
    for offset in (0, 100, 200, 300):
        file.append(ours, [offset], [START])
    search = file.candidates(7, 0, START + 1000)
    assert next(search) == 300
    file.truncate(200)
    for offset in (200, 250, 300):
        file.append(theirs, [offset], [START])
    assert list(search) == [100, 0]


def test_wrong_entry_causes_no_endless_search(tmp_path: Path) -> None:
    file = made(tmp_path / "file", 3)
    content = bytearray(file.path.read_bytes())
    slot = int(HASHES[0]) % SLOTS
    content[file_bytes(slot, 0) : file_bytes(slot + 1, 0)] = (2).to_bytes(4, "big")
    file.path.write_bytes(content)
    assert list(file.candidates(int(HASHES[0]), 0, START + 10_000)) == []


def test_file_truncated_to_its_first_key_begins_later(tmp_path: Path) -> None:
    """The first key's seconds count from the previous file."""
    path = tmp_path / "file"
    path.write_bytes(bytes(file_bytes(SLOTS, ENTRIES)))
    file = IndexFile(path, SLOTS, ENTRIES, writable=True)
    file.write_header({**file.header(), "begin_timestamp": START - 60_000, "end_timestamp": START - 60_000})
    file.append(HASHES[:2], OFFSETS[:2], [START, START + 5000])
    file.truncate(100)
    header = file.header()
    assert header["begin_timestamp"] == START
    assert START <= header["end_timestamp"] < START + 1000


def test_entries_are_read_by_number(tmp_path: Path) -> None:
    file = made(tmp_path / "file", 30)
    assert file.entries(5, 9)["key_hash"].tolist() == HASHES[4:8].tolist()
    assert [file.first_from(offset, 31) for offset in (0, 1, 2900, 2901)] == [1, 2, 30, 31]
    rows = {number: int(HASHES[number - 1]) % SLOTS for number in range(1, 31)}
    for number, slot in rows.items():
        older = [other for other, same in rows.items() if same == slot and other < number]
        assert file.previous(number) == max(older, default=INDEX_NO_ENTRY)
    assert [file.previous(number) for number in (-1, 0, ENTRIES, 1 << 40)] == [INDEX_NO_ENTRY] * 4


MANY_SLOTS = 10 * mmap.PAGESIZE // 4


@pytest.fixture
def file(tmp_path: Path) -> SegmentFile:
    path = tmp_path / "index"
    with path.open("wb") as file:
        file.truncate(file_bytes(MANY_SLOTS, 5))
    return SegmentFile(path, file_bytes(MANY_SLOTS, 5), writable=True)


def test_set_slots_are_in_the_file(file: SegmentFile) -> None:
    slots, numbers = np.array([0, 1, 7000, MANY_SLOTS - 1]), np.array([4, 3, 2, 1])
    table = IndexSlots(file, MANY_SLOTS)
    table.reserve(slots)
    assert table.get(slots).tolist() == [0, 0, 0, 0]
    table.set(slots, numbers)
    assert table.get(slots).tolist() == numbers.tolist()
    for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
        assert file.read(file_bytes(slot, 0), 4) == number.to_bytes(4, "big")


def test_reserving_keeps_the_content_of_pages(file: SegmentFile) -> None:
    file.write(file_bytes(5, 0), memoryview(b"\0\0\0\x09"))
    IndexSlots(file, MANY_SLOTS).reserve(np.array([4, MANY_SLOTS - 1]))
    assert file.read(file_bytes(5, 0), 4) == b"\0\0\0\x09"


def test_a_file_that_was_cut_short(file: SegmentFile) -> None:
    table = IndexSlots(file, MANY_SLOTS)
    os.truncate(file.path, 100)
    with pytest.raises(CorruptSegment, match="100 bytes, but"):
        table.reserve(np.array([5000]))
