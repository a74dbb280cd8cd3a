from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from store import CorruptStore, InvalidGroup, MessageStore, OffsetOutOfRange, StoreConfig
from store.append.locks import StoreLock
from store.disk.consumer_offsets import ConsumerOffsets, check_group_name, delay_offsets
from store.model.log_protocol import Queue
from tests.store.read.test_golden import GOLDEN

ROOT = Path(__file__).parents[3]


def write(path: Path, name: str, text: str) -> None:
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / name).write_text(text)


def read(path: Path, name: str) -> dict[str, object]:
    content = json.loads((path / "config" / name).read_text())
    assert content.pop("dataVersion").keys() == {"counter", "stateVersion", "timestamp"}
    return content


def counter(path: Path, name: str) -> object:
    return json.loads((path / "config" / name).read_text())["dataVersion"]["counter"]


def test_offsets_are_written_in_rocketmqs_format(tmp_path: Path) -> None:
    groups, other = ConsumerOffsets(tmp_path), ConsumerOffsets(tmp_path)
    assert groups.offsets("grp", "TopicTest") == {}
    groups.commit_positions("grp", {Queue("TopicTest", 0): 12})
    other.commit_positions("grp", {Queue("TopicTest", 1): 7})
    groups.commit_positions("grp", {Queue("TopicTest", 0): 3})
    assert groups.offsets("grp", "TopicTest") == other.offsets("grp", "TopicTest") == {0: 3, 1: 7}
    assert groups.offsets("grp", "Topic") == groups.offsets("g", "TopicTest") == {}
    assert read(tmp_path, "consumerOffset.json") == {"offsetTable": {"TopicTest@grp": {"0": 3, "1": 7}}}
    assert read(tmp_path, "consumerOffset.json.bak") == {"offsetTable": {"TopicTest@grp": {"0": 12, "1": 7}}}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("{}", (16, 1)),
        ('{"retryMaxTimes":null,"retryQueueNums":null}', (16, 1)),
        ('{"retryMaxTimes":"3","retryQueueNums":2}', (3, 2)),
        ('{"retryMaxTimes":-1,"retryQueueNums":-1}', (0, 1)),
        ('{"retryMaxTimes":[]}', "retryMaxTimes of g is a list"),
        ('{"retryMaxTimes":1.5}', "retryMaxTimes of g is 1.5"),
        ('{"retryQueueNums":65537}', "retryQueueNums of g is 65537, not a number from 0 to 65536"),
    ],
)
def test_retry_limit_of_a_group(tmp_path: Path, settings: str, found: tuple[int, int] | str) -> None:
    write(tmp_path, "subscriptionGroup.json", f'{{"subscriptionGroupTable":{{"g":{settings}}}}}')
    if isinstance(found, str):
        with pytest.raises(CorruptStore, match=found):
            ConsumerOffsets(tmp_path).settings.retries("g")
    else:
        assert ConsumerOffsets(tmp_path).settings.retries("g") == found


def test_offsets_unknown_to_a_broker_are_missing(tmp_path: Path) -> None:
    groups = ConsumerOffsets(tmp_path)
    write(tmp_path, "consumerOffset.json", '{"offsetTable":{"T@g":{-1:7,0:3,1:-1},"T@other":{0:5}}}')
    assert groups.offsets("g", "T") == {0: 3}
    assert groups.all_offsets() == {"T@g": {0: 3}, "T@other": {0: 5}}
    groups.commit_positions("g", {Queue("T", 1): 4})
    assert groups.offsets("g", "T") == {0: 3, 1: 4}


def test_negative_offset_is_refused(tmp_path: Path) -> None:
    groups = ConsumerOffsets(tmp_path)
    groups.commit_positions("grp", {Queue("TopicTest", 0): 0})
    with pytest.raises(OffsetOutOfRange, match="group grp, TopicTest, queue 1: -1 is no offset"):
        groups.commit_positions("grp", {Queue("TopicTest", 0): 7, Queue("TopicTest", 1): -1})
    assert groups.offsets("grp", "TopicTest") == {0: 0}


def test_other_content_of_a_brokers_file_is_kept(tmp_path: Path) -> None:
    write(
        tmp_path,
        "consumerOffset.json",
        '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1690000000000},"groupTopicMap":{"grp":["TopicTest"]},'
        '"offsetTable":{"TopicTest@grp":{0:12,1:7},"%RETRY%grp@grp":{0:1}}}',
    )
    groups = ConsumerOffsets(tmp_path)
    assert groups.offsets("grp", "TopicTest") == {0: 12, 1: 7}
    assert groups.offsets("grp", "%RETRY%grp") == {0: 1}
    assert groups.names() == ["grp"]
    groups.commit_positions("grp", {Queue("TopicTest", 2): 1})
    assert read(tmp_path, "consumerOffset.json") == {
        "groupTopicMap": {"grp": ["TopicTest"]},
        "offsetTable": {"TopicTest@grp": {"0": 12, "1": 7, "2": 1}, "%RETRY%grp@grp": {"0": 1}},
    }


def test_groups_are_written_in_rocketmqs_format(tmp_path: Path) -> None:
    groups = ConsumerOffsets(tmp_path)
    assert groups.settings.of("grp") is None
    groups.settings.create("grp")
    before = (tmp_path / "config/subscriptionGroup.json").read_bytes()
    groups.settings.create("grp")
    assert (tmp_path / "config/subscriptionGroup.json").read_bytes() == before
    groups.commit_positions("another", {Queue("t", 0): 1})
    assert groups.names() == ["another", "grp"]


def test_new_group_has_rocketmqs_settings(tmp_path: Path) -> None:
    shutil.unpack_archive(GOLDEN / "recreated-topic-5.4.tar.gz", tmp_path)
    theirs = ConsumerOffsets(tmp_path / "store").settings.of("puller")
    ours = ConsumerOffsets(tmp_path)
    ours.settings.create("puller")
    assert ours.settings.of("puller") == theirs


def test_settings_of_a_group_are_changed(tmp_path: Path) -> None:
    groups = ConsumerOffsets(tmp_path)
    groups.settings.configure("grp", {"retryMaxTimes": 3, "groupName": "another"})
    groups.settings.create("plain")
    groups.settings.configure("grp", {"consumeEnable": False})
    changed = {"groupName": "grp", "retryMaxTimes": 3, "consumeEnable": False}
    assert groups.settings.all() == {
        "grp": {**(groups.settings.of("plain") or {}), **changed},
        "plain": groups.settings.of("plain"),
    }
    assert counter(tmp_path, "subscriptionGroup.json") == 4, "create and set, create, set"


def test_deleted_group_loses_its_settings(tmp_path: Path) -> None:
    groups = ConsumerOffsets(tmp_path)
    for group in ("grp", "other"):
        groups.settings.create(group)
        groups.commit_positions(group, {Queue("t", 0): 1})
        groups.commit_positions(group, {Queue("u", 1): 2})
    for _ in range(2):
        groups.delete("grp", with_offsets=False)
        assert groups.settings.all().keys() == {"other"}
        assert groups.all_offsets().keys() == {"t@grp", "u@grp", "t@other", "u@other"}
        assert counter(tmp_path, "subscriptionGroup.json") == 3, "the second call writes nothing"
    groups.set_positions("a@b", {Queue("t", 0): 5})
    for _ in range(2):
        groups.delete("grp", with_offsets=True)
        assert groups.all_offsets().keys() == {"t@other", "u@other", "t@a@b"}
        assert counter(tmp_path, "consumerOffset.json") == 6
    groups.delete("a@b", with_offsets=True)
    assert groups.all_offsets() == {"t@other": {0: 1}, "u@other": {1: 2}}


def test_positions_of_groups_are_read(tmp_path: Path) -> None:
    groups = ConsumerOffsets(tmp_path)
    assert groups.all_positions() == {}
    groups.settings.create("idle")
    groups.set_positions("a@b", {Queue("t", 0): 1, Queue("t", 2): 3, Queue("u", 0): 2})
    groups.commit_positions("grp", {Queue("t", 1): 7})
    assert groups.names() == ["a@b", "grp", "idle"]
    assert groups.all_positions() == {
        "a@b": {Queue("t", 0): 1, Queue("t", 2): 3, Queue("u", 0): 2},
        "grp": {Queue("t", 1): 7},
        "idle": {},
    }
    assert groups.positions("a@b", ["t", "v"]) == {Queue("t", 0): 1, Queue("t", 2): 3}
    assert groups.positions("a@b", ["u", "t"]) == groups.all_positions()["a@b"]


def test_groups_of_a_broker_are_kept(tmp_path: Path) -> None:
    theirs = '{"forbiddenTable":{},"subscriptionGroupTable":{"grp":{"groupName":"grp","retryMaxTimes":3}}}'
    write(tmp_path, "subscriptionGroup.json", theirs)
    ConsumerOffsets(tmp_path).settings.create("other")
    content = read(tmp_path, "subscriptionGroup.json")
    assert content["forbiddenTable"] == {}
    assert content["subscriptionGroupTable"]["grp"] == {"groupName": "grp", "retryMaxTimes": 3}  # type: ignore[index]


def test_delay_levels_are_read(tmp_path: Path) -> None:
    assert delay_offsets(tmp_path) == {}
    write(tmp_path, "delayOffset.json", '{\n\t"offsetTable":{1:5,3:7\n\t}\n}')
    assert delay_offsets(tmp_path) == {1: 5, 3: 7}


def test_files_of_a_broker_are_read() -> None:
    for path in (Path(__file__).parents[2] / "golden").glob("*-4.9"):
        assert delay_offsets(path) == {}


@pytest.mark.parametrize("name", ["", "a b", "a@b", "../g", "g" * 121])
def test_wrong_group_names_are_refused(tmp_path: Path, name: str) -> None:
    for write_it in (
        ConsumerOffsets(tmp_path).settings.create,
        lambda group: ConsumerOffsets(tmp_path).commit_positions(group, {Queue("t", 0): 1}),
    ):
        with pytest.raises(
            InvalidGroup, match=r"group .*: (only letters|the name has 121 characters, and at most 120)"
        ):
            write_it(name)
    assert not list(tmp_path.iterdir())
    check_group_name("g" * 120)


def test_store_commits_and_reads_offsets(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(mappedFileSizeCommitLog=4096)) as store:
        store.create_topic("t", 2)
        assert store.consumer_offset("grp", "t", 0) is None
        store.commit_offsets("grp", "t", {0: 5})
        with MessageStore.open(tmp_path, read_only=True) as reader:
            assert (reader.consumer_offset("grp", "t", 0), reader.consumer_offset("grp", "t", 1)) == (5, None)
            reader.commit_offsets("grp", "t", {0: 6})
        assert store.consumer_offset("grp", "t", 0) == 6


COMMITS = """
import sys
from store import MessageStore
with MessageStore.open(sys.argv[1], read_only=True) as store:
    for offset in range(1, 51):
        store.commit_offsets("group" + sys.argv[2], "t", {0: offset})
"""


def test_concurrent_commits_do_not_block_appends(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        program = [sys.executable, "-c", COMMITS, str(tmp_path)]
        readers = [subprocess.Popen([*program, str(number)], cwd=ROOT) for number in range(3)]
        assert [reader.wait() for reader in readers] == [0, 0, 0]
        assert [store.consumer_offset(f"group{number}", "t", 0) for number in range(3)] == [50, 50, 50]
        with MessageStore.open(tmp_path, read_only=True) as reader, StoreLock(tmp_path).held():
            reader.commit_offsets("g", "t", {0: 1})
