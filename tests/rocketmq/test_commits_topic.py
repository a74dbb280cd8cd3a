from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_mq.sink.commits import Batch, Commits
from store import Message, MessageStore, StoreConfig
from store.directory.directory_log import DirectoryWriter
from store.format.topic_names import COMMITS_TOPIC
from tests import seen
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import INDEX

pytestmark = pytest.mark.rocketmq

SIZES = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000, **INDEX}
BATCHES = 5


def commits_of(store: MessageStore) -> Commits:
    return Commits(DirectoryWriter(store), store.path / "commits", "query")


def batch_of(number: int) -> Batch:
    return Batch(number, {"t": 1})


def write(store: MessageStore, number: int) -> None:
    commits, batch = commits_of(store), batch_of(number)
    with commits.file.locked():
        assert not commits.has(batch)
        commits.begin(batch)
        append = store.begin()
        append.add_messages([Message("t", b"%d" % number, queue_id=0)])
        append.add(COMMITS_TOPIC, commits.record(batch))
        append.publish(flush=True)
        commits.end(batch)


def test_broker_keeps_the_commits_topic(rocketmq5: RocketMQ, tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=StoreConfig(**SIZES)) as store:
        store.create_topic("t", 1)
        for batch in range(BATCHES):
            write(store, batch)
    with rocketmq5.broker(path, INDEX, topic="t") as broker:
        for verb, answer in (("clean", "cleaned"), ("tidy", "tidied")):
            broker.ask(verb)
            assert next(broker)["kind"] == answer
        broker.ask("send", messages=10, perSecond=1000)
        assert len(list(iter(broker.__next__, {"kind": "done"}))) == 10
        broker.ask("look")
        lines = list(iter(broker.__next__, {"kind": "done"}))
        broker.ask("stop")
        assert next(broker) == {"kind": "stopped"}
    (told,) = (line["topics"] for line in lines if line["kind"] == "topics")
    assert told[COMMITS_TOPIC] == 1
    theirs = {name: queue for name, queue in seen.by_rocketmq(lines).items() if name[0] in ("t", COMMITS_TOPIC)}
    assert {name: queue.maximum for name, queue in theirs.items()} == {
        ("t", 0): BATCHES + 10,
        (COMMITS_TOPIC, 0): BATCHES,
    }
    with MessageStore.open(path) as store:
        seen.assert_same(seen.by_scan(store, theirs), theirs)
        assert commits_of(store).has(batch_of(BATCHES - 1))
        (Path(store.path) / "commits" / "query" / "mark.json").unlink()
        assert all(commits_of(store).has(batch_of(number)) for number in range(BATCHES)), (
            "the records show it without the file"
        )
        write(store, BATCHES)
        assert store.max_offset(COMMITS_TOPIC, 0) == BATCHES + 1
