"""Who is in a group, as its members' heart-beats say; and who is told when that changes."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest

from store import BadFrame, InvalidGroup, Message, MessageStore
from store.api.group_protocol import Subscription
from store.broker.response_codes import ResponseCode
from store.broker.served_groups import is_served
from store.files.consumer_offsets import check_group_name
from store.remoting.bodies import MAX_BODY_BYTES, Heartbeat
from store.remoting.client import Client
from store.remoting.clients import Clients
from store.remoting.codes import RequestCode
from store.remoting.command import Command, decode, encode
from store.remoting.connection import Connection
from store.remoting.headers import Group, PullMessage, UnregisterClient
from store.remoting.request import Request
from tests.store.remoting.broker import Broker
from tests.store.remoting.golden import FRAMES
from tests.waiting import until

(MADE,) = {bytes.fromhex(line["body"]) for line in FRAMES if line["code"] == RequestCode.HEART_BEAT}


def heartbeat(client_id: str, expression: str = "*", version: int = 1, topic: str = "orders") -> bytes:
    subscription = {"topic": topic, "subString": expression, "expressionType": "TAG", "subVersion": version}
    consumer = {"groupName": "group", "subscriptionDataSet": [subscription]}
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}).encode()


def members(broker: Broker) -> list[str]:
    answer = broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Group("group"))
    return json.loads(bytes(answer.body))["consumerIdList"] if answer.code == ResponseCode.SUCCESS else []


def test_what_rocketmq_made() -> None:
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
        b" " * (MAX_BODY_BYTES + 1),
    ],
)
def test_what_is_no_heart_beat(broker: Broker, body: bytes) -> None:
    with pytest.raises(BadFrame):
        Heartbeat.of(body)
    assert broker.ask(RequestCode.HEART_BEAT, body=body).code == ResponseCode.SYSTEM_ERROR
    assert members(broker) == []


def test_members_come_and_go(broker: Broker) -> None:
    for name in ("b", "a", "a"):
        assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat(name)).code == ResponseCode.SUCCESS
    assert members(broker) == ["a", "b"]
    broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient("a", consumer_group="group"))
    assert members(broker) == ["b"]
    with Client() as other:
        Broker(broker.serving, other).ask(RequestCode.HEART_BEAT, body=heartbeat("c"))
        assert members(broker) == ["b", "c"]
    until(lambda: members(broker) == ["b"])


def test_who_is_gone_before_it_was_heard_is_no_member() -> None:
    """Nobody would ever miss it, and the queues that are its share would be read by nobody."""
    clients = Clients()
    connection = Connection(lambda connection, command: None, lambda connection, error: clients.lost(connection))
    connection.connection_lost(None)
    beat = Command(RequestCode.HEART_BEAT, body=MADE)
    assert clients.others()[RequestCode.HEART_BEAT](Request(beat, connection)).code == ResponseCode.SUCCESS
    assert (clients.consumers("group"), clients.producers("producers")) == ({}, {})


def beat(*groups: str, model: str = "CLUSTERING") -> Command:
    consumers = [{"groupName": group, "messageModel": model} for group in groups]
    return Command(RequestCode.HEART_BEAT, body=json.dumps({"clientID": "a", "consumerDataSet": consumers}).encode())


def test_a_group_that_cannot_be_is_none_of_the_others_business(broker: Broker, store: MessageStore) -> None:
    said = beat("before", "a/b", "behind")
    assert broker.ask(RequestCode.HEART_BEAT, body=bytes(said.body)).code == ResponseCode.INVALID_PARAMETER
    assert all(is_served(store.path, group) for group in ("before", "behind"))


def test_who_is_gone_before_it_was_heard_is_not_told_of() -> None:
    """It counted as a member for ever, where another group that it named cannot be."""
    told: dict[str, int] = {}
    clients = Clients(joined=check_group_name, changed=told.__setitem__)
    connection = Connection(lambda connection, command: None, lambda connection, error: clients.lost(connection))
    connection.connection_lost(None)
    with pytest.raises(InvalidGroup):
        clients.others()[RequestCode.HEART_BEAT](Request(beat("group", "a/b"), connection))
    assert told == {"group": 0}


def test_who_begins_to_share_queues_is_told_of(broker: Broker, store: MessageStore) -> None:
    for model in ("BROADCASTING", "CLUSTERING", "CLUSTERING", "BROADCASTING"):
        broker.ask(RequestCode.HEART_BEAT, body=bytes(beat("group", model=model).body))
        assert is_served(store.path, "group") == (model == "CLUSTERING")


def test_what_one_connection_says_of_its_clients_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under whatever names. Who says it again says no more, and who is gone makes room."""
    monkeypatch.setattr("store.remoting.clients.MAX_BODY_BYTES", 10_000)

    def fits(broker: Broker, id: str, size: int = 2800, group: str = "group", kind: str = "consumer") -> bool:
        body = {"clientID": id, f"{kind}DataSet": [{"groupName": group, "consumeType": "x" * size}]}
        answer = broker.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY)
        return answer.code == ResponseCode.SUCCESS

    def leave(id: str) -> None:
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient(id, consumer_group="group"))

    assert all(fits(broker, id) for id in "abcab")
    assert not any((fits(broker, "d"), fits(broker, "a", group="other"), fits(broker, "a", 5000)))
    assert sum(fits(broker, "p", group=f"p{number}", kind="producer") for number in range(20)) < 3
    leave("b")
    assert fits(broker, "d", 2000)
    with Client() as client:
        other = Broker(broker.serving, client)
        assert fits(other, "a", 6000)
        assert fits(broker, "e")  # for a came on another one
        assert not fits(other, "c", 6000)
    until(lambda: members(broker) == ["c", "d", "e"])
    for id in "cde":
        leave(id)
    assert fits(broker, "f", 8000)


def test_members_are_told_of_each_other(broker: Broker) -> None:
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as member:
        member.sendall(encode(Command(RequestCode.HEART_BEAT, body=heartbeat("told"))))
        first = [read(member), read(member)]  # of itself, too, as RocketMQ's broker tells
        assert {command.is_response for command in first} == {True, False}
        broker.ask(RequestCode.HEART_BEAT, body=heartbeat("other"))
        told = read(member)
    assert (told.code, told.is_oneway) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, True)
    assert Group.of(told.fields) == Group("group")


def test_a_connection_is_told_once_however_many_clients_it_has(broker: Broker) -> None:
    """Three thousand on one, each told of each, kept everybody else waiting for minutes."""
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as many:
        for name in ("a", "b", "c"):
            many.sendall(encode(Command(RequestCode.HEART_BEAT, body=heartbeat(name))))
            assert {read(many).is_response, read(many).is_response} == {True, False}
        broker.ask(RequestCode.HEART_BEAT, body=heartbeat("other"))
        many.sendall(encode(Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Group("group").texts())))
        assert [read(many).is_response, read(many).is_response] == [False, True]


def read(connection: socket.socket) -> Command:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += connection.recv(count - len(data))
        return data

    return decode(exactly(*struct.unpack(">i", exactly(4))))


def test_a_pull_reads_what_its_group_subscribes_to(broker: Broker, store: MessageStore) -> None:
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


def test_no_member_of_another_group(broker: Broker) -> None:
    answer: Any = broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Group("nobody"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, nobody")
