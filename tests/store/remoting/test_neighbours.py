"""Clients of a server, and consumers beside it, in one group: who comes second is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from store import GroupConflict, MessageModel, MessageStore
from store.api.group_protocol import Subscription
from store.broker.response_codes import ResponseCode
from store.broker.served_groups import is_served
from store.directory.directory_group import LocalGroup
from store.model.log_protocol import Queue
from store.remoting.client import Client
from store.remoting.codes import RequestCode
from store.remoting.group_offsets import ServedOffsets
from store.remoting.headers import CommitOffset, GroupQueue, ResetOffset, UnregisterClient
from store.remoting.serving import serve
from tests.store.remoting.broker import Broker
from tests.store.remoting.test_clients import heartbeat, members
from tests.waiting import until

ALL = {"orders": Subscription()}


def test_nobody_joins_a_group_that_is_served(store: MessageStore, broker: Broker) -> None:
    group = LocalGroup(store.path, "group")
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("b"))
    with pytest.raises(GroupConflict, match=r"group group: clients consume .* \(pyspark-mq serve: this process"):
        group.join(ALL)
    group.join(ALL, model=MessageModel.BROADCASTING).leave()
    LocalGroup(store.path, "others").join(ALL).leave()
    for name in ("a", "b"):
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient(name, None, "group"))
    group.join(ALL).leave()


def test_no_client_is_taken_into_a_group_of_others(store: MessageStore, broker: Broker) -> None:
    """It is told why, at each heart-beat; its other groups are none the worse; and it may come when they left."""
    beat = json.loads(heartbeat("a"))
    beat["consumerDataSet"].append({**beat["consumerDataSet"][0], "groupName": "own"})
    beats = json.dumps(beat).encode()
    with LocalGroup(store.path, "group").join(ALL) as member:
        for _ in range(2):
            answer = broker.ask(RequestCode.HEART_BEAT, body=beats)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
            assert f"group group: consumers in processes of the broker's host ({member.id}) read its queues" in (
                answer.remark or ""
            )
        assert members(broker) == []
        assert (is_served(store.path, "group"), is_served(store.path, "own")) == (False, True)
    assert broker.ask(RequestCode.HEART_BEAT, body=beats).code == ResponseCode.SUCCESS
    assert members(broker) == ["a"]
    with pytest.raises(GroupConflict, match="clients consume in it through a server"):
        LocalGroup(store.path, "group").join(ALL)


def test_who_come_at_the_same_moment_are_never_both_in(store: MessageStore, broker: Broker) -> None:
    group, both = LocalGroup(store.path, "group"), 0
    for _ in range(30):
        begun = broker.begin(RequestCode.HEART_BEAT, body=heartbeat("a"))
        try:
            with group.join(ALL):
                both += begun.result().code == ResponseCode.SUCCESS
        except GroupConflict:
            begun.result()
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    assert both == 0


def test_clients_of_two_servers_do_not_share_a_group(store: MessageStore, broker: Broker) -> None:
    """Neither server knows the clients of the other: both would give them all queues."""
    with MessageStore.open(store.path) as another, serve(another, "127.0.0.1:0") as serving:
        other = Broker(serving, broker.client)
        for name in ("a", "b"):
            assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat(name)).code == ResponseCode.SUCCESS
        answer = other.ask(RequestCode.HEART_BEAT, body=heartbeat("c"))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "group group: clients of another server (this process" in (answer.remark or "")
        assert members(other) == []
        for name in ("a", "b"):
            broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient(name, None, "group"))
        assert other.ask(RequestCode.HEART_BEAT, body=heartbeat("c")).code == ResponseCode.SUCCESS
        assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a")).code == ResponseCode.ILLEGAL_OPERATION


def test_a_group_that_is_served_is_reset_by_its_server_alone(store: MessageStore, broker: Broker) -> None:
    """Its clients would hear of no other reset, and say soon how far they are."""
    group, there = LocalGroup(store.path, "group"), {Queue("orders", 0): 0, Queue("orders", 1): 0}
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    with pytest.raises(GroupConflict, match=r"clients consume in it through a server .*mqadmin resetOffsetByTime"):
        group.reset(there)
    assert group.committed(there) == {}
    reset = ResetOffset("group", "orders", 0, True)
    assert broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == ResponseCode.SUCCESS
    assert group.committed(there) == there
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    group.reset(there)


def test_a_server_does_not_reset_a_group_of_another_one(store: MessageStore, broker: Broker) -> None:
    """Whose clients would not hear of it."""
    group, queue = LocalGroup(store.path, "group"), Queue("orders", 0)
    reset = ResetOffset("group", "orders", 0, True)
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 7))
    with MessageStore.open(store.path) as another, serve(another, "127.0.0.1:0") as serving:
        other = Broker(serving, broker.client)
        other.ask(RequestCode.HEART_BEAT, body=heartbeat("b", topic="others").replace(b'"group"', b'"another"'))
        answer = other.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "group group: clients consume in it through a server" in (answer.remark or "")
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
        assert group.committed([queue]) == {queue: 7}
        assert other.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == ResponseCode.SUCCESS
    assert group.committed([queue]) == {queue: 0}


@pytest.mark.parametrize("how", ["unregister", "lost", "never there"])
def test_who_joins_beside_the_server_goes_on_where_its_clients_were(
    store: MessageStore, broker: Broker, how: str
) -> None:
    """It goes by the files, which hear of a server's clients every 5 s otherwise: it began behind what is there."""
    queue = Queue("orders", 0)
    with Client() as client:
        its = Broker(broker.serving, client)
        if how != "never there":
            its.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
        its.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 7))
        if how == "unregister":
            its.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    until(lambda: not is_served(store.path, "group"))
    with LocalGroup(store.path, "group").join(ALL) as member:
        assert member.committed([queue]) == {queue: 7}


def test_what_a_client_says_as_it_leaves_comes_before_that(
    store: MessageStore, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would count more than a reset of the group that it has left."""
    queue, left, commit = Queue("orders", 0), threading.Event(), ServedOffsets.commit

    def commit_late(*said: Any) -> None:
        left.wait(0.2)
        commit(*said)

    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    monkeypatch.setattr(ServedOffsets, "commit", commit_late)
    said = broker.begin(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 7))
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    group = LocalGroup(store.path, "group")
    group.reset({queue: 0})
    left.set()
    said.result()
    assert group.committed([queue]) == {queue: 0}


def test_a_client_goes_on_where_a_member_was_that_died(store: MessageStore, broker: Broker) -> None:
    """Also if it had not persisted yet, and the group had members here before."""
    queue = Queue("orders", 0)
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    member = LocalGroup(store.path, "group").join(ALL)
    member.lock([queue])
    member.commit({queue: 7})
    del member
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    asked = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("group", queue.topic, queue.queue_id, False))
    assert asked.fields["offset"] == "7"


def test_no_client_takes_back_what_members_beside_the_server_have_read(store: MessageStore, broker: Broker) -> None:
    """As one whose server was started anew while it was in the group: it says where it was, and is not in it now."""
    queue = Queue("orders", 0)
    with LocalGroup(store.path, "group").join(ALL) as member:
        member.lock([queue])
        member.commit({queue: 7})
        member.persist()
        assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a")).code == ResponseCode.ILLEGAL_OPERATION
        broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 3))
    group = LocalGroup(store.path, "group")
    assert group.committed([queue]) == {queue: 7}
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 3))
    assert group.committed([queue]) == {queue: 3}


def test_who_comes_while_the_last_one_leaves_is_told_of(
    store: MessageStore, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a client is restarted: what the old one has read is brought to the files, which takes a while."""
    flush = store.flush

    def flush_late() -> None:
        monkeypatch.undo()
        broker.ask(RequestCode.HEART_BEAT, body=heartbeat("new"))
        flush()

    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("old"))
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", "orders", 0, 0))
    monkeypatch.setattr(store, "flush", flush_late)
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("old", None, "group"))
    assert (members(broker), is_served(store.path, "group")) == (["new"], True)


def test_broadcasting_clients_do_not_mind(store: MessageStore, broker: Broker) -> None:
    beat = json.loads(heartbeat("a"))
    beat["consumerDataSet"][0]["messageModel"] = "BROADCASTING"
    broker.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
    assert not is_served(store.path, "group")
    LocalGroup(store.path, "group").join(ALL).leave()


def test_a_server_that_is_killed_releases_its_groups(store: MessageStore) -> None:
    code = (
        "import sys, time; from pathlib import Path; from store.broker.served_groups import ServerGroups; "
        "groups = ServerGroups(Path(sys.argv[1])); print(groups.enter('group'), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(store.path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        assert (is_served(store.path, "group"), is_served(store.path, "another")) == (True, False)
        with pytest.raises(GroupConflict, match=rf"through a server .*process {process.pid} "):
            LocalGroup(store.path, "group").join(ALL)
        process.kill()
    LocalGroup(store.path, "group").join(ALL).leave()


def test_a_closed_server_has_no_groups(store: MessageStore, broker: Broker) -> None:
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.serving.close()
    LocalGroup(store.path, "group").join(ALL).leave()
