from __future__ import annotations

import math
import os
import select
import shutil
import signal
import threading
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from store import (
    GroupConflict,
    InvalidArgument,
    InvalidGroup,
    Message,
    MessageStore,
    NotAStore,
    StoreConfig,
    StoreForked,
    StoreReplaced,
)
from store.api.group_protocol import MessageModel, Subscriptions
from store.api.message_store import delete_topic
from store.append.published_end import PublishedEnd
from store.broker.members import Roster
from store.directory.directory_group import DirectoryGroup
from store.model.log_protocol import Queue
from tests.children import ended, in_a_child
from tests.logs.group_conformance import ALL, EVERYTHING, Q0, GroupTests
from tests.members import RemoteMember, remote_member
from tests.waiting import PATIENCE, until


class LocalMaking:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.group = DirectoryGroup(path, "g")

    def another(self, name: str) -> DirectoryGroup:
        return DirectoryGroup(self.path, name)

    def in_process(self, subscriptions: Subscriptions, **options: Any) -> AbstractContextManager[RemoteMember]:
        return remote_member(self.group, subscriptions, **options)


@pytest.fixture
def making(tmp_path: Path) -> LocalMaking:
    config = StoreConfig(mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=2000)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("t", 4)
    return LocalMaking(tmp_path)


class TestLocalGroup(GroupTests):
    pass


def test_group_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        DirectoryGroup(tmp_path / "x", "g")


def test_wrong_names_are_refused(making: LocalMaking) -> None:
    with pytest.raises(InvalidGroup):
        making.another("../g")
    for instance in ("", "..", "a/b", "x" * 101):
        with pytest.raises(InvalidArgument, match="instance="):
            making.group.join(EVERYTHING, instance=instance)


def test_joining_writes_the_groups_settings(making: LocalMaking) -> None:
    making.group.join(EVERYTHING).leave()
    assert '"g": {' in (making.path / "config/subscriptionGroup.json").read_text()


def test_other_members_notice_a_kill_and_a_leave(making: LocalMaking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leave is announced; a periodic check finds a kill."""
    for how in ("kill", "leave"):
        with making.group.join(EVERYTHING) as one, making.in_process(EVERYTHING) as other:
            one.wait(PATIENCE)
            if how == "kill":
                other.signal(signal.SIGKILL)
            else:
                monkeypatch.setattr(Roster, "rest_seconds", math.inf)
                other.call("leave")
            assert one.wait(PATIENCE)
            assert one.members() == [one.id]


def test_forked_process_is_no_member(making: LocalMaking) -> None:
    with making.group.join(EVERYTHING) as one:
        one.lock(ALL)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for verb in (one.members, one.persist, one.resets, lambda: one.wait(PATIENCE), lambda: one.lock([])):
                    with pytest.raises(StoreForked):
                        verb()
                one.leave()
                code = 0
            finally:
                os._exit(code)
        assert ended(child) == 0
        assert [info.queues for info in making.group.members()] == [tuple(ALL)]
        assert one.lock([Q0]) == {Q0}


def test_orphaned_child_does_not_keep_its_parents_membership(making: LocalMaking, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        one = making.group.join(EVERYTHING)
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(PATIENCE)
            os._exit(0)
        os.write(writing, f"{grandchild}\n{one.id}".encode())
        time.sleep(PATIENCE)
        os._exit(0)
    until(lambda: bool(select.select([reading], [], [], 0)[0]))
    grandchild_id, _ = os.read(reading, 1000).decode().split("\n")
    try:
        assert len(making.group.members()) == 1
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        until(lambda: making.group.members() == [])
    finally:
        os.kill(int(grandchild_id), signal.SIGKILL)


def test_unpersisted_commits_are_void_after_a_machine_crash(
    making: LocalMaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    with making.in_process(EVERYTHING) as other:
        other.call("lock", ALL)
        other.call("commit", {Q0: 7})
    monkeypatch.setattr("store.broker.members.current_boot_id", lambda: b"another")
    with making.group.join(EVERYTHING) as one:
        assert one.committed(ALL) == {}


def test_member_raises_if_its_file_was_removed(making: LocalMaking) -> None:
    one = making.group.join(EVERYTHING)
    (file,) = (making.path / "consumers/g").glob("*.member")
    file.unlink()
    with pytest.raises(StoreReplaced):
        one.lock([Q0])
    one.leave()


@pytest.mark.parametrize("verb", ["leave", "lock", "persist", "send_back", "unlock"])
def test_member_does_not_write_to_a_replaced_directory(
    making: LocalMaking, tmp_path_factory: pytest.TempPathFactory, verb: str
) -> None:
    """In a restored backup, old offsets written there would skip its next messages."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with MessageStore.open(making.path) as store:
        store.put(Message("t", b"x", queue_id=0))
        (message,) = store.get_message("g", "t", 0, 0).messages
    one = making.group.join(EVERYTHING)
    one.lock([Q0])
    one.commit({Q0: 1})
    one.persist()
    shutil.copytree(making.path, elsewhere / "backup")
    one.commit({Q0: 2})
    making.path.rename(elsewhere / "own")
    (elsewhere / "backup").rename(making.path)
    arguments = {"lock": [[Q0]], "send_back": [[message]], "unlock": [[Q0]]}.get(verb, [])
    if verb != "leave":
        with pytest.raises(StoreReplaced):
            getattr(one, verb)(*arguments)
    one.leave()
    assert making.group.committed([Q0]) == {Q0: 1}
    with MessageStore.open(making.path, read_only=True) as store:
        assert store.topics() == {"t": 4}
    with DirectoryGroup(elsewhere / "own", "g").join(EVERYTHING) as other:
        assert other.committed([Q0]) == {Q0: 2}


@pytest.mark.parametrize("model", MessageModel)
def test_instance_names_are_unique_over_all_hosts(
    making: LocalMaking, model: MessageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise broadcasting members would share one instance's offsets, and the slower one would skip messages."""
    with making.group.join(EVERYTHING, model=model, instance="x") as one:
        monkeypatch.setattr("socket.gethostname", lambda: "another")
        with pytest.raises(GroupConflict, match=f"{one.id} .* this name"):
            making.group.join(EVERYTHING, model=model, instance="x")


def test_persist_does_not_lower_an_offset_set_by_others(making: LocalMaking) -> None:
    with making.group.join(EVERYTHING) as one, MessageStore.open(making.path, read_only=True) as store:
        one.lock([Q0])
        one.commit({Q0: 5})
        store.commit_offsets("g", "t", {0: 50})
        one.persist()
        assert making.group.committed([Q0]) == {Q0: 50}


def test_deleted_topic_gets_no_offsets(making: LocalMaking) -> None:
    with MessageStore.open(making.path) as store:
        store.create_topic("u", 1)
    with making.group.join(EVERYTHING) as one:
        one.lock([Q0, Queue("u", 0)])
        one.commit({Q0: 1, Queue("u", 0): 9})
        delete_topic(making.path, "u")
    assert making.group.committed([Q0, Queue("u", 0)]) == {Q0: 1}


def test_sent_back_message_is_delayed_or_a_dead_letter(making: LocalMaking) -> None:
    with MessageStore.open(making.path) as store, making.group.join(EVERYTHING) as one:
        store.put(Message("t", b"x", queue_id=0))
        (message,) = store.get_message("g", "t", 0, 0).messages
        one.send_back([message])
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1
        one.send_back([message], delay_level=-1)
        assert store.max_offset("%DLQ%g", 0) == 1
    assert not (making.path / "abort").exists()


def made_anew(making: LocalMaking, topic: str) -> None:
    delete_topic(making.path, topic)
    with MessageStore.open(making.path) as store:
        store.create_topic(topic, 4)


def test_dead_members_commits_are_void_for_a_recreated_topic(making: LocalMaking) -> None:
    with making.in_process(EVERYTHING) as other:
        other.call("lock", [Q0])
        other.call("begin", {Q0: 3})
        other.call("commit", {Q0: 9})
        other.signal(signal.SIGKILL)
        made_anew(making, "t")
    with making.group.join(EVERYTHING) as one:
        one.lock([Q0])
        assert one.committed([Q0]) == {Q0: 0}


@pytest.mark.parametrize("is_lost", [False, True])
def test_reset_reaches_members_although_earlier_resets_are_lost(making: LocalMaking, is_lost: bool) -> None:
    note = making.path / "consumers/g/resets.json"
    with making.group.join(EVERYTHING) as one:
        one.lock([Q0])
        making.group.reset({Q0: 2})
        older = note.read_bytes()
        for offset in (3, 4):
            making.group.reset({Q0: offset})
        assert one.resets() == {Q0: 4}
        one.commit({Q0: 9})
        note.unlink() if is_lost else note.write_bytes(older)
        making.group.reset({Q0: 0})
        one.commit({Q0: 10})
        assert one.resets()[Q0] == 0
    assert making.group.committed([Q0]) == {Q0: 0}


def test_broadcasting_offsets_are_deleted_with_their_group(making: LocalMaking) -> None:
    for committed in ({}, {}):
        with making.group.join(EVERYTHING, model=MessageModel.BROADCASTING) as one:
            one.lock([Q0])
            assert one.committed([Q0]) == committed
            one.commit({Q0: 5})
        making.group.delete(with_offsets=True)


def test_broadcasting_offsets_are_deleted_with_their_topic(making: LocalMaking) -> None:
    for done in (9, None):
        with making.group.join(EVERYTHING, model=MessageModel.BROADCASTING) as one:
            one.lock([Q0])
            assert one.committed([Q0]) == ({} if done else {Q0: 0})
            if done is not None:
                one.commit({Q0: done})
        made_anew(making, "t")


def test_sent_back_message_is_flushed_before_its_offset(making: LocalMaking) -> None:
    (making.path / "config/store.conf").write_text("flushIntervalCommitLog=3600000\n")
    with MessageStore.open(making.path) as store, making.group.join(EVERYTHING) as one:
        one.lock([Q0])
        store.put(Message("t", b"x", queue_id=0))
        (message,) = store.get_message("g", "t", 0, 0).messages
        one.send_back([message])
        one.commit({Q0: 1})
        with closing(PublishedEnd(making.path, writable=False)) as published:
            assert published.flushed_offset == 0
            one.persist()
            assert published.flushed_offset == store.confirm_offset


def test_forked_child_leaves_despite_a_lock_of_another_thread(making: LocalMaking) -> None:
    """The thread does not exist in the child, so it would never release its locks."""
    with MessageStore.open(making.path) as store, making.group.join(EVERYTHING) as member:
        store.put(Message("t", b"0", queue_id=0))
        holds, end = threading.Event(), threading.Event()

        def hold() -> None:
            with store._writing().held():
                holds.set()
                end.wait()

        sent = store.get_message("g", Q0.topic, Q0.queue_id, 0).messages
        threads = [threading.Thread(target=hold)]
        threads.append(threading.Thread(target=member.send_back, args=(sent,)))
        for thread in threads:
            thread.start()
            assert holds.wait(PATIENCE)
        until(lambda: not member._store._threads.acquire(blocking=False))  # type: ignore[attr-defined]
        left = in_a_child(member.leave)
        end.set()
        for thread in threads:
            thread.join()
    assert left == "None"
