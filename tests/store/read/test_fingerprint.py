from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store import CorruptRecord, Message, MessageStore, StoreConfig
from store.format.layout import CQ_ENTRY, segment_name
from store.model.log_protocol import Fingerprint
from tests.store.read.test_golden import GOLDEN, NAMES

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=10 * CQ_ENTRY.itemsize)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("a", 1)
        store.create_topic("b", 1)
        put(store, "a", 40)
    return tmp_path / "mq"


def put(store: MessageStore, topic: str, count: int) -> None:
    for _ in range(count):
        store.put(Message(topic, bytes(200), queue_id=0))


@pytest.mark.parametrize("name", NAMES)
def test_fingerprints_equal_the_records(name: str) -> None:
    with MessageStore.open(GOLDEN / name, read_only=True) as store:
        for topic, count in store.topics().items():
            for queue_id in range(count):
                for offset in range(*store.offsets(topic, queue_id)):
                    (message,) = store.get_message("g", topic, queue_id, offset, 1).messages
                    found = store.fingerprint(topic, queue_id, offset)
                    assert found == (message.physical_offset, message.store_timestamp)
                    assert found is not None
                    assert store.can_have(topic, queue_id, offset, found)


def test_fingerprint_of_a_deleted_message_must_fit_the_log(path: Path) -> None:
    with MessageStore.open(path) as store:
        was = [store.fingerprint("a", 0, offset) for offset in range(40)]
        store.clean(forced=True)
        first, end = store.offsets("a", 0)
        assert 0 < first < end
        there = store.fingerprint("a", 0, first)
        assert there is not None
        for offset, before in enumerate(was):
            assert before is not None
            assert store.fingerprint("a", 0, offset) == (before if offset >= first else None)
            assert store.can_have("a", 0, offset, before)
            assert store.can_have("a", 0, offset, there) == (offset == first)


def test_fingerprints_detect_a_replaced_store(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "backup")
    with MessageStore.open(path) as store:
        put(store, "a", 10)
        kept, lost = store.fingerprint("a", 0, 39), store.fingerprint("a", 0, 49)
        assert kept is not None
        assert lost is not None
    shutil.rmtree(path)
    (tmp_path / "backup").rename(path)
    with MessageStore.open(path) as store:
        put(store, "a", 20)
        again = store.fingerprint("a", 0, 49)
        assert again is not None
        assert again.physical_offset == lost.physical_offset
        assert store.can_have("a", 0, 39, kept)
        assert not store.can_have("a", 0, 49, lost)


def test_open_store_detects_a_replaced_queue(path: Path) -> None:
    queues = path / "consumequeue"
    with MessageStore.open(path) as store, MessageStore.open(path, read_only=True) as reader:
        was = reader.fingerprint("a", 0, 15)
        assert was is not None
        put(store, "b", 20)
        shutil.rmtree(queues / "a")
        shutil.copytree(queues / "b", queues / "a")
        assert not reader.can_have("a", 0, 15, was)
        assert reader.fingerprint("a", 0, 15) == reader.fingerprint("b", 0, 15)


def test_damaged_entry_is_an_error(path: Path) -> None:
    with (path / "consumequeue" / "a" / "0" / segment_name(0)).open("r+b") as file:
        file.write(bytes(CQ_ENTRY.itemsize))
    with MessageStore.open(path, read_only=True) as store:
        with pytest.raises(CorruptRecord, match=r"offset 0: the entry is damaged .0 bytes .* verify"):
            store.fingerprint("a", 0, 0)
        with pytest.raises(CorruptRecord):
            store.can_have("a", 0, 0, Fingerprint(0, 0))


def test_search_by_time_detects_swapped_entries(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(mappedFileSizeConsumeQueue=200)) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"%d" % n, queue_id=n % 2) for n in range(40)])
    files = sorted((tmp_path / "consumequeue/t/1").iterdir())
    first, second = (file.read_bytes() for file in files)
    files[0].write_bytes(second)
    files[1].write_bytes(first)
    with MessageStore.open(tmp_path, read_only=True) as store:
        with pytest.raises(CorruptRecord, match="the log has another message, or none"):
            store.offset_by_time("t", 1, 1)
        assert store.offset_by_time("t", 0, 1) == 0
