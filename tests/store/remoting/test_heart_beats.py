from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from store import BadFrame, GroupConflict, InvalidGroup, Message, MessageModel, MessageStore
from store.api.group_protocol import Subscription
from store.broker.members import is_served
from store.directory.directory_group import DirectoryGroup
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Queue
from store.remoting.bodies import MAX_BEAT_BYTES, Heartbeat
from store.remoting.client import Client
from store.remoting.clients import Clients
from store.remoting.command import Command, decode, encode
from store.remoting.connection import Connection
from store.remoting.headers import CommitOffset, ConsumerGroup, GroupQueue, PullMessage, ResetOffset, UnregisterClient
from store.remoting.heart_beats import GroupLocks, HeartBeats
from store.remoting.request import Request
from store.remoting.served_broker import BrokerConfig, ServedBroker
from store.remoting.served_offsets import ServedOffsets
from store.remoting.serving import serve
from store.remoting.tiered_store import ArchiveReads, TieredStore
from tests.processes import child_process
from tests.store.remoting.broker import Broker
from tests.store.remoting.golden import FRAMES
from tests.waiting import until

(MADE,) = {bytes.fromhex(line["body"]) for line in FRAMES if line["code"] == RequestCode.HEART_BEAT}


def heartbeat(client_id: str, expression: str = "*", version: int = 1, topic: str = "orders") -> bytes:
    subscription = {"topic": topic, "subString": expression, "expressionType": "TAG", "subVersion": version}
    consumer = {"groupName": "group", "subscriptionDataSet": [subscription]}
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}).encode()


def members(broker: Broker) -> list[str]:
    answer = broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("group"))
    return json.loads(bytes(answer.body))["consumerIdList"] if answer.code == ResponseCode.SUCCESS else []


def test_heartbeat_of_rocketmq_is_read() -> None:
    beat = Heartbeat.of(MADE)
    assert beat.producers is not None
    assert beat.consumers is not None
    (producer,), (consumer,) = beat.producers, beat.consumers
    assert (beat.client_id, producer.group_name, consumer.group_name) == ("127.0.0.1@1", "producers", "group")
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscription_data_set is not None
    (read,) = consumer.subscription_data_set
    assert (read.topic, read.subscription, read.sub_version) == ("orders", Subscription("paid"), 1_700_000_000_001)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"clientID":7}',
        b'{"clientID":"a","consumerDataSet":7}',
        b'{"clientID":"a","consumerDataSet":[7]}',
        b'{"clientID":"a","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
        b'{"clientID":"a","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subString":7}]}]}',
        b'{"clientID":"a","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subVersion":"x"}]}]}',
        b'{"clientID":"a","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subVersion":1e999}]}]}',
        b'{"clientID":"a","producerDataSet":[{}]}',
        b" " * (MAX_BEAT_BYTES + 1),
    ],
)
def test_wrong_heartbeats_are_refused(broker: Broker, body: bytes) -> None:
    with pytest.raises(BadFrame):
        Heartbeat.of(body)
    assert broker.ask(RequestCode.HEART_BEAT, body=body).code == ResponseCode.SYSTEM_ERROR
    assert members(broker) == []


def test_members_join_and_leave(broker: Broker) -> None:
    for name in ("b", "a", "a"):
        assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat(name)).code == ResponseCode.SUCCESS
    assert members(broker) == ["a", "b"]
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", consumer_group="group"))
    assert members(broker) == ["b"]
    with Client() as other:
        Broker(broker.serving, other).ask(RequestCode.HEART_BEAT, body=heartbeat("c"))
        assert members(broker) == ["b", "c"]
    until(lambda: members(broker) == ["b"])


@pytest.fixture
def beats(store: MessageStore) -> Iterator[HeartBeats]:
    served = ServedBroker(store, BrokerConfig(), Clients(), ServedOffsets(store), TieredStore(store, ArchiveReads()))
    with closing(GroupLocks(store)) as group_locks:
        yield HeartBeats(served, group_locks)


def lost_connection(beats: HeartBeats) -> Connection:
    connection = Connection(lambda connection, command: None, lambda connection, error: beats.lost(connection))
    connection.connection_lost(None)
    return connection


def test_client_of_a_lost_connection_is_no_member(beats: HeartBeats) -> None:
    request = Request(Command(RequestCode.HEART_BEAT, body=MADE), lost_connection(beats))
    assert beats.handlers()[RequestCode.HEART_BEAT](request).code == ResponseCode.SUCCESS
    assert (beats.clients.consumers("group"), beats.clients.producers("producers")) == ({}, {})


def beat(*groups: str, model: str = "CLUSTERING") -> Command:
    consumers = [{"groupName": group, "messageModel": model} for group in groups]
    return Command(RequestCode.HEART_BEAT, body=json.dumps({"clientID": "a", "consumerDataSet": consumers}).encode())


def test_wrong_group_does_not_affect_others_of_a_heartbeat(broker: Broker, store: MessageStore) -> None:
    said = beat("before", "a/b", "behind")
    assert broker.ask(RequestCode.HEART_BEAT, body=bytes(said.body)).code == ResponseCode.INVALID_PARAMETER
    assert all(is_served(store.path, group) for group in ("before", "behind"))


def test_lost_connection_leaves_no_group_locked(beats: HeartBeats, store: MessageStore) -> None:
    with pytest.raises(InvalidGroup):
        beats.handlers()[RequestCode.HEART_BEAT](Request(beat("group", "a/b"), lost_connection(beats)))
    assert not is_served(store.path, "group")


def test_clustering_client_locks_its_group(broker: Broker, store: MessageStore) -> None:
    for model in ("BROADCASTING", "CLUSTERING", "CLUSTERING", "BROADCASTING"):
        broker.ask(RequestCode.HEART_BEAT, body=bytes(beat("group", model=model).body))
        assert is_served(store.path, "group") == (model == "CLUSTERING")


def test_memory_for_clients_of_a_connection_is_limited(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any client names. Repeating a heartbeat uses no more memory, and leaving clients free theirs."""
    monkeypatch.setattr("store.remoting.clients.MAX_CONNECTION_BYTES", 160_000)

    def fits(broker: Broker, id: str, size: int = 2800, group: str = "group", kind: str = "consumer") -> bool:
        body = {"clientID": id, f"{kind}DataSet": [{"groupName": group, "consumeType": "x" * size}]}
        answer = broker.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY)
        return answer.code == ResponseCode.SUCCESS

    def leave(id: str) -> None:
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient(id, consumer_group="group"))

    assert all(fits(broker, id) for id in "abcab")
    assert not any((fits(broker, "d"), fits(broker, "a", group="other"), fits(broker, "a", 5000)))
    assert sum(fits(broker, "p", group=f"p{number}", kind="producer") for number in range(100)) < 90
    leave("b")
    assert fits(broker, "d", 2000)
    with Client() as client:
        other = Broker(broker.serving, client)
        assert fits(other, "a", 6000)
        assert fits(broker, "e")
        assert not fits(other, "c", 6000)
    until(lambda: members(broker) == ["c", "d", "e"])
    for id in "cde":
        leave(id)
    assert fits(broker, "f", 8000)


def test_members_are_notified_of_each_other(broker: Broker) -> None:
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as member:
        member.sendall(encode(Command(RequestCode.HEART_BEAT, body=heartbeat("told"))))
        first = [read(member), read(member)]  # it is notified of itself, too, as by RocketMQ's broker
        assert {command.is_response for command in first} == {True, False}
        broker.ask(RequestCode.HEART_BEAT, body=heartbeat("other"))
        told = read(member)
    assert (told.code, told.is_oneway) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, True)
    assert ConsumerGroup.of(told.fields) == ConsumerGroup("group")


def test_connection_is_notified_once_for_all_its_clients(broker: Broker) -> None:
    """One notification for each pair of 3,000 clients would block other clients for minutes."""
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as many:
        for name in ("a", "b", "c"):
            many.sendall(encode(Command(RequestCode.HEART_BEAT, body=heartbeat(name))))
            assert {read(many).is_response, read(many).is_response} == {True, False}
        broker.ask(RequestCode.HEART_BEAT, body=heartbeat("other"))
        many.sendall(encode(Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("group").texts())))
        assert [read(many).is_response, read(many).is_response] == [False, True]


def read(connection: socket.socket) -> Command:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += connection.recv(count - len(data))
        return data

    return decode(exactly(*struct.unpack(">i", exactly(4))))


def test_pull_uses_the_subscription_of_its_group(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", tag.encode(), tags=tag, queue_id=0) for tag in ("paid", "open")])

    def pull(version: int) -> Command:
        header = PullMessage("group", "orders", 0, 0, 32, 0, 0, 0, version)
        return broker.ask(RequestCode.PULL_MESSAGE, header)

    assert pull(0).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a", "open", version=5))
    assert pull(6).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    answer = pull(5)
    assert answer.code == ResponseCode.SUCCESS
    assert (b"open" in bytes(answer.body), b"paid" in bytes(answer.body)) == (True, False)


def test_unknown_group_has_no_members(broker: Broker) -> None:
    answer: Any = broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("nobody"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, nobody")


ALL = {"orders": Subscription()}


def test_member_cannot_join_a_served_group(store: MessageStore, broker: Broker) -> None:
    group = DirectoryGroup(store.path, "group")
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("b"))
    with pytest.raises(GroupConflict, match=r"group group has clients .* \(pyspark-mq serve: this process"):
        group.join(ALL)
    group.join(ALL, model=MessageModel.BROADCASTING).leave()
    DirectoryGroup(store.path, "others").join(ALL).leave()
    for name in ("a", "b"):
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient(name, None, "group"))
    group.join(ALL).leave()


def test_client_cannot_join_a_group_with_members(store: MessageStore, broker: Broker) -> None:
    """Each heartbeat is refused with a reason. The client's other groups still work; it can join once the members
    left."""
    beat = json.loads(heartbeat("a"))
    beat["consumerDataSet"].append({**beat["consumerDataSet"][0], "groupName": "own"})
    beats = json.dumps(beat).encode()
    with DirectoryGroup(store.path, "group").join(ALL) as member:
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
    with pytest.raises(GroupConflict, match="has clients of a server"):
        DirectoryGroup(store.path, "group").join(ALL)


def test_client_and_member_never_join_concurrently(store: MessageStore, broker: Broker) -> None:
    group, both = DirectoryGroup(store.path, "group"), 0
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
    """Neither server knows the other's clients: both would assign all queues."""
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


def test_only_the_server_resets_its_group(store: MessageStore, broker: Broker) -> None:
    """The clients would not learn of any other reset, and would soon commit their old offsets again."""
    group, there = DirectoryGroup(store.path, "group"), {Queue("orders", 0): 0, Queue("orders", 1): 0}
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    with pytest.raises(GroupConflict, match=r"has clients of a server .*mqadmin resetOffsetByTime"):
        group.reset(there)
    assert group.committed(there) == {}
    reset = ResetOffset("group", "orders", 0, True)
    assert broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == ResponseCode.SUCCESS
    assert group.committed(there) == there
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    group.reset(there)


def test_client_is_unregistered_by_its_own_connection_only(broker: Broker) -> None:
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    leaving = UnregisterClient("a", "producers", "group")
    with Client() as client:
        answer = Broker(broker.serving, client).ask(RequestCode.UNREGISTER_CLIENT, leaving)
        assert (answer.code, "another connection" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        assert broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("group")).code == ResponseCode.SUCCESS
        # The client is on another connection now.
        Broker(broker.serving, client).ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
        assert Broker(broker.serving, client).ask(RequestCode.UNREGISTER_CLIENT, leaving).code == ResponseCode.SUCCESS
    assert broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("group")).code != ResponseCode.SUCCESS


def test_server_does_not_reset_a_group_of_another_server(store: MessageStore, broker: Broker) -> None:
    """That server's clients would not learn of it."""
    store.put_many([Message("orders", b"x", queue_id=0)] * 7)
    group, queue = DirectoryGroup(store.path, "group"), Queue("orders", 0)
    reset = ResetOffset("group", "orders", 0, True)
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 7))
    with MessageStore.open(store.path) as another, serve(another, "127.0.0.1:0") as serving:
        other = Broker(serving, broker.client)
        other.ask(RequestCode.HEART_BEAT, body=heartbeat("b", topic="others").replace(b'"group"', b'"another"'))
        answer = other.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "group group has clients of a server" in (answer.remark or "")
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
        assert group.committed([queue]) == {queue: 7}
        assert other.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == ResponseCode.SUCCESS
    assert group.committed([queue]) == {queue: 0}


@pytest.mark.parametrize("how", ["unregister", "lost", "never there"])
def test_member_continues_at_the_offsets_of_former_clients(store: MessageStore, broker: Broker, how: str) -> None:
    """Members read offsets from files, which a server normally updates only every 5 s."""
    store.put_many([Message("orders", b"x", queue_id=0)] * 7)
    queue = Queue("orders", 0)
    with Client() as client:
        its = Broker(broker.serving, client)
        if how != "never there":
            its.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
        its.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 7))
        if how == "unregister":
            its.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    until(lambda: not is_served(store.path, "group"))
    with DirectoryGroup(store.path, "group").join(ALL) as member:
        assert member.committed([queue]) == {queue: 7}


def test_last_commit_of_a_leaving_client_counts_first(
    store: MessageStore, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would override a later reset of the group."""
    store.put_many([Message("orders", b"x", queue_id=0)] * 7)
    queue, left, commit = Queue("orders", 0), threading.Event(), ServedOffsets.commit

    def commit_late(*said: Any) -> None:
        left.wait(0.2)
        commit(*said)

    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    monkeypatch.setattr(ServedOffsets, "commit", commit_late)
    said = broker.begin(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 7))
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    group = DirectoryGroup(store.path, "group")
    group.reset({queue: 0})
    left.set()
    said.result()
    assert group.committed([queue]) == {queue: 0}


def test_client_continues_at_the_offsets_of_a_dead_member(store: MessageStore, broker: Broker) -> None:
    queue = Queue("orders", 0)
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", None, "group"))
    member = DirectoryGroup(store.path, "group").join(ALL)
    member.lock([queue])
    member.commit({queue: 7})
    del member
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    asked = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("group", queue.topic, queue.queue_id, False))
    assert asked.fields["offset"] == "7"


def test_refused_client_cannot_lower_offsets_of_members(store: MessageStore, broker: Broker) -> None:
    """As with a client whose server restarted: it commits its old offset but is no longer in the group."""
    store.put_many([Message("orders", b"x", queue_id=0)] * 7)
    queue = Queue("orders", 0)
    with DirectoryGroup(store.path, "group").join(ALL) as member:
        member.lock([queue])
        member.commit({queue: 7})
        member.persist()
        assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a")).code == ResponseCode.ILLEGAL_OPERATION
        broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 3))
    group = DirectoryGroup(store.path, "group")
    assert group.committed([queue]) == {queue: 7}
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", queue.topic, queue.queue_id, 3))
    assert group.committed([queue]) == {queue: 3}


def test_client_that_joins_while_the_last_one_leaves_counts(
    store: MessageStore, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a client restarts: persisting the old client's offsets takes a while."""
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


def test_broadcasting_clients_may_join_beside_members(store: MessageStore, broker: Broker) -> None:
    beat = json.loads(heartbeat("a"))
    beat["consumerDataSet"][0]["messageModel"] = "BROADCASTING"
    broker.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
    assert not is_served(store.path, "group")
    DirectoryGroup(store.path, "group").join(ALL).leave()


def test_killed_server_releases_its_groups(store: MessageStore) -> None:
    code = (
        "import sys, time; from pathlib import Path; from store.broker.members import ServerGroups; "
        "groups = ServerGroups(Path(sys.argv[1])); print(groups.enter('group'), flush=True); time.sleep(600)"
    )
    with child_process(sys.executable, "-c", code, str(store.path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        assert (is_served(store.path, "group"), is_served(store.path, "another")) == (True, False)
        with pytest.raises(GroupConflict, match=rf"clients of a server .*process {process.pid} "):
            DirectoryGroup(store.path, "group").join(ALL)
    DirectoryGroup(store.path, "group").join(ALL).leave()


def test_closed_server_releases_its_groups(store: MessageStore, broker: Broker) -> None:
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.serving.close()
    DirectoryGroup(store.path, "group").join(ALL).leave()
