"""After a machine crash or a restored backup, no file refers to more log than exists."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from store import ConsumeFromWhere, Consumer, ConsumerConfig, CorruptSegment, Message, MessageStore
from store.api.message_store import delete_topic
from store.append.published_end import PublishedEnd
from store.broker.transactions import Transactions
from store.disk.consume_queues import ConsumeQueues
from store.disk.consumer_offsets import ConsumerOffsets
from store.format.layout import segment_name
from store.model.log_protocol import Queue
from store.upkeep.step_back import step_back
from store.upkeep.verify import repair, verify
from tests.children import ended
from tests.store.upkeep.crashed import SMALL, Crashed, another_boot, put

reboots = pytest.mark.parametrize("reboot", [True, False])


@reboots
def test_group_offsets_are_cut_to_the_end_after_a_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, reboot: bool
) -> None:
    """Otherwise the group would skip the messages that replace the lost ones."""
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
        ConsumerOffsets.of_instance(path, "b", "i").commit_positions("b", {Queue("t", 2): 5})
        for folder in ("config", "consumers"):  # these are on the device
            shutil.copytree(path / folder, after / folder, dirs_exist_ok=True)
    if reboot:
        another_boot(after)
    with MessageStore.open(after, config=SMALL) as store:
        assert [store.max_offset("t", queue) for queue in range(3)] == [3, 3, 3]
        assert [store.consumer_offset("g", "t", queue) for queue in range(3)] == [3, 2, None]
        assert store.consumer_offset("g", "u", 0) == 0
        assert ConsumerOffsets.of_instance(after, "b", "i").offsets("b", "t") == {2: 3}
    assert "group g were after the end of the log" in caplog.text


def test_lost_commits_of_a_dead_member_are_not_inherited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The backup was taken while a member was alive, and its files were copied last."""
    path, after = tmp_path / "mq", tmp_path / "after"
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"old", queue_id=queue) for queue in (0, 0, 1)])
        store.flush()
    shutil.copytree(path, after)
    with MessageStore.open(path) as store:
        store.put_many([Message("t", b"gone", queue_id=0)] * 5)
        with Consumer(path, "g", "t", config=config) as consumer:
            for count, message in enumerate(consumer, 1):
                message.stored()
                if count == 8:
                    break
            for folder in ("config", "consumers"):
                shutil.copytree(path / folder, after / folder, dirs_exist_ok=True)
    with MessageStore.open(after) as store:
        store.put_many([Message("t", b"%d" % number, queue_id=0) for number in range(9)])
        store.put(Message("t", b"last", queue_id=1))
        found = []
        with Consumer(after, "g", "t", config=config) as consumer:
            for message in consumer:
                found.append(message.body)
                if {b"8", b"last"} <= set(found):
                    break
    assert {*found} >= {b"%d" % number for number in range(9)}
    assert "were after the end of the log" in caplog.text


def test_group_offsets_are_cut_after_an_undone_append(tmp_path: Path) -> None:
    """A broker serves the remains of a dead append as messages; after the broker is killed, they are dropped."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"0"))
    child = os.fork()
    if child == 0:
        killed = MessageStore.open(tmp_path)
        PublishedEnd.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        killed.put_many([Message("t", b"dead")] * 3)
    assert ended(child) == -signal.SIGKILL
    ConsumerOffsets(tmp_path).commit_positions("g", {Queue("t", 0): 4})
    with MessageStore.open(tmp_path) as store:
        store.put_many([Message("t", b"%d" % number) for number in range(1, 6)])
        assert store.consumer_offset("g", "t", 0) == 1


def test_group_offsets_of_missing_queues_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The group would skip the first messages of the recreated queue. Brokers keep offsets of deleted topics."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"x"))
    (tmp_path / "config/consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"gone@g": {"0": 7}, "t@g": {"0": 1, "1": 3}}})
    )
    with MessageStore.open(tmp_path) as store:
        store.create_topic("gone", 1)
        store.create_topic("t", 2)
        assert store.consumer_offset("g", "gone", 0) == 0
        assert [store.consumer_offset("g", "t", queue) for queue in range(2)] == [1, 0]
    assert "group g were after the end of the log" in caplog.text


def test_group_offsets_before_the_end_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Regardless of the saved ends: existing queues are read themselves."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"x", queue_id=0)] * 5)
        end = store.confirm_offset
    file = tmp_path / "config/consumerOffset.json"
    said = {"t@g": {"0": 5, "1": 0}, "none@g": {"0": 0}, "batches@g": {"0": 9}}
    file.write_text(json.dumps({"offsetTable": said}))
    topics = json.loads((tmp_path / "config/topics.json").read_text())
    topics["topicConfigTable"]["batches"] = {"readQueueNums": 1, "attributes": {"queue.type": "BatchCQ"}}
    (tmp_path / "config/topics.json").write_text(json.dumps(topics))
    step_back(tmp_path, ConsumeQueues(tmp_path, None, writable=False), end)
    MessageStore.open(tmp_path).close()
    assert json.loads(file.read_text())["offsetTable"] == said
    assert caplog.text == ""


@reboots
def test_transaction_ended_beyond_the_end_is_open_again(tmp_path: Path, *, reboot: bool) -> None:
    """The log may still have an op message of a later half message."""
    live, back = tmp_path / "live", tmp_path / "back"
    with MessageStore.open(live, config=SMALL) as store:
        store.create_topic("t", 1)
        transactions = Transactions(store, "sellers")
        first, second = transactions.prepare([Message("t", b"first"), Message("t", b"second")])
        transactions.commit([second])
    shutil.copytree(live, back)
    with MessageStore.open(live) as store:
        transactions = Transactions(store, "sellers")
        transactions.commit([first])
        transactions.check(lambda _: pytest.fail("no transaction is open"), immunity=0)
    shutil.copytree(live / "config", back / "config", dirs_exist_ok=True)
    if reboot:
        another_boot(back)
    with MessageStore.open(back) as store:
        transactions = Transactions(store, "sellers")
        assert [message.body for _, message in transactions.open(immunity=0)] == [b"first"]


def test_any_group_name_is_handled(crashed: Crashed) -> None:
    """A broker accepts any group name; a key without a group is ignored."""
    path, _, _ = crashed
    file = path / "config/consumerOffset.json"
    file.write_text(json.dumps({"offsetTable": {"t@a.b": {"0": 99, "1": 5}, "t@": {"2": 99}, "t": {"0": 99}}}))
    with MessageStore.open(path) as store:
        ends = [store.max_offset("t", queue) for queue in range(3)]
    assert ends[1] > 5
    found = json.loads(file.read_text())["offsetTable"]
    assert found == {"t@a.b": {"0": ends[0], "1": 5}, "t@": {"2": ends[2]}, "t": {"0": 99}}


@reboots
@pytest.mark.parametrize("made_again", [True, False], ids=["made again there", "not"])
def test_deletion_beyond_the_logs_end_hides_no_new_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, reboot: bool, made_again: bool
) -> None:
    """As when a backup has a newer table of topics than log, which says up to where messages do not count."""
    live, device = tmp_path / "live", tmp_path / "mq"
    with MessageStore.open(live, config=SMALL) as store:
        store.create_topic("t", 1)
        store.create_topic("u", 1)
        store.put(Message("u", b"flushed", keys=("k",)))
        store.put(Message("t", b"older"))
        store.flush()
        shutil.copytree(live, device)
        store.put_many([Message("t", b"old")] * 20)
        shutil.copytree(live, tmp_path / "killed")
    delete_topic(tmp_path / "killed", "t")
    if made_again:
        with MessageStore.open(tmp_path / "killed") as store:
            store.create_topic("t", 1)
    shutil.copytree(tmp_path / "killed" / "config", device / "config", dirs_exist_ok=True)
    if reboot:
        another_boot(device)
    with MessageStore.open(device) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"%d" % number) for number in range(3)])
    assert "topic t was deleted after the present end of the log" in caplog.text
    assert verify(device).findings == []
    another_boot(device)
    with MessageStore.open(device) as store:
        assert store.offsets("t", 0) == (21, 24)
    repair(device)
    shutil.rmtree(device / "consumequeue")
    with MessageStore.open(device) as store:
        assert [message.body for message in store.get_message("g", "t", 0, 21).messages] == [b"0", b"1", b"2"]
        assert store.max_offset("u", 0) == 1


def test_deletion_before_the_end_is_kept(crashed: Crashed) -> None:
    path, _, _ = crashed
    delete_topic(path, "t")
    deleted = json.loads((path / "config/topics.json").read_text())["deletedTopics"]
    MessageStore.open(path).close()
    assert json.loads((path / "config/topics.json").read_text())["deletedTopics"] == deleted


def test_damaged_queue_does_not_block_cuts_in_others(path: Path) -> None:
    """Reading that queue raises an error; in the other queues the group would skip the next messages."""
    with MessageStore.open(path) as store:
        store.create_topic("u", 1)
        store.put(Message("u", b"x"))
        for group in ("g", "h"):
            for topic in ("t", "u"):
                store.commit_offsets(group, topic, {0: 1})
    file = path / "config/consumerOffset.json"
    offsets = json.loads(file.read_text())
    offsets["offsetTable"] = {name: {"0": 99} for name in offsets["offsetTable"]}  # from a newer store
    file.write_text(json.dumps(offsets))
    (path / "consumequeue/t/0" / segment_name(200)).unlink()
    with MessageStore.open(path) as store:
        assert [store.consumer_offset(group, "u", 0) for group in ("g", "h")] == [1, 1]
        with pytest.raises(CorruptSegment, match="the file of bytes 200 to 400"):
            store.max_offset("t", 0)
