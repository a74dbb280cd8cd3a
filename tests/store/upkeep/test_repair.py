from __future__ import annotations

from pathlib import Path

import pytest

from store import CorruptRecord, Message, MessageStore, NotAStore, StoreConfig, StoreLocked
from store.format.layout import REPAIR_DIR
from store.upkeep.verify import repair, verify

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", bytes(n), keys=(f"k{n}", "all")) for n in range(60)])
    return path


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_repair_excludes_other_writers(path: Path) -> None:
    with MessageStore.open(path) as store:
        with pytest.raises(StoreLocked, match="Close the store there before a repair"):
            repair(path)
        store.put(Message("t", b"x"))
    repair(path)
    assert verify(path).findings == []


def test_repair_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        repair(tmp_path)


def test_repair_accepts_a_url(path: Path) -> None:
    repair(f"file://{path}")
    assert verify(f"file://{path}").findings == []


def test_failed_repair_leaves_queues_and_index(path: Path) -> None:
    log = path / "commitlog" / f"{0:020d}"
    sound = log.read_bytes()
    damaged = bytearray(sound)
    damaged[1000] ^= 1
    log.write_bytes(damaged)
    before = contents(path)
    with pytest.raises(CorruptRecord):
        repair(path)
    assert contents(path) == before
    assert not (path / REPAIR_DIR).exists()
    log.write_bytes(sound)
    assert verify(path).findings == []
