"""Tags in the index, as RocketMQ indexes them since 5.4: continued in an index that has them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreConfig
from store.disk.index import Index
from store.upkeep.store_directory import StoreDirectory, tags_are_indexed
from store.upkeep.verify import repair, verify
from tests.store.disk.test_unsupported import unpacked
from tests.store.read.test_golden import GOLDEN

SIZES = StoreConfig(maxHashSlotNum=1000, maxIndexNum=4000)
SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=1000, maxIndexNum=4000)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return unpacked("recreated-topic-5.4", tmp_path)


def filed(path: Path, topic: str, tag: str) -> int:
    """Return how many entries the index has under a tag's hash."""
    return sum(1 for _ in Index.of(path, SIZES, writable=False).candidates(topic, f"T#{tag}"))


def put(path: Path, topic: str) -> None:
    with MessageStore.open(path, config=SIZES) as store:
        store.put(Message(topic, b"one", tags="mine", keys=("k",)))
        store.put_many([Message(topic, b"two", tags="mine"), Message(topic, b"none")])
        store.append_table(topic, pa.table({"body": [b"three", b"four"], "tags": ["mine", None]}))


def test_tags_are_indexed_if_a_broker_indexed_them(theirs: Path) -> None:
    assert StoreDirectory.at(theirs).configuration(SIZES).tagIndexEnable
    put(theirs, "Plain")
    assert filed(theirs, "Plain", "mine") == 3
    put(theirs, "Plain")  # now with our own settings
    assert filed(theirs, "Plain", "mine") == 6
    assert verify(theirs, config=SIZES).findings == []


def test_repair_indexes_tags(theirs: Path) -> None:
    before = filed(theirs, "Plain", "paid")
    put(theirs, "Plain")
    assert before > 0
    repair(theirs, config=SIZES)
    assert filed(theirs, "Plain", "paid") >= before
    assert filed(theirs, "Plain", "mine") == 3


@pytest.mark.parametrize("filed", [True, False])
@pytest.mark.parametrize("keys", [1, 255, 256, 1000])
@pytest.mark.parametrize("entries", [300, 4000])
def test_indexed_tags_are_detected_after_many_keys(tmp_path: Path, filed: bool, keys: int, entries: int) -> None:
    config = StoreConfig(maxHashSlotNum=1000, maxIndexNum=entries, tagIndexEnable=filed)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"tagged", tags="mine", keys=("a", "b", "c")))
        store.put(Message("orders", b"trace", keys=tuple(f"k{n}" for n in range(keys))))
    assert tags_are_indexed(tmp_path, config) is filed


def test_own_store_does_not_index_tags(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("orders", 1)
    put(path, "orders")
    assert not tags_are_indexed(path, SMALL)
    assert filed(path, "orders", "mine") == 0


@pytest.mark.parametrize("name", ["index-5.3", "index-4.9"])
def test_older_brokers_do_not_index_tags(name: str) -> None:
    sizes = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=30)
    assert not tags_are_indexed(GOLDEN / name, sizes)
