"""A correct index has no findings, whether RocketMQ or this store wrote it; any damaged byte in use has one."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from store import ConfigError, Message, MessageStore, StoreConfig
from store.append import appender
from store.append.published_end import PublishedEnd
from store.disk.index import Index
from store.disk.index_file import file_bytes
from store.format.layout import INDEX_ENTRY, INDEX_HEADER, REPAIR_DIR, field_offset
from store.upkeep.verify import repair, verify
from tests.children import in_a_child

GOLDEN = Path(__file__).parents[2] / "golden"
SLOTS, ENTRIES = 20, 50
SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=SLOTS, maxIndexNum=ENTRIES
)
LAST = 22  # entries of the last file, number 1 to 22


def message(n: int) -> Message:
    return Message("t", b"x" * n, keys=(f"k{n}", "all"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """60 messages of two keys: 120 entries in three files."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 2)
        store.put_many([message(n) for n in range(25)])
        for n in range(25, 60):
            store.put(message(n))
    return path


def files(path: Path) -> list[Path]:
    return sorted((path / "index").iterdir())


def entry(number: int, field: str) -> int:
    return file_bytes(SLOTS, number) + field_offset(INDEX_ENTRY, field)


def flip(file: Path, position: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << bit
    file.write_bytes(data)


def test_times_after_an_undone_append_with_a_clock_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's header then agrees with its entries, which cannot store a time before its begin."""
    now = [1_800_000_000]
    monkeypatch.setattr(appender, "time", SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic))
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put(message(1))
        now[0] -= 5 * 3600
        with pytest.warns(RuntimeWarning, match="clock"):
            store.put(message(2))
        end = store.confirm_offset
        store._index.append([7], [end], [now[0] * 1000])
        store._index.truncate(end)
    assert verify(tmp_path).findings == []
    header = field_offset(INDEX_HEADER, "end_timestamp") + INDEX_HEADER["end_timestamp"].itemsize
    flip(files(tmp_path)[0], header - 2, 5)
    assert "another time than their records" in verify(tmp_path).findings[0].what


def keys_found(path: Path) -> int:
    with MessageStore.open(path, read_only=True) as store:
        assert [found.body for found in store.query("t", "all")] == [b"x" * n for n in range(60)]
        return sum(len(store.query("t", f"k{n}")) for n in range(60))


def test_correct_index_has_no_findings(path: Path) -> None:
    assert len(files(path)) == 3
    assert verify(path).findings == []
    with MessageStore.open(path) as store:
        store.put_many([message(n) for n in range(60, 100)])
        assert verify(path).findings == []
        assert store.clean(forced=True).index
        assert verify(path).findings == []


def test_damage_of_any_byte_is_found(path: Path) -> None:
    last = files(path)[-1]
    right = last.read_bytes()
    free = {
        *range(14, 16),
        field_offset(INDEX_HEADER, "slots_used") + 3,
        *range(file_bytes(SLOTS, 0), file_bytes(SLOTS, 1)),
        *range(entry(1, "seconds"), entry(1, "seconds") + 4),  # RocketMQ computes a file's first entry differently
    }
    used = set(range(entry(LAST + 1, "key_hash"))) - free
    for position in random.Random(0).sample(sorted(used), 60):
        flip(last, position, position % 8)
        assert verify(path).findings, position
        last.write_bytes(right)
    assert verify(path).findings == []


DAMAGE: dict[str, tuple[Callable[[list[Path]], object], list[str]]] = {
    "hash": (
        lambda files: flip(files[1], entry(9, "key_hash") + 3),
        ["1 entries belong to no key in the log; the first is entry 9", "1 keys are not in the index"],
    ),
    "offset": (
        lambda files: flip(files[1], entry(9, "physical_offset")),
        ["1 entries are not in the order of"],
    ),
    "time": (lambda files: flip(files[0], entry(9, "seconds")), ["1 entries have another time than their records"]),
    "chain": (lambda files: flip(files[0], entry(40, "previous")), ["1 entries name a wrong previous one"]),
    "slot": (
        lambda files: flip(files[0], file_bytes(3, 0)),
        ["1 slots do not .*; the first is slot 3"],
    ),
    "header": (
        lambda files: flip(files[0], field_offset(INDEX_HEADER, "slots_used") + 3, 6),
        [r"its header is wrong: slots_used \d+, expected \d+"],
    ),
    "count": (
        lambda files: flip(files[2], field_offset(INDEX_HEADER, "next_entry") + 3),
        ["1 keys are not in the index"],
    ),
    "length": (
        lambda files: files[2].write_bytes(b"short"),
        ["5 bytes instead of", f"{LAST} keys are not in the index"],
    ),
    "file": (
        lambda files: files[1].unlink(),
        ["49 keys are not in the index; the first is one of the record at log offset"],
    ),
    "all": (
        lambda files: shutil.rmtree(files[0].parent),
        ["120 keys are not in the index; the first is"],
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_found_and_repaired(path: Path, case: str) -> None:
    damage, expected = DAMAGE[case]
    damage(files(path))
    findings = verify(path).findings
    assert {finding.remedy for finding in findings} == {"verify --repair"}
    for what in expected:
        assert any(finding.where.startswith("index") and re.search(what, finding.what) for finding in findings)
    repair(path)
    assert verify(path).findings == []
    assert keys_found(path) == 60
    assert not (path / REPAIR_DIR).exists()


def slots_used(file: Path) -> int:
    at = field_offset(INDEX_HEADER, "slots_used")
    return int.from_bytes(file.read_bytes()[at : at + 4], "big")


def count_slots(file: Path, count: int) -> None:
    data = bytearray(file.read_bytes())
    at = field_offset(INDEX_HEADER, "slots_used")
    data[at : at + 4] = count.to_bytes(4, "big")
    file.write_bytes(data)


def append_and_die(path: Path, numbers: range) -> None:
    """Write everything without publishing it, then exit the process."""
    store = MessageStore.open(path)
    confirmed = store.confirm_offset
    store.put_many([message(n) for n in numbers])
    PublishedEnd(path, writable=True).publish(confirmed)
    os._exit(0)


def test_slot_counts_of_old_brokers_are_accepted(path: Path) -> None:
    """RocketMQ before 4.7 counted a slot once for each entry; this store continues such a file."""
    last = files(path)[-1]
    used = slots_used(last)
    assert used < LAST - 1
    for count in range(used - 2, LAST + 3):
        count_slots(last, count)
        assert bool(verify(path).findings) == (not used <= count <= LAST), count


def test_slot_counts_of_old_brokers_stay_accepted(path: Path) -> None:
    last = files(path)[-1]
    count_slots(last, LAST)
    with MessageStore.open(path) as store:
        store.put(message(60))
        assert verify(path).findings == []
        assert slots_used(last) > LAST
    in_a_child(lambda: append_and_die(path, range(61, 65)))
    with MessageStore.open(path):
        pass
    assert verify(path).findings == []
    with MessageStore.open(path) as store:
        store.put(message(61))
    assert verify(path).findings == []


def test_truncation_leaves_no_more_slots_than_entries(path: Path) -> None:
    last = files(path)[-1]
    count_slots(last, LAST)
    index = Index(path, SLOTS, ENTRIES, writable=True)
    end = index.file(last.name).entries(12, 13)[0]["physical_offset"]
    index.truncate(int(end))
    header = index.file(last.name).header()
    assert header["slots_used"] == header["next_entry"] - 1 < LAST


def test_store_without_an_index_has_no_findings(tmp_path: Path) -> None:
    path, config = tmp_path / "mq", replace(SMALL, messageIndexEnable=False)
    with MessageStore.open(path, config=config) as store:
        store.create_topic("t", 2)
        store.put_many([message(n) for n in range(10)])
    assert verify(path).findings == []
    repair(path)
    assert not (path / "index").exists()
    (finding,) = verify(path, config=SMALL).findings
    assert finding.what.startswith("20 keys are not in the index")


def test_running_or_dead_append_is_no_damage(path: Path) -> None:
    in_a_child(lambda: append_and_die(path, range(40)))
    assert verify(path).findings == []
    assert keys_found(path) == 60
    with MessageStore.open(path):
        pass
    assert verify(path).findings == []


def test_missing_index_file_of_a_broker_is_no_damage(tmp_path: Path) -> None:
    path, sizes = tmp_path / "mq", StoreConfig(maxHashSlotNum=20, maxIndexNum=30)
    shutil.copytree(GOLDEN / "index-5.3", path)
    assert len(files(path)) >= 3
    middle, right = files(path)[1], files(path)[1].read_bytes()
    middle.unlink()
    assert verify(path, config=sizes).findings == []
    middle.write_bytes(right)
    data = bytearray(right)
    data[file_bytes(20, 9) : file_bytes(20, 10)] = data[file_bytes(20, 8) : file_bytes(20, 9)]
    middle.write_bytes(data)
    assert "1 keys are not in the index" in str(verify(path, config=sizes).findings)


def test_index_sizes_of_a_broker_are_required(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    shutil.copytree(GOLDEN / "index-5.3", path)
    assert "Set both as in the settings of the broker that wrote the file" in verify(path).findings[0].what
    with pytest.raises(ConfigError):
        repair(path)
    repair(path, StoreConfig(maxHashSlotNum=20, maxIndexNum=30))
    assert verify(path).findings == []
