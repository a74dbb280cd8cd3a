from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import CorruptStore, InvalidTopic, Message, MessageStore, OffsetLost, StoreConfig, UnknownTopic, delete_topic
from store.disk.consumer_offsets import ConsumerOffsets
from store.disk.topics import Topics
from store.format.layout import (
    ABORT_FILE,
    CONSUME_QUEUE_DIR,
    DELETED_DIR,
    PUBLISHED_END_FILE,
    QUEUE_ENDS_FILE,
    TOPICS_FILE,
)
from store.upkeep.verify import repair, verify
from tests.takeover import broker

ENTRIES = 5
CONFIG = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=ENTRIES * 20)


def filled(path: Path, first: int = 12, other: int = 3) -> Path:
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.create_topic("other", 1)
        put(store, "old", first)
        store.put_many([Message("other", b"kept") for _ in range(other)])
        store.commit_offsets("g", "t", {0: 2})
        store.commit_offsets("g", "other", {0: 1})
    return path


def put(store: MessageStore, body: str, count: int) -> None:
    store.put_many([Message("t", f"{body} {n}".encode(), keys=("k",)) for n in range(count)])


def bodies(store: MessageStore, topic: str = "t") -> list[bytes]:
    return [row for batch in store.to_arrow(topic, ["body"]) for row in batch["body"].to_pylist()]


def new(count: int) -> list[bytes]:
    return [f"new {n}".encode() for n in range(count)]


def test_deletion_removes_queues_and_offsets_and_keeps_the_log(tmp_path: Path) -> None:
    path = filled(tmp_path / "mq")
    log = {file: file.read_bytes() for file in (path / "commitlog").iterdir()}
    delete_topic(path, "t")
    assert sorted(entry.name for entry in (path / CONSUME_QUEUE_DIR).iterdir()) == ["other"]
    assert not (path / DELETED_DIR).exists()
    assert list(json.loads((path / TOPICS_FILE).read_text())["topicConfigTable"]) == ["other"]
    assert ConsumerOffsets(path).all_offsets() == {"t@g": {0: 2}, "other@g": {0: 1}}
    assert {file: file.read_bytes() for file in (path / "commitlog").iterdir()} == log
    assert verify(path).findings == []
    with MessageStore.open(path) as store:
        assert store.topics() == {"other": 1}
        assert bodies(store, "other") == [b"kept"] * 3
        with pytest.raises(UnknownTopic):
            store.put(Message("t", b"x"))
        with pytest.raises(UnknownTopic):
            store.query("t", "k")


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("how", ["watermark gone", "abort", "queue ends gone", "repair", "broker"])
@pytest.mark.parametrize("is_created_again", [False, True])
def test_no_recovery_restores_a_deleted_topic(tmp_path: Path, how: str, others: int, is_created_again: bool) -> None:
    path = filled(tmp_path / "mq", other=others)
    if not others:
        delete_topic(path, "other")
    delete_topic(path, "t")
    if is_created_again:
        with MessageStore.open(path) as store:
            store.create_topic("t", 1)
    if how == "watermark gone":
        (path / PUBLISHED_END_FILE).unlink()
    elif how == "abort":
        (path / PUBLISHED_END_FILE).unlink()
        (path / ABORT_FILE).touch()
    elif how == "queue ends gone":
        (path / QUEUE_ENDS_FILE).unlink()
    elif how == "repair":
        repair(path)
    else:
        with broker(path):
            pass
    with MessageStore.open(path) as store:
        assert store.topics() == ({"other": 1} if others else {}) | ({"t": 1} if is_created_again else {})
        assert not is_created_again or store.offsets("t", 0) == (12, 12)
    assert verify(path).findings == []


@pytest.mark.parametrize("gone", [[], [PUBLISHED_END_FILE], [QUEUE_ENDS_FILE, PUBLISHED_END_FILE]])
def test_queues_rebuilt_by_a_broker_stay_out_of_a_new_topic(tmp_path: Path, gone: list[str]) -> None:
    """A broker that restarts after a kill rebuilds such queues from the log."""
    path = filled(tmp_path / "mq")
    queues = shutil.copytree(path / CONSUME_QUEUE_DIR / "t", tmp_path / "queues")
    delete_topic(path, "t")
    shutil.copytree(queues, path / CONSUME_QUEUE_DIR / "t")
    for name in gone:
        (path / name).unlink()
    with MessageStore.open(path) as store:
        assert store.topics() == {"other": 1}
        store.create_topic("t", 1)
        assert store.offsets("t", 0) == (12, 12)
        put(store, "new", 7)
        assert bodies(store) == new(7)
    assert verify(path).findings == []


def test_older_table_of_topics_loses_no_recreated_topic(tmp_path: Path) -> None:
    """Opening finds the recreated topic in the log. Restoring the newer table is safe, too."""
    path = filled(tmp_path / "mq")
    delete_topic(path, "t")
    older = (path / TOPICS_FILE).read_bytes()
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        put(store, "new", 7)
    newer = (path / TOPICS_FILE).read_bytes()
    (path / TOPICS_FILE).write_bytes(older)
    with MessageStore.open(path) as store:
        assert store.topics() == {"other": 1, "t": 1}
        assert bodies(store) == new(7)
    (path / TOPICS_FILE).write_bytes(newer)
    with MessageStore.open(path) as store:
        assert bodies(store) == new(7)
    assert verify(path).findings == []


def test_damaged_offset_of_a_deletion_hides_no_new_message(tmp_path: Path) -> None:
    path = filled(tmp_path / "mq")
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
        put(store, "new", 7)
    sound = (path / TOPICS_FILE).read_text()
    at = json.loads(sound)["deletedTopics"]["t"]["logOffset"]
    (path / TOPICS_FILE).write_text(sound.replace(f": {at},", f": {at}00,"))
    for _ in range(2):
        with pytest.raises(CorruptStore, match="deletedTopics is damaged"):
            MessageStore.open(path)
    (path / TOPICS_FILE).write_text(sound)
    with MessageStore.open(path) as store:
        assert bodies(store) == new(7)


@pytest.mark.parametrize("topic", ["BenchmarkTest", "%LMQ%device"])
def test_unlisted_topic_recreated_by_a_broker_is_visible(tmp_path: Path, topic: str) -> None:
    """A broker lists neither system topics, which it has in memory, nor light queues."""
    path = filled(tmp_path / "mq")

    def put_into_it(store: MessageStore, count: int) -> None:
        store.create_topic(topic, 1)
        store.put_many([Message(topic, f"new {n}".encode(), keys=("k",)) for n in range(count)])

    with MessageStore.open(path) as store:
        put_into_it(store, 12)
    for _ in range(2):
        delete_topic(path, topic)
        with MessageStore.open(path, read_only=True) as reader:
            assert reader.topics() == {"t": 1, "other": 1}
            with broker(path) as theirs:
                put_into_it(theirs, 3)
            content = json.loads((path / TOPICS_FILE).read_text())
            del content["topicConfigTable"][topic]
            (path / TOPICS_FILE).write_text(json.dumps(content))
            assert content["deletedTopics"].keys() == {topic}
            assert reader.topics() == {"t": 1, "other": 1, topic: 1}
        assert verify(path).findings == []
        with MessageStore.open(path, read_only=True) as reader:
            assert bodies(reader, topic) == new(3)
        with MessageStore.open(path) as store:
            assert bodies(store, topic) == new(3)
            assert len(store.query(topic, "k")) == 3
            store.put(Message(topic, b"new 3"))
            assert bodies(store, topic) == new(4)
        assert verify(path).findings == []


@pytest.mark.parametrize("after", [0, 1, 4, 5, 6, 10, 12, 13, 20])
@pytest.mark.parametrize("before", [1, 4, 5, 10, 12])
def test_recreated_topic_begins_at_the_old_end(tmp_path: Path, before: int, after: int) -> None:
    path = filled(tmp_path / "mq", first=before)
    with MessageStore.open(path, read_only=True) as reader:
        assert len(bodies(reader)) == before
        delete_topic(path, "t")
        for _ in range(2):
            with pytest.raises(UnknownTopic, match="topic 't'"):
                reader.offsets("t", 0)
        with MessageStore.open(path) as store:
            store.create_topic("t", 1)
            put(store, "new", after)
            assert bodies(store) == new(after)
            assert len(store.query("t", "k", 64)) == after
            assert store.consumer_offset("g", "t", 0) == min(2, before)
            assert reader.offsets("t", 0) == (before, before + after)
            assert bodies(reader) == new(after)
            put(store, "more", 1)
            assert reader.max_offset("t", 0) == before + after + 1
            assert len(store.query("t", "k", 64)) == after + 1
    assert verify(path).findings == []
    (path / PUBLISHED_END_FILE).unlink()  # forces a rebuild from the log
    with MessageStore.open(path) as store:
        assert bodies(store) == [*new(after), b"more 0"]


def test_running_scan_of_a_deleted_topic_ends_normally(tmp_path: Path) -> None:
    path = filled(tmp_path / "mq", first=300)
    with MessageStore.open(path, read_only=True) as reader:
        batches = reader.scan("t", 0, 0, 300, ["body"], max_rows=2)
        first = next(batches)
        delete_topic(path, "t")
        assert first["body"].to_pylist() == [b"old 0", b"old 1"]


@pytest.mark.parametrize("read_only", [True, False])
def test_reader_of_a_deleted_topic_gets_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, read_only: bool
) -> None:
    path = filled(tmp_path / "mq", first=300)
    check_queue = Topics.check_queue

    def check_and_delete(topics: Topics, topic: str, queue_id: int) -> int:
        monkeypatch.undo()
        found = check_queue(topics, topic, queue_id)
        delete_topic(path, "t")
        return found

    verbs: list[Callable[[MessageStore], object]] = [
        lambda store: store.scan("t", 0, *ends),
        lambda store: store.sizes("t", 0, *ends),
        lambda store: store.tags_codes("t", 0, *ends),
    ]
    for verb in verbs:
        with MessageStore.open(path, read_only=read_only) as reader:
            ends = reader.offsets("t", 0)
            monkeypatch.setattr(Topics, "check_queue", check_and_delete)
            with pytest.raises((UnknownTopic, OffsetLost)):
                verb(reader)
        with MessageStore.open(path) as store:
            store.create_topic("t", 1)
            put(store, "old", 300)


def test_deletion_killed_before_its_commit_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "mq")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Topics, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            delete_topic(path, "t")
    assert ConsumerOffsets(path).all_offsets() == {"t@g": {0: 2}, "other@g": {0: 1}}
    with MessageStore.open(path) as store:
        assert len(bodies(store)) == 12
    assert verify(path).findings == []
    delete_topic(path, "t")
    assert not (path / DELETED_DIR).exists()


def test_leftovers_of_a_dead_deletion_are_removed(tmp_path: Path) -> None:
    path = filled(tmp_path / "mq")
    shutil.copytree(path / CONSUME_QUEUE_DIR / "t", path / DELETED_DIR)
    delete_topic(path, "other")
    assert not (path / DELETED_DIR).exists()
    assert verify(path).findings == []


def test_unknown_and_system_topics_cannot_be_deleted(tmp_path: Path) -> None:
    path = filled(tmp_path / "mq")
    with pytest.raises(UnknownTopic, match=r"topic 'no such' does not exist. Existing topics: other, t"):
        delete_topic(path, "no such")
    with pytest.raises(InvalidTopic, match="one of RocketMQ's own"):
        delete_topic(path, "SCHEDULE_TOPIC_XXXX")
    with MessageStore.open(path) as store:
        assert len(bodies(store)) == 12


def test_topic_without_messages_is_deleted(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t")
    delete_topic(tmp_path / "mq", "t")
    with MessageStore.open(tmp_path / "mq") as store:
        assert store.topics() == {}


@settings(max_examples=15)
@given(lives=st.lists(st.tuples(st.integers(0, 17), st.booleans()), min_size=1, max_size=5))
def test_topic_is_recreated_repeatedly(tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, bool]]) -> None:
    path = filled(tmp_path_factory.mktemp("lives") / "mq")
    expected, begin, end = 0, 0, 12
    for count, is_recovered in lives:
        delete_topic(path, "t")
        with MessageStore.open(path) as store:
            store.create_topic("t", 1)
            put(store, "new", expected := count)
            begin, end = end, end + count
            assert store.offsets("t", 0) == (begin, end)
        if is_recovered:
            (path / PUBLISHED_END_FILE).unlink()
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == (begin, end)
        assert bodies(store) == new(expected)
        assert bodies(store, "other") == [b"kept"] * 3
    assert verify(path).findings == []
