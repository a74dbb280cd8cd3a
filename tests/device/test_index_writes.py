from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from store.disk.index import Index
from tests.device.disk import PAGE, Disk, Write, restore
from tests.device.recorder import Recorder

SLOTS, ENTRIES = 5, 30


def index_in(path: Path) -> Index:
    return Index(path, SLOTS, ENTRIES, writable=True)


def file_key(index: Index, hashed: int, physical_offset: int, copies: int = 1) -> None:
    offsets = np.full(copies, physical_offset)
    index.append(np.full(copies, hashed, np.int32), offsets, np.full(copies, 1_000_000))


def found(index: Index, hashed: int) -> list[int]:
    (name,) = index.names()
    return list(index.file(name).candidates(hashed, 0, 1 << 62))


def test_killed_writer_loses_no_key_but_the_one_being_indexed(tmp_path: Path) -> None:
    """At every moment the unfinished entry is undone, and another key is indexed in its place."""
    recorder = Recorder(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with recorder.recording():
        index = index_in(tmp_path / "run")
        file_key(index, 1, 100)
        begun = recorder.look()
        file_key(index, 1, 200)
    assert len(recorder.changes) > begun + 2
    for cut in range(begun, len(recorder.changes) + 1):
        path = tmp_path / f"{cut}"
        restore(Disk({}, recorder.changes[:cut], random.Random(0)).now(), path)
        again = index_in(path)
        again.truncate(200)
        file_key(again, 2, 300)
        assert found(again, 1) == [100]
        assert found(again, 2) == [300]


def test_slot_pages_are_written_before_they_are_mapped(tmp_path: Path) -> None:
    """A full device lets `write` raise an error, but kills a process that touches a hole through a mapping."""
    recorder = Recorder(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with recorder.recording():
        index = Index(tmp_path / "run", 10 * PAGE, 10_000, writable=True)
        many = np.arange(100, dtype=np.int32) * 397
        index.append(many, np.arange(100) + 100, np.full(100, 1_000_000))
    writes = [change for change in recorder.changes if isinstance(change, Write)]
    written = {page for change in writes if not change.position % PAGE for page in _pages(change)}
    for change in writes:
        if len(change.data) == 8:
            assert set(_pages(change)) <= written


def _pages(change: Write) -> range:
    return range(change.position // PAGE, -(-(change.position + len(change.data)) // PAGE))
