from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store import ConfigError, Message, MessageStore
from store.broker.transactions import Transactions
from store.model.codes import RequestCode, ResponseCode
from store.remoting.access import Access, signature
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import (
    CommitOffset,
    ConsumerGroup,
    ConsumeStats,
    CreateTopic,
    EndTransaction,
    GetRoute,
    Header,
    ProducerGroup,
    PullMessage,
    QueryMessage,
    SearchOffset,
    SendBack,
    SendMessage,
    SendMessageV2,
    Topic,
    TopicQueue,
    UnregisterClient,
    ViewMessage,
)
from store.remoting.rights import needs_of
from store.remoting.serving import serve
from tests.store.remoting.broker import SUBSCRIPTION, Broker, send

ACCOUNTS = """
accounts:
  - accessKey: admin
    secretKey: 12345678
    admin: true
  - accessKey: clerk
    secretKey: secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB, bills=PUB|SUB]
    groupPerms: [readers=SUB]
  - accessKey: neighbour
    secretKey: other
    whiteRemoteAddress: 127.0.*
    defaultTopicPerm: PUB
"""


@pytest.fixture
def broker(store: MessageStore, client: Client, tmp_path: Path) -> Iterator[Broker]:
    store.create_topic("bills", 1)
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    with serve(store, "127.0.0.1:0", access=Access.load(path)) as serving:
        yield Broker(serving, client)


def ask(broker: Broker, key: str, secret: str, code: int, header: Header | None, body: bytes = b"") -> Command:
    command = Command(code, {**({} if header is None else header.texts()), "AccessKey": key}, body)
    signed = replace(command, fields={**command.fields, "Signature": signature(command, secret.encode())})
    return broker.client.ask(broker.address, code, signed.fields, body).result()


def pull(group: str, topic: str) -> PullMessage:
    return PullMessage(group, topic, 0, 0, 32, SUBSCRIPTION, 0, 0, 0, "*")


def beat(group: str, topic: str) -> bytes:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    return json.dumps({"clientID": "me", "consumerDataSet": [consumer]}).encode()


def produces(group: str) -> bytes:
    return json.dumps({"clientID": "me", "producerDataSet": [{"groupName": group}]}).encode()


def lock(group: str, topic: str) -> bytes:
    queues = [{"brokerName": "broker-a", "queueId": 0, "topic": topic}]
    return json.dumps({"consumerGroup": group, "clientId": "me", "mqSet": queues}).encode()


LOCKS_AND_BEATS = b'{"clientID": "me", "clientId": "me", "consumerGroup": "readers"}'
LEAVING = UnregisterClient("me", None, "readers")
NEW = CreateTopic("new", "TBW102", 1, 1, 6, "SINGLE_TAG")
CASES: list[tuple[int, Header | None, bytes, str]] = [
    (RequestCode.SEND_MESSAGE, send(SendMessage), b"", "ok"),
    (RequestCode.SEND_MESSAGE_V2, send(SendMessageV2), b"", "ok"),
    (RequestCode.SEND_MESSAGE_V2, send(topic="others"), b"", "no permission PUB of topic 'others'"),
    (RequestCode.SEND_MESSAGE_V2, send(topic="%RETRY%others"), b"", "no permission SUB of group 'others'"),
    (RequestCode.PULL_MESSAGE, pull("readers", "bills"), b"", "ok"),
    (RequestCode.PULL_MESSAGE, pull("readers", "orders"), b"", "no permission SUB of topic 'orders'"),
    (RequestCode.LITE_PULL_MESSAGE, pull("others", "bills"), b"", "no permission SUB of group 'others'"),
    (RequestCode.HEART_BEAT, None, beat("readers", "bills"), "ok"),
    (RequestCode.HEART_BEAT, None, beat("readers", "%RETRY%readers"), "ok"),
    (RequestCode.HEART_BEAT, None, beat("readers", "orders"), "no permission SUB of topic 'orders'"),
    (RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("others", "bills", 0, 1), b"", "no permission SUB of group"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, NEW, b"", "needs an admin account"),
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders"), b"", "ok"),
    (RequestCode.GET_BROKER_CONFIG, None, b"", "needs an admin account"),
    (RequestCode.GET_BROKER_RUNTIME_INFO, None, b"", "needs an admin account"),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, b"", "needs an admin account"),
    (RequestCode.GET_BROKER_CONSUME_STATS, None, b"", "needs an admin account"),
    (9999, None, b"", "needs an admin account"),
    (RequestCode.HEART_BEAT, None, produces("readers"), "ok"),
    (RequestCode.UNREGISTER_CLIENT, UnregisterClient("me", "others"), b"", "ok"),
    (RequestCode.UNREGISTER_CLIENT, UnregisterClient("me", None, "others"), b"", "no permission SUB of group"),
    (RequestCode.END_TRANSACTION, EndTransaction("others", 0, 0, 8, ""), b"", "no permission PUB or SUB of group"),
    (RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(0, "others", 0), b"", "no permission SUB of group 'others'"),
    (RequestCode.LOCK_BATCH_MQ, None, lock("others", "bills"), "no permission SUB of group 'others'"),
    (RequestCode.LOCK_BATCH_MQ, None, lock("readers", "orders"), "no permission SUB of topic 'orders'"),
    (RequestCode.UNLOCK_BATCH_MQ, None, lock("others", "bills"), "no permission SUB of group 'others'"),
    (RequestCode.LOCK_BATCH_MQ, None, lock("readers", "bills"), "ok"),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("others"), b"", "no permission SUB of group 'others'"),
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup("others"), b"", "no permission SUB of group 'others'"),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroup("others"), b"", "no permission PUB or SUB of group"),
    (RequestCode.GET_CONSUME_STATS, ConsumeStats("others"), b"", "no permission SUB of group 'others'"),
    (RequestCode.GET_MAX_OFFSET, TopicQueue("secrets", 0), b"", "no permission PUB or SUB of topic 'secrets'"),
    (RequestCode.GET_MAX_OFFSET, TopicQueue("orders", 0), b"", "ok"),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset("secrets", 0, 1), b"", "no permission PUB or SUB of topic"),
    (RequestCode.GET_TOPIC_STATS_INFO, Topic("secrets"), b"", "no permission PUB or SUB of topic 'secrets'"),
    (RequestCode.GET_TOPIC_CONFIG, Topic("secrets"), b"", "no permission PUB or SUB of topic 'secrets'"),
    (RequestCode.QUERY_MESSAGE, QueryMessage("orders", "k", 1, 0, 1), b"", "no permission SUB of topic 'orders'"),
]


@pytest.mark.parametrize(("code", "header", "body", "why"), CASES)
def test_permissions_of_an_account(broker: Broker, code: int, header: Header, body: bytes, why: str) -> None:
    answer = ask(broker, "clerk", "secret", code, header, body)
    assert (answer.code != ResponseCode.NO_PERMISSION) == (why == "ok")
    assert why == "ok" or why in (answer.remark or "")
    assert ask(broker, "admin", "12345678", code, header, body).code != ResponseCode.NO_PERMISSION


def test_only_listed_codes_require_an_admin(broker: Broker) -> None:
    """A code without a rule requires an admin, so that a new code is never open by oversight."""
    strict = {code for code in RequestCode if needs_of(Command(code, {}, LOCKS_AND_BEATS)) is None}
    assert strict == {
        *(RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONSUME_STATS),
        *(RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        *(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP),
        *(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET),
        *(RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED),
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    }


@pytest.mark.parametrize("topic", ["secrets", "SCHEDULE_TOPIC_XXXX"])
def test_messages_by_offset_need_their_topic(broker: Broker, store: MessageStore, topic: str) -> None:
    """By message id, or by sending back a message of another topic, whose copy the group could read."""
    store.create_topic("secrets", 1)
    store.put(Message("secrets", b"secret", delay_level=18 if topic != "secrets" else 0))
    at = int(next(iter(store.scan(topic, 17 if topic != "secrets" else 0, 0, 1, ("physicalOffset",))))[0][0].as_py())
    for code, header in (
        (RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(at)),
        (RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(at, "readers", 0)),
    ):
        answer = ask(broker, "clerk", "secret", code, header)
        assert (answer.code, f"SUB of topic '{topic}'" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        assert ask(broker, "admin", "12345678", code, header).code == ResponseCode.SUCCESS


def test_half_message_needs_permission_for_its_topic(broker: Broker, store: MessageStore) -> None:
    """The permission for the producer group is not enough: a half message's id can be guessed."""
    store.create_topic("secrets", 1)
    half = Transactions(store, "readers").prepare([Message("secrets", b"x")])[0]
    end = EndTransaction("readers", half.queue_offset, half.physical_offset, 8, half.transaction_id)
    assert ask(broker, "clerk", "secret", RequestCode.END_TRANSACTION, end).code == ResponseCode.NO_PERMISSION
    assert store.max_offset("secrets", 0) == 0
    assert ask(broker, "admin", "12345678", RequestCode.END_TRANSACTION, end).code == ResponseCode.SUCCESS
    assert store.max_offset("secrets", 0) == 1


def test_producer_of_a_foreign_group_is_not_registered(broker: Broker) -> None:
    """Otherwise it would be asked about the group's transactions. The other groups of its heartbeat are accepted."""
    for group, there in (("others", False), ("readers", True)):
        assert ask(broker, "clerk", "secret", RequestCode.HEART_BEAT, None, produces(group)).code == 0
        code, header = RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroup(group)
        assert (ask(broker, "admin", "12345678", code, header).code == ResponseCode.SUCCESS) == there


def test_lists_contain_only_permitted_names(broker: Broker, store: MessageStore) -> None:
    store.create_topic("secrets", 1)
    for group in ("readers", "others"):
        store.commit_offsets(group, "bills", {0: 0})
    listed = ask(broker, "clerk", "secret", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
    assert set(json.loads(bytes(listed.body))["topicList"]) == {"bills", "orders"}
    offsets = ask(broker, "clerk", "secret", RequestCode.GET_ALL_CONSUMER_OFFSET, None)
    assert json.loads(bytes(offsets.body))["offsetTable"].keys() == {"bills@readers"}
    offsets = ask(broker, "admin", "12345678", RequestCode.GET_ALL_CONSUMER_OFFSET, None)
    assert json.loads(bytes(offsets.body))["offsetTable"].keys() == {"bills@readers", "bills@others"}


def test_client_id_of_another_account_cannot_be_taken(broker: Broker) -> None:
    """Even with permission for the group, it can neither replace nor unregister that client."""
    body = beat("readers", "bills")
    assert ask(broker, "clerk", "secret", RequestCode.HEART_BEAT, None, body).code == ResponseCode.SUCCESS
    with Client(timeout=60) as other:
        foreign = Broker(broker.serving, other)
        for code, header in ((RequestCode.HEART_BEAT, None), (RequestCode.UNREGISTER_CLIENT, LEAVING)):
            answer = ask(foreign, "admin", "12345678", code, header, body if header is None else b"")
            assert (answer.code, "another connection" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
    members = ask(broker, "clerk", "secret", RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("readers"))
    assert json.loads(bytes(members.body)) == {"consumerIdList": ["me"]}
    assert ask(broker, "clerk", "secret", RequestCode.UNREGISTER_CLIENT, LEAVING).code == ResponseCode.SUCCESS


def test_wrong_signature_is_refused(broker: Broker, store: MessageStore) -> None:
    for key, secret in (("clerk", "12345678"), ("nobody", "secret"), ("", "")):
        answer = ask(broker, key, secret, RequestCode.SEND_MESSAGE_V2, send(), b"body")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "signature" in (answer.remark or "") or "no account" in (answer.remark or "")
    assert broker.send(b"unsigned").code == ResponseCode.NO_PERMISSION
    broker.client.tell(broker.address, RequestCode.SEND_MESSAGE_V2, send().texts(), b"oneway")
    assert ask(broker, "admin", "12345678", RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders")).code == 0
    assert store.max_offset("orders", 0) == 0


def test_changed_request_is_refused(broker: Broker) -> None:
    command = Command(RequestCode.SEND_MESSAGE_V2, {**send().texts(), "AccessKey": "clerk"}, b"body")
    fields = {**command.fields, "Signature": signature(command, b"secret")}
    changes: list[tuple[dict[str, str], bytes]] = [({}, b"bodY"), ({"e": "1"}, b"body"), ({"more": "x"}, b"body")]
    for change, body in changes:
        answer = broker.client.ask(broker.address, command.code, {**fields, **change}, body).result()
        assert (answer.code, "signature" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
    assert broker.client.ask(broker.address, command.code, fields, b"body").result().code == ResponseCode.SUCCESS


def test_known_address_needs_no_signature(broker: Broker) -> None:
    answer = ask(broker, "neighbour", "wrong", RequestCode.SEND_MESSAGE_V2, send(), b"body")
    assert answer.code == ResponseCode.SUCCESS
    answer = ask(broker, "neighbour", "wrong", RequestCode.PULL_MESSAGE, pull("readers", "orders"))
    assert answer.code == ResponseCode.NO_PERMISSION


def test_trusted_addresses_may_do_everything(store: MessageStore, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("globalWhiteRemoteAddresses: [10.*, 127.0.0.1]\naccounts: []\n")
    with serve(store, "127.0.0.1:0", access=Access.load(path)) as serving:
        assert Broker(serving, client).send(b"body").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot read the accounts"),
        ("accounts: 7", "cannot read the accounts"),
        ("accounts: [{accessKey: a}]", "secretKey"),
        ("accounts: [{accessKey: a, secretKey: [1]}]", "no text"),
        ("accounts: [{accessKey: a, secretKey: b, topicPerms: [orders=WRITE]}]", "'WRITE' is none of DENY, PUB"),
        ("accounts: [", "cannot be read"),
        ("accounts: !!python/object:os.system [ls]", "cannot be read"),
    ],
)
def test_wrong_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*{why}"):
        Access.load(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    missing: Any = tmp_path / "nowhere.yml"
    with pytest.raises(ConfigError, match="cannot be read"):
        Access.load(missing)
