from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.api.message_store import delete_topic
from store.format.layout import TOPICS_FILE
from store.format.topic_names import is_internal_topic
from store.upkeep.verify import verify
from tests import seen
from tests.end_to_end.test_kill import bodies
from tests.rocketmq.harness import Broker, Json, RocketMQ
from tests.rocketmq.mixes import INDEX
from tests.rocketmq.test_admin_files import NAMED_AFTER_THE_BROKER, described

pytestmark = pytest.mark.rocketmq

SIZES = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000, **INDEX}
QUEUES = 4
DELETED = "deleted"
ANEW = "single"
ANEW_MESSAGES = 61
KEPT = {(n % QUEUES, n // QUEUES): f"kept {n}".encode() for n in range(40)}


def filled(path: Path) -> Path:
    with MessageStore.open(path, config=StoreConfig(**SIZES)) as store:
        for topic in ("kept", DELETED, ANEW):
            store.create_topic(topic, QUEUES)
        for topic in (DELETED, ANEW):
            store.put_many([Message(topic, b"%d" % n, queue_id=n % QUEUES, keys=("key-1",)) for n in range(100)])
            store.commit_offsets("readers", topic, {0: 20})
        store.put_many([Message("kept", body, queue_id=queue) for (queue, _), body in KEPT.items()])
    return path


def look(broker: Broker) -> list[Json]:
    broker.ask("look")
    return list(iter(broker.__next__, {"kind": "done"}))


def topics_of(store: MessageStore) -> set[str]:
    """Return the topics without a broker's own."""
    named = {*NAMED_AFTER_THE_BROKER, "DefaultCluster_REPLY_TOPIC"}
    return {topic for topic in store.topics() if not is_internal_topic(topic)} - named


def test_broker_does_not_show_topics_that_we_deleted(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """The broker restarts a recreated topic at 0, since it drops our key; this store continues."""
    path = filled(tmp_path / "mq")
    for topic in (DELETED, ANEW):
        delete_topic(path, topic)
    with rocketmq.broker(path, INDEX, topic="kept") as broker:
        assert described(broker, "kept")["offsets"] == dict.fromkeys(map(str, range(QUEUES)), -1)
        broker.ask("produce", kinds=["single"])
        assert next(broker) == {"kind": "done"}
        lines = look(broker)
    (told,) = (line["topics"] for line in lines if line["kind"] == "topics")
    assert {"kept", ANEW} <= told.keys()
    assert DELETED not in told
    theirs = {name: queue for name, queue in seen.by_rocketmq(lines).items() if name[0] in ("kept", ANEW)}
    assert sum(len(queue.rows) for name, queue in theirs.items() if name[0] == ANEW) == ANEW_MESSAGES
    assert {queue.minimum for queue in theirs.values()} == {0}
    assert "deletedTopics" not in json.loads((path / TOPICS_FILE).read_text())
    for read_only in (True, False):
        with MessageStore.open(path, read_only=read_only) as store:
            assert topics_of(store) == {"kept", ANEW}
            seen.assert_same(seen.by_scan(store, theirs), theirs)
            assert len(store.query(ANEW, "key-1", 200)) == 6
    assert verify(path).findings == []


@pytest.mark.parametrize("killed", [False, True])
def test_deletion_by_us_equals_deletion_by_a_broker(rocketmq: RocketMQ, tmp_path: Path, killed: bool) -> None:
    """After either: the same topics and messages here, and the other topics' messages in RocketMQ's reader. It may show
    messages of deleted topics."""
    path = filled(tmp_path / "theirs")
    ours = shutil.copytree(path, tmp_path / "ours")
    with rocketmq.broker(path, INDEX, topic="kept") as broker:
        broker.ask("produce", kinds=["deleted"])
        assert next(broker) == {"kind": "done"}
        if not killed:
            broker.ask("stop")
            assert next(broker) == {"kind": "stopped"}
    delete_topic(ours, DELETED)
    if killed:
        (ours / "abort").touch()
    assert (path / "abort").exists() == killed
    kept = []
    for directory in (path, ours):
        with MessageStore.open(directory) as store:
            assert topics_of(store) - {DELETED} == {"kept", ANEW}
            assert DELETED not in store.topics() or directory == path, "a busy broker may leave a part of the topic"
            assert bodies(store, "kept") == KEPT
        lines = [line for line in rocketmq.read(directory, INDEX) if line.get("topic") in ("kept", ANEW)]
        kept.append(seen.by_rocketmq(lines))
    seen.assert_same(*kept)


def test_log_may_end_with_records_of_a_deleted_topic(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ rebuilds the deleted queues from these records, as after its own deletion; it lists no topic."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=StoreConfig(**SIZES)) as store:
        for topic in ("kept", DELETED):
            store.create_topic(topic, QUEUES)
        store.put_many([Message("kept", body, queue_id=queue) for (queue, _), body in KEPT.items()])
        store.put_many([Message(DELETED, b"%d" % n, queue_id=n % QUEUES) for n in range(20)])
    delete_topic(path, DELETED)
    with rocketmq.broker(path, INDEX, topic="kept") as broker:
        lines = look(broker)
    (told,) = (line["topics"] for line in lines if line["kind"] == "topics")
    assert DELETED not in told
    with MessageStore.open(path) as store:
        assert bodies(store, "kept") == KEPT
        is_back = DELETED in store.topics()
    if is_back:
        delete_topic(path, DELETED)
    with MessageStore.open(path) as store:
        assert topics_of(store) == {"kept"}
