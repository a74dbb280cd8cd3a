"""The archive's index finds the same messages as a full read, however it grew and whatever files are missing."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import CorruptSegment, Message, MessageStore, OffsetLost, StoreConfig, UnknownTopic
from store.archive import key_index, key_search
from store.archive.archive_log import ArchiveAddress, ArchiveLog
from store.archive.catalog import INDEX, INDEX_SLOTS, INDEXED_FROM, SEGMENTS
from store.archive.key_index import Items, segment_bytes
from store.archive.removal import expire
from store.format.layout import ARCHIVE_INDEX_HEADER, ARCHIVE_INDEX_ITEM, ARCHIVE_INDEX_SLOT
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.read.query import KeyQuery
from tests.logs.archives import ArchivedStore, archived
from tests.store.disk.test_light_queues import broker_has_it, made_up
from tests.waiting import another_millisecond

TOPICS = {"orders": 2, "invoices": 1}
ALL = [Queue(topic, each) for topic, count in TOPICS.items() for each in range(count)]


@pytest.fixture
def it(tmp_path: Path) -> Iterator[ArchivedStore]:
    with archived(tmp_path, str(tmp_path / "archive")) as made:
        for topic, queues in TOPICS.items():
            made.create_topic(topic, queues)
        yield made


def fill(store: MessageStore, count: int, seed: int = 0) -> None:
    """Put messages without keys, with several keys, and some with producers' ids."""
    some = random.Random(seed)
    for _ in range(count):
        topic = some.choice(list(TOPICS))
        keys = tuple(f"k{some.randrange(30)}" for _ in range(some.randrange(3)))
        properties = {"UNIQ_KEY": f"id{some.randrange(1000)}"} if some.random() < 0.3 else {}
        body = bytes(some.randrange(300))
        store.put(Message(topic, body, queue_id=some.randrange(TOPICS[topic]), keys=keys, properties=properties))


def everything(log: ArchiveLog) -> list[QueueRange]:
    return [QueueRange(queue, *bounds) for queue, bounds in log.bounds(ALL).items()]


def index_files(root: Path) -> list[Path]:
    return sorted(root.rglob(f"{INDEX}/*"))


def holds(log: ArchiveLog, store: MessageStore, keys: list[str]) -> int:
    """Check that lookups and range queries find the same as the store; return the number of messages."""
    count = 0
    for key in keys:
        expected = {
            (topic, each.queue_id, each.queue_offset): each.body
            for topic in TOPICS
            for each in store.query(topic, key, 10_000)
        }
        found = {
            (topic, each.queue_id, each.queue_offset): each.body
            for topic in TOPICS
            for each in log.query(KeyQuery(topic, key, 10_000))
        }
        assert found == expected
        ranges = log.with_keys(everything(log), [key])
        offsets = {(each.queue.topic, each.queue.queue_id, at) for each in ranges for at in range(each.start, each.end)}
        assert offsets >= expected.keys()
        count += len(offsets)
    return count


@given(st.lists(st.integers(0, 99), max_size=60), st.integers(1, 20))
def test_segment_finds_all_its_items(hashes: list[int], slots: int) -> None:
    items = np.zeros(len(hashes), ARCHIVE_INDEX_ITEM)
    items["key_hash"], items["seconds"] = hashes, np.arange(len(hashes))
    data = segment_bytes(items, 7, 9, slots)
    header = np.frombuffer(data, ARCHIVE_INDEX_HEADER, 1)[0]
    table = np.frombuffer(data, ARCHIVE_INDEX_SLOT, slots, ARCHIVE_INDEX_HEADER.itemsize)
    assert (header["begin_timestamp"], header["end_timestamp"], header["items"]) == (7, 9, len(hashes))
    assert header["slots_used"] == len({each % slots for each in hashes})
    for number, slot in enumerate(table):
        found: Items = np.frombuffer(data[slot["position"] :][: slot["length"]], ARCHIVE_INDEX_ITEM)
        expected = [(at, each) for at, each in enumerate(hashes) if each % slots == number]
        assert list(zip(found["seconds"], found["key_hash"], strict=True)) == expected[::-1]


def test_lookups_equal_the_stores(it: ArchivedStore, tmp_path: Path) -> None:
    keys = [*(f"k{each}" for each in range(31)), *(f"id{each}" for each in range(0, 1000, 20))]
    for seed in range(3):
        fill(it.store, 150, seed)
        it.archive()
    with it.address.open() as log:
        read = holds(log, it.store, keys)
        assert read < 0.7 * len(keys) * sum(each.length for each in everything(log))
        with pytest.raises(UnknownTopic, match="nowhere"):
            log.query(KeyQuery("nowhere", "k1"))
    assert len(index_files(tmp_path / "archive")) == 1


def test_newest_messages_of_several_queues_are_found(it: ArchivedStore) -> None:
    """Also of messages stored within one second, which the index cannot order."""
    some = random.Random(1)
    for n in range(60):
        another_millisecond()
        keys = (f"k{some.randrange(4)}",)
        it.store.put(Message("orders", b"%d" % n, queue_id=some.randrange(2), keys=keys))
        if n == 40:
            it.archive()
    it.archive()
    with it.address.open() as log:
        for key in ("k0", "k1", "k2", "k3"):
            expected = [each.body for each in it.store.query("orders", key)]
            for most in range(1, len(expected) + 1):
                assert [each.body for each in log.query(KeyQuery("orders", key, most))] == expected[-most:]


def test_lookup_by_key_and_time(it: ArchivedStore) -> None:
    for key in ("k", "k", "other", "k"):
        it.store.put(Message("orders", b"", queue_id=0, keys=(key,)))
        another_millisecond()
    it.archive()
    stored = [each.store_timestamp for each in it.store.query("orders", "k")]
    with it.address.open() as log:
        for begin, end in (
            (0, stored[1]),
            (stored[1], stored[1]),
            (stored[1] + 1, stored[2]),
            (stored[2] + 1, 1 << 60),
        ):
            expected = [each for each in stored if begin <= each <= end]
            assert [each.store_timestamp for each in log.query(KeyQuery("orders", "k", 9, begin, end))] == expected


def test_lookup_over_many_segments(it: ArchivedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_MOST_ITEMS", 100)
    monkeypatch.setattr(key_index, "_SMALL", 40)
    for seed in range(4):
        fill(it.store, 130, seed)
        it.archive()
    assert len(index_files(tmp_path / "archive")) > 4
    with it.address.open() as log:
        holds(log, it.store, [f"k{each}" for each in range(0, 31, 3)])
        begins = [each.begin for each in log._queues().catalog.index]
        assert begins == sorted(set(begins))


def test_deleted_messages_are_not_found_and_others_are(
    it: ArchivedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "_SMALL", 10)
    fill(it.store, 300)
    it.store.put(Message("invoices", b"of a queue that gets no more", keys=("old",)))
    it.archive()
    between = another_millisecond()
    for seed in (1, 2, 3):
        for _ in range(60):
            it.store.put(Message("orders", bytes(900), queue_id=seed % 2, keys=(f"new{seed}",)))
        it.archive()
    before = len(index_files(tmp_path / "archive"))
    assert expire(it.place.place(), between)
    assert 0 < len(index_files(tmp_path / "archive")) < before
    with it.address.open() as log:
        assert [each.keys for each in log.query(KeyQuery("invoices", "old"))] == [("old",)]
        ranges = log.with_keys(everything(log), ["old"])
        assert any(each.queue.topic == "invoices" for each in ranges)
        assert len(log.query(KeyQuery("orders", "new1", 100))) == 60
        bounds = log.bounds(ALL)
        for key in ("k1", "k2"):
            kept = [
                m
                for m in it.store.query("orders", key, 999)
                if m.queue_offset >= bounds[Queue("orders", m.queue_id)][0]
            ]
            assert len(log.query(KeyQuery("orders", key, 999))) == len(kept)


def test_new_index_is_not_used_by_an_older_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup that began before the new index must not return nothing for keys of existing messages."""
    monkeypatch.setattr(key_index, "_SMALL", 1)
    address = ArchiveAddress(str(tmp_path / "archive"))
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"1", keys="k1"))
        store.archive(address.url)
        with address.open_snapshot() as late:
            assert [message.body for message in late.query(KeyQuery("orders", "k1"))] == [b"1"]
            another_millisecond()
            assert store.archive(address.url, reserved_hours=0).deleted == 1
            store.put(Message("orders", b"2", keys="k2"))
            store.archive(address.url)
            with pytest.raises(OffsetLost):
                late.query(KeyQuery("orders", "k1"))
    with address.open() as log:
        assert [message.body for key in ("k1", "k2") for message in log.query(KeyQuery("orders", key))] == [b"1", b"2"]


def test_messages_archived_without_an_index_are_found(it: ArchivedStore, tmp_path: Path) -> None:
    fill(it.store, 200)
    it.archive()
    (metadata,) = tmp_path.glob("archive/*/mq/config/*.json")
    content = json.loads(metadata.read_text())
    content[SEGMENTS[INDEX]] = {}
    for queues in content["queueMetadataTable"].values():
        for said in queues.values():
            del said[INDEXED_FROM]
    metadata.write_text(json.dumps(content))
    with it.address.open() as log:
        assert log.with_keys(everything(log), ["k1"]) == everything(log)
        holds(log, it.store, ["k1", "k7", "id100"])
        fill(it.store, 100, 1)
        it.archive()
        holds(log, it.store, ["k1", "k7", "id100"])
        ranges = log.with_keys(everything(log), ["none"])
        assert 0 < sum(each.length for each in ranges) <= 200


def test_very_common_key_is_found_by_reading(it: ArchivedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_search, "_MOST_FOUND", 9)
    it.append([Message("orders", b"%d" % each, queue_id=0, keys=("same",)) for each in range(50)])
    with it.address.open() as log:
        assert log.with_keys(everything(log), ["same"]) == everything(log)
        assert [each.body for each in log.query(KeyQuery("orders", "same", 3))] == [b"47", b"48", b"49"]


def test_lookup_by_an_id_made_of_the_log_offset(it: ArchivedStore) -> None:
    it.append([Message("orders", b"%d" % each, queue_id=each % 2) for each in range(6)])
    with it.address.open() as log:
        (batch,) = log.scan(QueueRange(Queue("orders", 0), 0, 3), ReadSpec(("msgId",), EVERYTHING))
        ids = batch["msgId"].to_pylist()
        assert [(m.queue_id, m.queue_offset) for m in log.with_id("orders", ids[1])] == [(0, 1), (1, 1)]
        assert log.with_keys([QueueRange(Queue("orders", 0), 0, 3)], ids[2:]) == [QueueRange(Queue("orders", 0), 2, 3)]
        assert log.with_id("orders", ids[0][:-8] + "00FFFFFF") == []
        assert log.with_id("orders", ids[0][:-8] + "00000003") == []


def test_truncated_or_changed_index_is_named(it: ArchivedStore, tmp_path: Path) -> None:
    it.append([Message("orders", b"", queue_id=0, keys=("k1",))])
    (file,) = index_files(tmp_path / "archive")
    whole = file.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:20], b"\0" * len(whole)):
        file.write_bytes(data)
        with it.address.open() as log, pytest.raises(CorruptSegment, match=r"INDEX.*restore it from a copy"):
            log.query(KeyQuery("orders", "k1"))
        with it.address.open() as log:
            assert log.with_keys(everything(log), ["k1"]) == everything(log)
    file.unlink()
    with it.address.open() as log, pytest.raises(OffsetLost, match="was deleted"):
        log.query(KeyQuery("orders", "k1"))


@pytest.mark.parametrize("what", ["items", "slots"])
def test_index_with_a_lost_sector_hides_no_key(it: ArchivedStore, tmp_path: Path, what: str) -> None:
    fill(it.store, 100)
    it.archive()
    (file,) = index_files(tmp_path / "archive")
    whole = file.read_bytes()
    items = ARCHIVE_INDEX_HEADER.itemsize + INDEX_SLOTS * ARCHIVE_INDEX_SLOT.itemsize
    place, size = (items + 512, 512) if what == "items" else (ARCHIVE_INDEX_HEADER.itemsize + 8, items - 512)
    file.write_bytes(whole[:place] + bytes(size) + whole[place + size :])
    keys = [f"k{each}" for each in range(30)]
    with it.address.open() as log, pytest.raises(CorruptSegment, match=r"INDEX: some keys are in a wrong slot"):
        holds(log, it.store, keys)
    fill(it.store, 50, 1)
    if what == "items":
        with pytest.warns(RuntimeWarning, match="a search by key reads all messages that are archived until now"):
            it.archive()
        with it.address.open() as log:
            holds(log, it.store, keys)


@pytest.mark.parametrize("is_cut", [False, True])
def test_lost_index_is_begun_again(it: ArchivedStore, tmp_path: Path, *, is_cut: bool) -> None:
    """Only the next archived messages are indexed. Otherwise archiving and cleaning would stop."""
    fill(it.store, 100)
    it.archive()
    (file,) = index_files(tmp_path / "archive")
    file.write_bytes(b"cut") if is_cut else file.unlink()
    for seed in (1, 2):
        fill(it.store, 50, seed)
        if seed == 1:
            with pytest.warns(RuntimeWarning, match="a search by key reads all messages that are archived until now"):
                it.archive()
        it.archive()
        with it.address.open() as log:
            holds(log, it.store, [f"k{each}" for each in range(0, 31, 3)])
    with it.address.open() as log:
        assert sum(each.length for each in log.with_keys(everything(log), ["none"])) == 100


def test_lookup_in_a_light_queue_of_several_topics(tmp_path: Path) -> None:
    """The messages are in queue 0 of each topic, at the same offsets."""
    config = StoreConfig(
        mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=50
    )
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        for topic in "ab":
            store.create_topic(topic, 1)
        for number in range(4):
            store.put(made_up("%LMQ%x", str(number), "ab"[number % 2], "k"))
    broker_has_it(tmp_path / "mq")
    with MessageStore.open(tmp_path / "mq") as store:
        store.archive(str(tmp_path / "archive"))
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        found = {(each.topic, each.queue_offset) for each in log.query(KeyQuery("%LMQ%x", "k"))}
        assert found == {("a", 0), ("b", 0), ("a", 1), ("b", 1)}
        last = list(log.messages(QueueRange(Queue("%LMQ%x", 0), 0, 4)))[3]
        assert log.with_id("%LMQ%x", last.msg_id) == [last]


def test_key_is_found_while_the_index_is_replaced(it: ArchivedStore) -> None:
    it.append([Message("orders", b"first", queue_id=0, keys=("first",))])
    over = threading.Event()

    def look() -> None:
        with it.address.open() as log:
            while not over.is_set():
                looks.append([each.body for each in log.query(KeyQuery("orders", "first"))])
                looks.append(log.with_keys([QueueRange(Queue("orders", 0), 0, 1)], ["first"]))

    looks: list[object] = []
    looking = threading.Thread(target=look)
    looking.start()
    appended = 0
    while appended < 30 or len(looks) <= 4:
        it.append([Message("orders", b"more", queue_id=1, keys=("more",))])
        appended += 1
    over.set()
    looking.join()
    assert looks == [[b"first"], [QueueRange(Queue("orders", 0), 0, 1)]] * (len(looks) // 2)
