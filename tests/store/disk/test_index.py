from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.disk.index import Index
from store.disk.index_file import file_bytes
from store.format.hashes import key_hashes
from store.format.layout import INDEX_HEADER
from store.model.errors import ConfigError, ReadOnlyStore

GOLDEN = Path(__file__).parents[2] / "golden"
# directory: (slots, entries) of
GOLDEN_INDEXES = {
    "hosts-5.3": (100, 400),
    "batch-4.9": (100, 400),
    "index-5.3": (20, 30),
    "index-4.9": (20, 30),
}
START = 1_700_000_000_000


@dataclass(frozen=True)
class SoundIndexFiles:
    topic: str
    keys: tuple[str, ...]
    offset: int
    timestamp: int


def golden_records(name: str) -> list[SoundIndexFiles]:
    lines = map(json.loads, (GOLDEN / f"{name}.jsonl").read_text("utf-8").splitlines())
    records = [
        SoundIndexFiles(
            line["topic"],
            tuple(filter(None, [line["uniqueKey"], *line["properties"].get("KEYS", "").split(" ")])),
            line["physicalOffset"],
            line["storeTimestamp"],
        )
        for line in lines
        if line["kind"] == "message"
    ]
    return sorted(records, key=lambda record: record.offset)


def append(index: Index, records: list[SoundIndexFiles]) -> None:
    hashes, rows = key_hashes(
        pa.array([record.topic for record in records], pa.string()),
        None,
        pa.array([" ".join(record.keys) or None for record in records], pa.string()),
    )
    offsets = np.array([record.offset for record in records], np.int64)
    timestamps = np.array([record.timestamp for record in records], np.int64)
    index.append(hashes, offsets[rows], timestamps[rows])


def made_records(count: int, begin: int = 0, seconds_each: float = 0.3) -> list[SoundIndexFiles]:
    return [
        SoundIndexFiles("orders", (f"u{n}", f"k{n % 7}"), n * 100, START + int(n * 1000 * seconds_each))
        for n in range(begin, begin + count)
    ]


def files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


@pytest.mark.parametrize("name", GOLDEN_INDEXES)
def test_index_has_rocketmqs_bytes(name: str, tmp_path: Path) -> None:
    append(Index(tmp_path, *GOLDEN_INDEXES[name], writable=True), golden_records(name))
    assert files(tmp_path) == files(GOLDEN / name)


@pytest.mark.parametrize("name", GOLDEN_INDEXES)
def test_every_key_in_rocketmqs_files_is_found(name: str) -> None:
    index = Index(GOLDEN / name, *GOLDEN_INDEXES[name], writable=False)
    records = golden_records(name)
    for topic, key in {(record.topic, key) for record in records for key in record.keys}:
        holders = [record.offset for record in records if record.topic == topic and key in record.keys]
        assert list(index.candidates(topic, key)) == holders[::-1]
    assert index.end_offset() == max(record.offset for record in records if record.keys)


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=8), st.integers(1, 3))
def test_several_appends_make_the_same_files_as_one(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], processes: int
) -> None:
    whole, pieces = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("pieces")
    records = made_records(60)
    append(Index(whole, 13, 40, writable=True), records)
    indexes = [Index(pieces, 13, 40, writable=True) for _ in range(processes)]
    for turn, (start, end) in enumerate(itertools.pairwise([0, *sorted(cuts), 60])):
        append(indexes[turn % processes], records[start:end])
    assert files(pieces) == files(whole)


@settings(deadline=None)
@given(st.integers(-5000, 40_000), st.integers(-5000, 40_000), st.integers(0, 6))
def test_times_are_right_to_the_second(
    tmp_path_factory: pytest.TempPathFactory, begin: int, end: int, key: int
) -> None:
    index = Index(tmp_path_factory.mktemp("times"), 13, 40, writable=True)
    records = made_records(100)
    append(index, records)
    found = list(index.candidates("orders", f"k{key}", START + begin, START + end))
    assert found == sorted(found, reverse=True)
    holders = {record.offset: record.timestamp - START for record in records if f"k{key}" in record.keys}
    assert {offset for offset, time in holders.items() if begin <= time <= end} <= set(found)
    assert set(found) <= {offset for offset, time in holders.items() if begin - 1000 <= time <= end + 1000}


def test_indexed_records_are_skipped(tmp_path: Path) -> None:
    index = Index(tmp_path, 13, 400, writable=True)
    append(index, made_records(20))
    append(index, made_records(10, begin=5))
    append(index, made_records(10, begin=20))
    assert list(index.candidates("orders", "u7")) == [700]
    assert list(index.candidates("orders", "u25")) == [2500]


def test_index_without_files_finds_nothing(tmp_path: Path) -> None:
    index = Index(tmp_path, 13, 40, writable=False)
    assert list(index.candidates("orders", "k1")) == []
    assert index.end_offset() == -1
    with pytest.raises(ReadOnlyStore):
        append(index, made_records(1))


def test_key_is_found_before_the_header_counts_it(tmp_path: Path) -> None:
    """A broker writes an entry, then its slot, then the header."""
    append(Index(tmp_path, 13, 40, writable=True), made_records(2))
    (file,) = (tmp_path / "index").iterdir()
    before = file.read_bytes()[: INDEX_HEADER.itemsize]
    append(Index(tmp_path, 13, 40, writable=True), made_records(8, begin=2))
    file.write_bytes(before + file.read_bytes()[INDEX_HEADER.itemsize :])
    index = Index(tmp_path, 13, 40, writable=False)
    assert list(index.candidates("orders", "k1")) == [800, 100]
    assert list(index.candidates("orders", "u9")) == [900]


def test_empty_file_is_skipped(tmp_path: Path) -> None:
    index = Index(tmp_path, 13, 40, writable=True)
    append(index, made_records(2))
    (tmp_path / "index" / "20990101000000000").touch()
    assert list(index.candidates("orders", "k1")) == [100]
    append(index, made_records(8, begin=2))
    assert list(index.candidates("orders", "k1")) == [800, 100]


def test_files_of_other_sizes_are_refused(tmp_path: Path) -> None:
    append(Index(tmp_path, 13, 40, writable=True), made_records(1))
    with pytest.raises(ConfigError, match="maxHashSlotNum=14 and maxIndexNum=40"):
        list(Index(tmp_path, 14, 40, writable=False).candidates("orders", "k0"))


@settings(deadline=None)
@given(st.binary(min_size=file_bytes(5, 8), max_size=file_bytes(5, 8)))
def test_search_ends_for_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("garbage")
    (root / "index").mkdir()
    (root / "index" / "20250101000000000").write_bytes(data)
    assert len(list(Index(root, 5, 8, writable=False).candidates("orders", "k1"))) <= 8


SLOTS, ENTRIES = 13, 400


def died_in_between(before: bytes, after: bytes, step: str) -> bytes:
    """Return a file whose writer died after `step`. It writes entries, then the header, then slots."""
    header, entries = INDEX_HEADER.itemsize, file_bytes(SLOTS, 0)
    half = header + (entries - header) // 8 * 4
    return {
        "some entries": before[: entries + 900] + after[entries + 900 :],
        "entries": before[:entries] + after[entries:],
        "header": after[:header] + before[header:entries] + after[entries:],
        "some slots": after[:half] + before[half:entries] + after[entries:],
        "slots": after,
    }[step]


@pytest.mark.parametrize("step", ["some entries", "entries", "header", "some slots", "slots"])
def test_truncate_undoes_a_dead_append(tmp_path: Path, step: str) -> None:
    index = Index(tmp_path, SLOTS, ENTRIES, writable=True)
    append(index, made_records(20))
    path = tmp_path / "index" / index.names()[0]
    before = path.read_bytes()
    append(index, made_records(20, begin=20))
    after = path.read_bytes()

    path.write_bytes(died_in_between(before, after, step))
    index.truncate(2000)
    assert index.end_offset() == 1900
    for key in range(7):
        holders = [record.offset for record in made_records(20) if f"k{key}" in record.keys]
        assert list(index.candidates("orders", f"k{key}")) == holders[::-1]
    append(index, made_records(20, begin=20))
    assert path.read_bytes() == after


@pytest.mark.parametrize("kept", [0, 1, 14, 15, 40, 59])
def test_truncate_spans_files(tmp_path: Path, kept: int) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for root, count in ((whole, kept), (cut, 60)):
        root.mkdir()
        append(Index(root, SLOTS, 30, writable=True), made_records(count))
    Index(cut, SLOTS, 30, writable=True).truncate(kept * 100)
    for root in (whole, cut):
        append(Index(root, SLOTS, 30, writable=True), made_records(10, begin=kept))
    for key in range(7):
        first, second = (
            list(Index(root, SLOTS, 30, writable=False).candidates("orders", f"k{key}")) for root in (whole, cut)
        )
        assert first == second


def test_last_file_is_indexed_again_after_a_machine_crash(tmp_path: Path) -> None:
    index = Index(tmp_path, SLOTS, 30, writable=True)
    records = made_records(60)
    append(index, records)
    intact = files(tmp_path)
    (tmp_path / "index" / index.names()[-1]).write_bytes(b"")
    index.keep(index.trusted())
    again = index.end_offset()
    assert 0 < again < records[-1].offset
    append(index, [record for record in records if record.offset >= again])
    assert files(tmp_path)[:-1] == intact[:-1]
    assert [next(index.candidates("orders", f"u{n}")) for n in range(60)] == [n * 100 for n in range(60)]


def test_files_newer_than_rocketmqs_checkpoint_are_not_trusted(tmp_path: Path) -> None:
    index = Index(tmp_path, SLOTS, 30, writable=True)
    append(index, made_records(60))
    names = index.names()
    kept = index.trusted(START + 10_000)
    assert 0 < len(kept) < len(names) == len(index.names()), "nothing is deleted yet"
    index.keep(kept)
    assert index.names() == kept
    assert index.trusted(0) == []


def test_files_without_records_expire(tmp_path: Path) -> None:
    index = Index(tmp_path, SLOTS, 30, writable=True)
    append(index, made_records(60))
    names = index.names()
    assert index.expire(0) == []
    gone = index.expire(3000)
    assert [Path(path).name for path, _ in gone] == names[:2]
    assert all(taken > 0 for _, taken in gone)
    assert list(index.candidates("orders", "u50")) == [5000]
    index.expire(10**9)
    assert index.names() == names[-1:], "the last file stays"


def test_index_continues_after_others_dropped_the_newest_files(tmp_path: Path) -> None:
    ours, others = (Index(tmp_path, SLOTS, 30, writable=True) for _ in range(2))
    append(ours, made_records(60))
    others.truncate(1000)
    append(ours, made_records(10, begin=10))
    append(others, made_records(10, begin=20))
    for index in (ours, others):
        assert [next(index.candidates("orders", f"u{n}"), None) for n in range(30)] == [n * 100 for n in range(30)]
    others.keep([])
    append(ours, made_records(10))
    assert len(ours.names()) == 1


def test_file_replaced_by_another_process_is_noticed(tmp_path: Path) -> None:
    """File names increase even while the clock is behind them, as when local time is set back."""
    ours, others = (Index(tmp_path, SLOTS, 30, writable=True) for _ in range(2))
    append(ours, made_records(10))
    (tmp_path / "index" / ours.names()[0]).rename(tmp_path / "index/29990101000000000")
    append(ours, made_records(10, begin=10))
    others.truncate(1000)
    assert others.names() == ["29990101000000000"]
    append(others, made_records(10, begin=10))
    append(ours, made_records(10, begin=20))
    for index in (ours, others, Index(tmp_path, SLOTS, 30, writable=False)):
        assert [next(index.candidates("orders", f"u{n}"), None) for n in range(30)] == [n * 100 for n in range(30)]
