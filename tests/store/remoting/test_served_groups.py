from __future__ import annotations

import json

import pytest

from store import Message, MessageStore
from store.directory.directory_group import DirectoryGroup
from store.disk.consumer_offsets import ConsumerOffsets
from store.model.codes import RequestCode, ResponseCode
from store.remoting.headers import (
    CommitOffset,
    ConsumerGroup,
    ConsumeStats,
    DeleteGroup,
    GroupQueue,
    Offset,
    ResetOffset,
)
from tests.store.remoting.broker import Broker
from tests.store.remoting.test_heart_beats import heartbeat

CONFIGURE, DELETE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP


def nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


def test_given_settings_are_changed(broker: Broker, store: MessageStore) -> None:
    for settings in ({"retryMaxTimes": 3}, {"retryQueueNums": 2}):
        assert broker.ask(CONFIGURE, None, json.dumps({"groupName": "g", **settings}).encode()).code == 0
    found = ConsumerOffsets(store.path).settings.of("g") or {}
    assert (found["retryMaxTimes"], found["retryQueueNums"], found["groupName"]) == (3, 2, "g")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"groupName": "a/b"}, "only letters"),
        ({}, "only letters"),
        ({"groupName": "g", "retryMaxTimes": "many"}, "must be a whole number"),
        ({"groupName": "g", "retryQueueNums": None}, "must be a whole number"),
        # In the file such a value would be damage, and no message of any group would be retried.
        ({"groupName": "g", "retryMaxTimes": 1 << 31}, "must lie between"),
        ({"groupName": "g", "retryQueueNums": 1 << 17}, "must lie between"),
        # A reader with a deep stack could not parse the file.
        ({"groupName": "g", "attributes": nested(600)}, "objects and lists"),
        ({"groupName": "g", "attributes": "x" * (64 << 10)}, "65,536 bytes"),
        ({"groupName": "g", "consumeEnable": 0}, "true or false"),
        ({"groupName": "g", "consumeBroadcastEnable": "no"}, "true or false"),
    ],
)
def test_wrong_settings_are_refused(broker: Broker, store: MessageStore, settings: dict[str, object], why: str) -> None:
    answer = broker.ask(CONFIGURE, None, json.dumps(settings).encode())
    assert (answer.code, why in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert ConsumerOffsets(store.path).settings.all() == {}


@pytest.mark.parametrize("with_offsets", [False, True])
def test_group_is_deleted(broker: Broker, store: MessageStore, *, with_offsets: bool) -> None:
    store.put(Message("orders", b"x", queue_id=0))
    broker.ask(CONFIGURE, None, b'{"groupName":"g"}')
    store.commit_offsets("other", "orders", {0: 1})
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "orders", 0, 1))
    assert broker.ask(DELETE, DeleteGroup("g", with_offsets)).code == ResponseCode.SUCCESS
    assert ConsumerOffsets(store.path).settings.of("g") is None
    assert store.consumer_offset("g", "orders", 0) == (None if with_offsets else 1)
    assert store.consumer_offset("other", "orders", 0) == 1
    assert broker.ask(DELETE, DeleteGroup("nobody")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def reset(broker: Broker, **fields: object) -> dict[int, int]:
    """Reset the group; return the next offset by queue id."""
    usual = {"group": "g", "topic": "orders", "timestamp": 0, "is_force": True}
    answer = broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset(**{**usual, **fields}))  # type: ignore[arg-type]
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    pieces = bytes(answer.body).decode().removeprefix('{"offsetTable":{').removesuffix("}}").split(',{"brokerName"')
    return {int(piece.split('"queueId":')[1].split(",")[0]): int(piece.rpartition(":")[2]) for piece in pieces}


def test_resets_set_offsets(broker: Broker, store: MessageStore) -> None:
    for queue in (0, 1):
        store.put_many([Message("orders", b"", queue_id=queue)] * 5)
        broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "orders", queue, 3))
    assert reset(broker, timestamp=-1, is_force=False) == {0: 3, 1: 3}
    assert reset(broker, timestamp=-1) == {0: 5, 1: 5}
    assert reset(broker, queue_id=1, offset=2) == {1: 2}
    assert [store.consumer_offset("g", "orders", queue) for queue in (0, 1)] == [5, 2]
    assert reset(broker) == {0: 0, 1: 0}


def test_commit_after_a_reset_counts(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", b"", queue_id=0)] * 5)
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "orders", 0, 5))
    reset(broker)
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "orders", 0, 1))
    answer = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("g", "orders", 0))
    assert Offset.of(answer.fields).offset == 1


def test_wrong_resets_are_refused(broker: Broker) -> None:
    for fields, code in (
        ({"topic": "others"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"group": "a/b"}, ResponseCode.INVALID_PARAMETER),
    ):
        header = ResetOffset(**{"group": "g", "topic": "orders", "timestamp": 0, "is_force": True, **fields})  # type: ignore[arg-type]
        assert broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header).code == code
    broker.ask(CONFIGURE, None, b'{"groupName":"g"}')
    header = ResetOffset("g", "orders", 0, True, queue_id=7)
    assert broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header).code == ResponseCode.INVALID_PARAMETER


def test_group_without_permission_cannot_consume(broker: Broker, store: MessageStore) -> None:
    broker.send(b"body")
    for enabled in (True, False, True):
        broker.ask(CONFIGURE, None, json.dumps({"groupName": "group", "consumeEnable": enabled}).encode())
        answer = broker.pull(0).result()
        assert answer.code == (ResponseCode.SUCCESS if enabled else ResponseCode.NO_PERMISSION)
        assert enabled or answer.remark == "subscription group no permission, group"
    DirectoryGroup(store.path, "group").configure({"consumeEnable": False})
    assert broker.pull(0).result().code == ResponseCode.NO_PERMISSION
    broker.ask(DELETE, DeleteGroup("group", False))
    assert broker.pull(0).result().code == ResponseCode.SUCCESS


def test_group_without_permission_cannot_broadcast(broker: Broker) -> None:
    broker.send(b"body")
    broker.ask(CONFIGURE, None, b'{"groupName":"group","consumeBroadcastEnable":false}')
    for model, code in (("CLUSTERING", ResponseCode.SUCCESS), ("BROADCASTING", ResponseCode.NO_PERMISSION)):
        beat = json.loads(heartbeat("a"))
        beat["consumerDataSet"][0]["messageModel"] = model
        broker.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
        assert broker.pull(0).result().code == code


def test_progress_of_a_group_is_returned(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", b"", queue_id=1)] * 3)
    last = store.get_message("g", "orders", 1, 1).messages[0].store_timestamp
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "orders", 1, 2))
    answer = broker.ask(RequestCode.GET_CONSUME_STATS, ConsumeStats("g"))
    table = bytes(answer.body).decode()
    read = f'{{"brokerOffset":3,"consumerOffset":2,"pullOffset":2,"lastTimestamp":{last}}}'
    assert f'"queueId":1,"topic":"orders"}}:{read}' in table
    unread = '{"brokerOffset":0,"consumerOffset":-1,"pullOffset":-1,"lastTimestamp":0}'
    assert f'"queueId":0,"topic":"orders"}}:{unread}' in table
    nothing = broker.ask(RequestCode.GET_CONSUME_STATS, ConsumeStats("g", "other"))
    assert bytes(nothing.body) == b'{"offsetTable":{}}'


def test_connections_of_a_group_are_returned(broker: Broker) -> None:
    assert (
        broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup("group")).code
        == ResponseCode.CONSUMER_NOT_ONLINE
    )
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a", "paid"))
    content = json.loads(bytes(broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup("group")).body))
    ((connection,), table) = content["connectionSet"], content["subscriptionTable"]
    assert (connection["clientId"], connection["language"]) == ("a", "PYTHON")
    assert table["orders"]["subString"] == "paid"
