from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.format.layout import segment_name
from store.upkeep.verify import repair, verify
from tests.store.upkeep.test_verify import QUEUE, Damage, entry, filled, patch_entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "mq")


DAMAGED_QUEUES: dict[str, tuple[Damage, str, str]] = {
    "empty": (lambda path: patch_entry(path, 7, bytes(40)), "offset 7", "2 messages have no entry in the queue"),
    "tags code": (lambda path: patch_entry(path, 7, entry(path, 8).tobytes()), "offset 7", "1 entries are not what"),
    "size": (
        lambda path: patch_entry(path, 12, entry(path, 12).tobytes()[:8] + b"\0\0\0\1"),
        "offset 12",
        r"1 entries are not what their records say; the first is 1 bytes at log offset (\d+), tags code 0, "
        r"its record 1092 bytes at log offset \1, tags code 0",
    ),
    "one more": (lambda path: patch_entry(path, 30, entry(path, 3).tobytes()), "offset 30", "1 entries have no sound"),
    "stale": (lambda path: patch_entry(path, 35, entry(path, 3).tobytes()), "offset 35", "bytes are left after"),
    "cut": (
        lambda path: (path / QUEUE / segment_name(400)).unlink(),
        "offset 20",
        "10 messages have no entry in the queue",
    ),
    "hole": (lambda path: (path / QUEUE / segment_name(200)).unlink(), "queue 0", "the file of bytes 200 to 400"),
    "first file": (
        lambda path: (path / QUEUE / segment_name(0)).unlink(),
        "offset 0",
        "10 messages have no entry in the queue",
    ),
    "gone": (lambda path: shutil.rmtree(path / QUEUE), "offset 0", "30 messages have no entry"),
}


@pytest.mark.parametrize("case", DAMAGED_QUEUES)
def test_damaged_queue_is_found_and_repaired(path: Path, case: str) -> None:
    damage, where, what = DAMAGED_QUEUES[case]
    if case in ("one more", "stale"):
        (path / QUEUE / segment_name(600)).write_bytes(bytes(200))
    damage(path)
    (finding,) = verify(path).findings
    assert finding.where.startswith("topic t, queue 0")
    assert finding.where.endswith(where)
    assert re.search(what, finding.what)
    assert "verify --repair" in finding.remedy
    if case == "hole":
        shutil.rmtree(path / QUEUE)
    repair(path)
    assert verify(path).findings == []
    with MessageStore.open(path) as store:
        assert store.put(Message("t", b"next", queue_id=0)).queue_offset == 30
        assert [row["body"][0] for b in store.scan("t", 0, 0, 30) for row in b.to_pylist()] == list(range(30))


def test_queues_not_filled_yet_by_a_running_broker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / "watermark").unlink()
    late = path / QUEUE / segment_name(400)
    entries = late.read_bytes()
    late.write_bytes(bytes(len(entries)))
    (finding,) = verify(path).findings
    assert (finding.where, finding.what) == ("topic t, queue 0, offset 20", "10 messages have no entry in the queue")

    def fill(seconds: float) -> None:
        with late.open("r+b") as file:
            file.write(entries)

    monkeypatch.setattr("store.upkeep.queues_check.time.sleep", fill)  # runs while the check waits
    assert verify(path).findings == []


def cleaned(path: Path) -> tuple[int, int]:
    """Let retention delete some of the records of a queue's first file; return the queue's bounds."""
    config = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)
    with MessageStore.open(path, config=config) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(350)) for _ in range(36)])
        store.clean(forced=True)
        return store.offsets("t", 0)


@pytest.mark.parametrize("which", ["one", "all"])
def test_damaged_entries_of_deleted_records_are_found(tmp_path: Path, which: str) -> None:
    path = tmp_path / "mq"
    first, end = cleaned(path)
    file = path / QUEUE / segment_name(first // 10 * 200)
    sound = file.read_bytes()
    before = first % 10 * 20
    damaged = sound[20:before] + sound[:20] if which == "one" else bytes(before)
    file.write_bytes(damaged + sound[before:])
    (finding,) = verify(path).findings
    assert finding.where == "topic t, queue 0"
    assert f"entry {first - 1} is damaged" in finding.what
    assert finding.remedy == "move the queue's folder away, then verify --repair"
    shutil.rmtree(path / QUEUE)
    repair(path)
    assert not verify(path).findings
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == (first, end)


@pytest.mark.parametrize("way", ["opened", "repaired"])
def test_lost_first_file_with_some_deleted_records_is_rebuilt(tmp_path: Path, way: str) -> None:
    path = tmp_path / "mq"
    first, end = cleaned(path)
    (path / QUEUE / segment_name(first // 10 * 200)).write_bytes(bytes(200))
    if way == "repaired":
        repair(path)
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == (first, end)
    assert not verify(path).findings
