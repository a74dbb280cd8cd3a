"""The slots of an index file, as many at once; what they mean is in test_index.py."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from store.files.segment_file import SegmentFile
from store.index.index_file import IndexSlots, file_bytes
from store.model.errors import CorruptSegment

SLOTS = 10 * mmap.PAGESIZE // 4


@pytest.fixture
def file(tmp_path: Path) -> SegmentFile:
    path = tmp_path / "index"
    with path.open("wb") as file:
        file.truncate(file_bytes(SLOTS, 5))
    return SegmentFile(path, file_bytes(SLOTS, 5), writable=True)


def test_what_is_set_is_in_the_file(file: SegmentFile) -> None:
    slots, numbers = np.array([0, 1, 7000, SLOTS - 1]), np.array([4, 3, 2, 1])
    table = IndexSlots(file, SLOTS)
    table.reserve(slots)
    assert table.get(slots).tolist() == [0, 0, 0, 0]
    table.set(slots, numbers)
    assert table.get(slots).tolist() == numbers.tolist()
    for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
        assert file.read(file_bytes(slot, 0), 4) == number.to_bytes(4, "big")


def test_reserved_pages_keep_what_they_hold(file: SegmentFile) -> None:
    file.write(file_bytes(5, 0), memoryview(b"\0\0\0\x09"))
    IndexSlots(file, SLOTS).reserve(np.array([4, SLOTS - 1]))
    assert file.read(file_bytes(5, 0), 4) == b"\0\0\0\x09"


def test_a_file_that_was_cut_short(file: SegmentFile) -> None:
    table = IndexSlots(file, SLOTS)
    os.truncate(file.path, 100)
    with pytest.raises(CorruptSegment, match="100 bytes, but"):
        table.reserve(np.array([5000]))
