"""A recreated topic continues at the offsets of the old one's end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from store import GetStatus, Message, MessageStore, OffsetLost, StoreConfig, delete_topic
from store.disk.queue_ends import QueueEnds
from store.disk.topics import Topics
from store.format.layout import CONSUME_QUEUE_DIR, PUBLISHED_END_FILE, QUEUE_ENDS_FILE, TOPICS_FILE
from store.model.log_protocol import Fingerprint
from store.upkeep.verify import verify

CONFIG = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mq"


def put(store: MessageStore, body: str, count: int, queue_id: int = 0) -> list[int]:
    """Put messages into a queue and return their offsets."""
    messages = [Message("t", f"{body} {n}", queue_id=queue_id, keys=(body,)) for n in range(count)]
    return [result.queue_offset for result in store.put_many(messages)]


def bodies(store: MessageStore) -> set[bytes]:
    return {body for batch in store.to_arrow("t", ["body"]) for body in batch["body"].to_pylist()}


def filled(path: Path, count: int = 12, queues: int = 1) -> None:
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", queues)
        store.create_topic("other", 1)
        for queue_id in range(queues):
            put(store, "old", count - queue_id, queue_id)


def test_recreated_topic_with_other_numbers_of_queues(path: Path) -> None:
    filled(path, 12, 2)
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        assert put(store, "new", 1) == [12]
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        store.create_topic("t", 3)
        assert [store.offsets("t", queue_id) for queue_id in range(3)] == [(13, 13), (11, 11), (0, 0)]
        assert [put(store, "new", 1, queue_id) for queue_id in range(3)] == [[13], [11], [0]]
        assert bodies(store) == {b"new 0"}
    assert verify(path).findings == []


@pytest.mark.parametrize("deletes_before", [True, False])
def test_retention_between_deletion_and_recreation(path: Path, deletes_before: bool) -> None:
    filled(path)
    if deletes_before:
        delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.put_many([Message("other", b"x" * 500)] * 40)
        while store.clean(forced=True).log:
            pass
    if not deletes_before:
        delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        assert put(store, "new", 3) == [12, 13, 14]
        store.put_many([Message("other", b"x" * 500)] * 40)
        while store.clean(forced=True).log:
            pass
        assert store.offsets("t", 0) == (15, 15)
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        assert put(store, "new", 1) == [15]
    assert verify(path).findings == []


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("gone", [CONSUME_QUEUE_DIR, PUBLISHED_END_FILE, QUEUE_ENDS_FILE])
def test_recovery_keeps_the_begin_of_a_recreated_topic(path: Path, gone: str, count: int) -> None:
    filled(path)
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        put(store, "new", count)
    shutil.rmtree(path / gone) if (path / gone).is_dir() else (path / gone).unlink()
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == (12, 12 + count)
        assert put(store, "new", 1) == [12 + count]
        assert len(bodies(store)) == max(1, count)
    assert verify(path).findings == []


def test_stale_offsets_are_expired(path: Path) -> None:
    filled(path)
    with MessageStore.open(path) as store:
        store.commit_offsets("g", "t", {0: 5})
        was = store.fingerprint("t", 0, 4)
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        put(store, "new", 3)
        assert store.consumer_offset("g", "t", 0) == 5
        got = store.get_message("g", "t", 0, 5)
        assert (got.status, got.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 12)
        with pytest.raises(OffsetLost):
            store.scan("t", 0, 5, 15)
        assert was is not None
        assert store.fingerprint("t", 0, 4) is None
        assert store.can_have("t", 0, 4, was)
        assert not store.can_have("t", 0, 13, Fingerprint(was.physical_offset, was.store_timestamp))
        assert {message.body for message in store.query("t", "old")} == set()


def test_queue_restarted_by_a_broker_begins_at_0(path: Path) -> None:
    """A broker starts a recreated topic without messages at 0, and may not write the table of topics."""
    filled(path)
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
    table = (path / TOPICS_FILE).read_text()
    content = json.loads(table)
    content["deletedTopics"]["t"]["queueEnds"] = []
    del content["deletedTopicsCrc"]
    (path / TOPICS_FILE).write_text(json.dumps(content))
    with MessageStore.open(path) as store:
        assert put(store, "broker's", 5) == [0, 1, 2, 3, 4]
    (path / TOPICS_FILE).write_text(table)
    (path / PUBLISHED_END_FILE).unlink()
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 0) == (0, 5)
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == (0, 5)
        assert len(bodies(store)) == 5
        assert Topics(path).begin("t", 0) == 0
    assert verify(path).findings == []


def test_tombstones_of_an_earlier_version_have_no_ends(path: Path) -> None:
    """So a recreated topic begins at 0."""
    filled(path)
    delete_topic(path, "t")
    content = json.loads((path / TOPICS_FILE).read_text())
    content["deletedTopics"] = {"t": content["deletedTopics"]["t"]["logOffset"]}
    del content["deletedTopicsCrc"]
    (path / TOPICS_FILE).write_text(json.dumps(content))
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        assert put(store, "new", 5) == [0, 1, 2, 3, 4]
    (path / PUBLISHED_END_FILE).unlink()
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == (0, 5)
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        assert put(store, "newer", 1) == [5]
    assert verify(path).findings == []


def test_saved_ends_lack_topics_without_messages(path: Path) -> None:
    """Otherwise the next open would miss the topic's files, and rebuild all queues."""
    filled(path)
    with MessageStore.open(path) as store:
        store.put(Message("other", b"x"))
        store.flush()
        delete_topic(path, "t")
        store.create_topic("t", 1)
    ends = QueueEnds.sound(path)
    assert ends is not None
    assert ends.of == {("other", 0): 1}
