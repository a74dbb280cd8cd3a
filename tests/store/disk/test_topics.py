from __future__ import annotations

import json
import os
import re
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from store import CorruptStore, InvalidArgument, InvalidTopic, MessageStore, UnknownQueue, UnknownTopic
from store.disk.admin_files import read_json
from store.disk.topic_table import Tombstone, has_queues
from store.disk.topics import Topics
from store.format.topic_names import check_topic_name, is_internal_topic


@pytest.mark.parametrize("name", ["a", "A-b_9|%", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250])
def test_rocketmqs_names_are_accepted(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "only letters"),
        ("a b", "only letters"),
        ("../x", "only letters"),
        ("é", "only letters"),
        ("a\n", "only letters"),
        ("$start", "only letters"),
        ("t" * 128, "the name has 128 characters, and at most 127"),
        ("%RETRY%" + "g" * 249, "the name has 256 characters, and at most 255"),
    ],
)
def test_wrong_names_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTopic, match=message):
        Topics(tmp_path).create(name, 4)
    assert not list(tmp_path.iterdir())


def test_topics_are_created_grow_and_never_shrink(tmp_path: Path) -> None:
    topics, other = Topics(tmp_path), Topics(tmp_path)
    assert topics.queue_count("t") == 0
    assert topics.create("t", 4) == 4
    assert other.queue_count("t") == 4
    before = (tmp_path / "config/topics.json").read_bytes()
    assert topics.create("t", 4) == 4
    assert (tmp_path / "config/topics.json").read_bytes() == before
    assert other.create("t", 6) == 6
    assert topics.queue_counts() == {"t": 6}
    for fewer in (5, 0, -1):
        with pytest.raises(InvalidTopic, match=f"topic 't' has 6 queues, so {fewer} is too few. .* only be added"):
            topics.create("t", fewer)
    with pytest.raises(InvalidTopic):
        topics.create("new", 0)


def test_file_has_rocketmqs_format(tmp_path: Path) -> None:
    Topics(tmp_path).create("orders", 4)
    content = json.loads((tmp_path / "config/topics.json").read_text())
    assert content["dataVersion"]["counter"] == 1
    assert content["topicConfigTable"]["orders"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }


def test_unknown_content_of_a_brokers_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text(
        '{"dataVersion":{"counter":3},"topicConfigTable":{"a":{"readQueueNums":8,"writeQueueNums":8,"perm":4,'
        '"attributes":{"+queue.type":"SimpleCQ"}}},"other":{0:5,1:"{2:3}"}}'
    )
    topics = Topics(tmp_path)
    assert topics.queue_counts() == {"a": 8}
    topics.create("b", 2)
    content = read_json(tmp_path / "config/topics.json")
    assert content["topicConfigTable"]["a"] == {
        "readQueueNums": 8,
        "writeQueueNums": 8,
        "perm": 4,
        "attributes": {"+queue.type": "SimpleCQ"},
    }
    assert content["other"]["0"] == 5
    assert content["dataVersion"]["counter"] == 4
    assert "other" in read_json(tmp_path / "config/topics.json.bak")


def test_queues_on_disk_count(tmp_path: Path) -> None:
    for name in ("t/0", "t/3", "t/x", "empty"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    (tmp_path / "consumequeue/file").touch()
    topics = Topics(tmp_path)
    assert topics.table().on_disk == {"t": [0, 3], "empty": []}
    assert topics.queue_counts() == {"empty": 0, "t": 4}


def test_folder_with_an_impossible_number_is_skipped(tmp_path: Path) -> None:
    for name in ("0", "20261121", "65535", "65536", "007", "٣", "-1"):
        (tmp_path / "consumequeue/t" / name).mkdir(parents=True)
    topics = Topics(tmp_path)
    with pytest.warns(
        UserWarning, match=r"consumequeue/t/\d+: ignored, because no topic has \d+ queues. Move the folder out"
    ):
        assert topics.table().queues_on_disk == [("t", 0), ("t", 65_535)]


@pytest.mark.parametrize("queues", [65_537, 2**31, 2**70, 2.0, "4", True, None])
def test_wrong_numbers_of_queues_are_refused(tmp_path: Path, queues: object) -> None:
    with pytest.raises(InvalidArgument, match="queues="):
        Topics(tmp_path).create("t", queues)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_wrong_name_in_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    for name in ("", ".", "..", "a/b", "a\0"):
        (tmp_path / "config/topics.json").write_text(json.dumps({"topicConfigTable": {name: {"readQueueNums": 1}}}))
        with pytest.raises(CorruptStore, match=r"topics\.json: .* in topicConfigTable is no name of a topic. Correct"):
            Topics(tmp_path).queue_counts()


def test_name_of_a_deleted_topic_cannot_leave_the_store(tmp_path: Path) -> None:
    """The store removes folders of deleted topics that a broker recreates."""
    elsewhere, path = tmp_path / "elsewhere/t", tmp_path / "mq"
    (elsewhere / "0").mkdir(parents=True)
    (elsewhere / "0/precious").write_bytes(b"")
    with MessageStore.open(path) as store:
        store.create_topic("t", 1)
    (path / "consumequeue").mkdir()
    for name in ("../../elsewhere/t", str(elsewhere), "", ".", ".."):
        file = path / "config/topics.json"
        content = json.loads(file.read_text()) | {"deletedTopics": {name: 1, "t": 1}}
        file.write_text(json.dumps(content))
        with pytest.raises(CorruptStore, match=r"topics\.json: .* in deletedTopics is no name of a topic. Correct"):
            MessageStore.open(path)
        assert (elsewhere / "0/precious").exists()


@pytest.mark.parametrize("count", [-1, 65_537, "four", True])
def test_wrong_number_of_queues_in_the_file_is_an_error(tmp_path: Path, count: object) -> None:
    (tmp_path / "config").mkdir()
    table = {
        "none": {},
        "null": {"readQueueNums": None},
        "zero": {"readQueueNums": 0},
        "most": {"readQueueNums": 65_536},
    }
    file = tmp_path / "config/topics.json"
    file.write_text(json.dumps({"topicConfigTable": table}))
    assert Topics(tmp_path).queue_counts() == {"most": 65_536, "none": 0, "null": 0, "zero": 0}
    file.write_text(json.dumps({"topicConfigTable": {**table, "t": {"readQueueNums": count}}}))
    with pytest.raises(CorruptStore, match="readQueueNums of t"):
        Topics(tmp_path).queue_counts()


def test_queue_ids_are_checked(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    with pytest.raises(UnknownTopic, match=r"topic 't' does not exist. Existing topics: none"):
        topics.check_queue("t", 0)
    topics.create("t", 2)
    topics.create("u", 1)
    assert [topics.check_queue("t", queue_id) for queue_id in range(2)] == [0, 1]
    for queue_id in (-1, 2):
        with pytest.raises(UnknownQueue, match=f"topic 't' has queues 0 to 1, not {queue_id}"):
            topics.check_queue("t", queue_id)
    with pytest.raises(InvalidArgument, match="queue_id="):
        topics.check_queue("t", "0")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic, match="Existing topics: t, u"):
        topics.known("v")


def test_deleted_topic_keeps_its_ends(tmp_path: Path) -> None:
    topics, other = Topics(tmp_path), Topics(tmp_path)
    topics.must_not_be_deleted("t")
    topics.create("t", 2)
    assert topics.begin("t", 1) == 0
    topics.must_not_be_deleted("t")
    other.delete("t", Tombstone(100, (7, 0)))
    assert [topics.begin("t", queue_id) for queue_id in range(3)] == [7, 0, 0]
    with pytest.raises(UnknownTopic, match=r"topic 't' was deleted\. Nothing was appended\. Create"):
        topics.must_not_be_deleted("t")
    other.create("t", 2)
    assert topics.begin("t", 0) == 7
    topics.must_not_be_deleted("t")
    other.delete("a broker's, not listed", Tombstone(120))
    assert topics.deletions() == {"t": 100, "a broker's, not listed": 120}


def test_queues_created_by_a_broker_are_seen_without_a_table(tmp_path: Path) -> None:
    changes: list[None] = []
    topics, other = Topics(tmp_path, lambda: changes.append(None)), Topics(tmp_path)
    other.create("listed", 1)
    other.delete("%LMQ%light", Tombstone(100))
    assert (topics.queue_count("a"), topics.queue_count("b")) == (0, 0)
    with pytest.raises(UnknownTopic):
        topics.must_not_be_deleted("%LMQ%light")
    asked: list[tuple[str, Callable[[str], object], object]] = [
        ("a", topics.queue_count, 1),
        ("b", topics.queue_count, 1),
        ("%LMQ%light", topics.must_not_be_deleted, None),
    ]
    for name, ask, answer in asked:
        (tmp_path / "consumequeue" / name / "0").mkdir(parents=True)
        assert ask(name) == answer
    assert len(changes) == 1, "the change is noticed at the first check"
    other.delete("b", Tombstone(120))
    assert (topics.table().deleted, topics.queue_count("b"), sorted(topics.table().on_disk)) == (
        {"b"},
        0,
        ["%LMQ%light", "a"],
    )
    other.create("listed", 2)
    assert (topics.queue_count("listed"), len(changes)) == (2, 3)


def test_deletions_beyond_the_end_of_the_log_are_dropped(tmp_path: Path) -> None:
    topics, file = Topics(tmp_path), tmp_path / "config/topics.json"
    for name, end in (("t", 40), ("u", 100)):
        topics.create(name, 1)
        topics.delete(name, Tombstone(end))
    before = file.read_bytes()
    topics.lower_tombstones(100)
    assert file.read_bytes() == before
    topics.lower_tombstones(60)
    assert topics.deletions() == {"t": 40, "u": 60}


@pytest.mark.parametrize(
    ("said", "damaged"), [("2415", "2515"), ("2415", "99999999"), ('"t": {', '"u": {'), ("7", "8")]
)
def test_damaged_offsets_of_deleted_topics_are_an_error(tmp_path: Path, said: str, damaged: str) -> None:
    """Otherwise existing messages would count as deleted."""
    topics, file = Topics(tmp_path), tmp_path / "config/topics.json"
    topics.create("t", 1)
    topics.delete("t", Tombstone(2415, (7,)))
    topics.create("t", 1)
    assert topics.deletions() == {"t": 2415}
    text = file.read_text()
    file.write_text(text.replace(said, damaged))
    with pytest.raises(CorruptStore, match="deletedTopics is damaged: its checksum deletedTopicsCrc is wrong"):
        topics.deletions()
    file.write_text(re.sub(r'"deletedTopicsCrc": \d+,', "", text))
    assert topics.deletions() == {"t": 2415}, "an earlier version wrote none"


def test_records_of_existing_topics_count(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    assert topics.table().is_there("any", 0), "without a table any topic may exist"
    for name in ("listed", "again"):
        topics.create(name, 1)
    for name in ("queue/0", "empty"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    topics.delete("again", Tombstone(100))
    topics.create("again", 1)
    is_there = topics.table().is_there
    there = {name for name in ("listed", "again", "queue", "empty", "%LMQ%light", "unknown") if is_there(name, 0)}
    assert there == {"listed", "queue", "%LMQ%light"}
    assert (is_there("again", 99), is_there("again", 100)) == (False, True)
    assert (has_queues(tmp_path, "queue"), has_queues(tmp_path, "empty")) == (True, False)


def test_topic_with_fewer_writable_than_readable_queues(tmp_path: Path) -> None:
    topics, file = Topics(tmp_path), tmp_path / "config/topics.json"
    topics.create("t", 4)
    content = json.loads(file.read_text())
    content["topicConfigTable"]["t"]["writeQueueNums"] = 2
    file.write_text(json.dumps(content))
    topics.create("t", 4)
    assert json.loads(file.read_text())["topicConfigTable"]["t"]["writeQueueNums"] == 4


def test_thread_does_not_use_an_older_table_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread read the table before the change and finishes between this thread's check and its answer."""
    topics, read, done = Topics(tmp_path), threading.Event(), threading.Event()
    topics.create("t", 1)

    def read_early(path: Path) -> dict[str, Any]:
        content = read_json(path)
        if threading.current_thread() is early:
            read.set()
            done.wait()
        return content

    def let_it_end(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        if event == "return" and frame.f_code is Topics._seen_table.__code__:
            done.set()
            early.join()
        return let_it_end

    monkeypatch.setattr("store.disk.topic_table.read_json", read_early)
    early = threading.Thread(target=topics.queue_count, args=("t",))
    early.start()
    read.wait()
    Topics(tmp_path).delete("t", Tombstone(1))
    sys.settrace(let_it_end)
    try:
        assert topics.queue_count("t") == 0
    finally:
        sys.settrace(None)
        done.set()


def test_change_within_one_clock_tick_is_seen(tmp_path: Path) -> None:
    mine, other = Topics(tmp_path), Topics(tmp_path)
    for queues in range(1, 50):
        other.create("t", queues)
        assert mine.queue_count("t") == queues
    os.remove(tmp_path / "config/topics.json")
    assert mine.queue_count("t") == 48


@pytest.mark.parametrize(
    "name", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_REVIVE_LOG_c", "%RETRY%g", "%DLQ%g", "%LMQ%d"]
)
def test_system_topics_are_internal(name: str) -> None:
    assert is_internal_topic(name)


@pytest.mark.parametrize("name", ["orders", "TBW1020", "RMQ_SYS_MINE", "RETRY", "a%RETRY%b"])
def test_topics_of_users_are_not_internal(name: str) -> None:
    assert not is_internal_topic(name)


def test_tombstone_keeps_the_ends_of_all_earlier_queues(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    for at, ends in ((100, (3, 5)), (200, (4,)), (300, (4, 5, 1))):
        topics.create("t", len(ends))
        topics.delete("t", Tombstone(at, ends))
    assert [topics.begin("t", queue_id) for queue_id in range(4)] == [4, 5, 1, 0]
    assert topics.deletions() == {"t": 300}
    topics.restarted([("t", 1)])
    assert [topics.begin("t", queue_id) for queue_id in range(4)] == [4, 0, 1, 0]


def test_tombstone_of_an_earlier_version_has_no_ends(tmp_path: Path) -> None:
    topics, file = Topics(tmp_path), tmp_path / "config/topics.json"
    topics.create("u", 1)
    said = {"t": 100}
    content = json.loads(file.read_text()) | {"deletedTopics": said, "deletedTopicsCrc": zlib.crc32(b'{"t": 100}')}
    file.write_text(json.dumps(content))
    assert (topics.deletions(), topics.begin("t", 0)) == (said, 0)
    topics.delete("u", Tombstone(200, (7,)))
    assert (topics.deletions(), topics.begin("t", 0), topics.begin("u", 0)) == ({"t": 100, "u": 200}, 0, 7)
