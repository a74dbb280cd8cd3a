"""After a crash of the machine no file knows of more log than there is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from store import Message, MessageStore
from store.broker.deletion import delete_topic
from store.files.consumer_offsets import ConsumerOffsets
from store.upkeep.repair import repair
from store.upkeep.verify import verify
from tests.store.upkeep.crashed import SMALL, Crashed, another_boot, put


def test_no_group_stands_behind_what_was_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Or it would pass over what is put in its place."""
    path, after = tmp_path / "mq", tmp_path / "after"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        store.create_topic("u", 1)
        put(store, 9)
        store.flush()
        shutil.copytree(path, after)
        put(store, 9)
        store.put(Message("u", b"x"))
        store.commit_offsets("g", "t", {0: 6, 1: 2})
        store.commit_offsets("g", "u", {0: 1})
        ConsumerOffsets.of_instance(path, "b", "i").commit("b", "t", {2: 5})
        for folder in ("config", "consumers"):  # these are on the device
            shutil.copytree(path / folder, after / folder, dirs_exist_ok=True)
    another_boot(after)
    with MessageStore.open(after, config=SMALL) as store:
        assert [store.max_offset("t", queue) for queue in range(3)] == [3, 3, 3]
        assert [store.consumer_offset("g", "t", queue) for queue in range(3)] == [3, 2, None]
        assert store.consumer_offset("g", "u", 0) == 0
        assert ConsumerOffsets.of_instance(after, "b", "i").offsets("b", "t") == {2: 3}
    assert "group g stood behind what the log has now" in caplog.text


def test_groups_of_any_name(crashed: Crashed) -> None:
    """A broker takes them all; a key without a group is none's."""
    path, _, _ = crashed
    file = path / "config/consumerOffset.json"
    file.write_text(json.dumps({"offsetTable": {"t@a.b": {"0": 99, "1": 5}, "t@": {"2": 99}, "t": {"0": 99}}}))
    with MessageStore.open(path) as store:
        ends = [store.max_offset("t", queue) for queue in range(3)]
    assert ends[1] > 5
    found = json.loads(file.read_text())["offsetTable"]
    assert found == {"t@a.b": {"0": ends[0], "1": 5}, "t@": {"2": ends[2]}, "t": {"0": 99}}


def test_a_topic_that_was_deleted_behind_the_logs_end_is_there_when_it_is_made_again(tmp_path: Path) -> None:
    """As where a backup has a newer table of topics, which says up to where messages do not count, than log."""
    live, device = tmp_path / "live", tmp_path / "mq"
    with MessageStore.open(live, config=SMALL) as store:
        store.create_topic("t", 1)
        store.create_topic("u", 1)
        store.put(Message("u", b"flushed", keys=("k",)))
        store.flush()
        shutil.copytree(live, device)
        store.put_many([Message("t", b"old")] * 20)
        shutil.copytree(live, tmp_path / "killed")
    delete_topic(tmp_path / "killed", "t")
    shutil.copytree(tmp_path / "killed" / "config", device / "config", dirs_exist_ok=True)
    another_boot(device)
    with MessageStore.open(device) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"%d" % number) for number in range(3)])
    assert verify(device).findings == []
    repair(device)
    shutil.rmtree(device / "consumequeue")
    with MessageStore.open(device) as store:
        assert [message.body for message in store.get_message("g", "t", 0, 0).messages] == [b"0", b"1", b"2"]
        assert store.max_offset("u", 0) == 1


def test_what_was_deleted_before_the_end_stays_so(crashed: Crashed) -> None:
    path, _, _ = crashed
    delete_topic(path, "t")
    deleted = json.loads((path / "config/topics.json").read_text())["deletedTopics"]
    MessageStore.open(path).close()
    assert json.loads((path / "config/topics.json").read_text())["deletedTopics"] == deleted
