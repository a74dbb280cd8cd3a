"""Accounts: whose signature is right, and what they may do with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store import ConfigError, MessageStore
from store.model.codes import RequestCode, ResponseCode
from store.remoting.access import Access, signature
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import CommitOffset, CreateTopic, GetRoute, Header, PullMessage, SendMessage, SendMessageV2
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
    """The answer to a request that is signed."""
    command = Command(code, {**({} if header is None else header.texts()), "AccessKey": key}, body)
    signed = replace(command, fields={**command.fields, "Signature": signature(command, secret.encode())})
    return broker.client.ask(broker.address, code, signed.fields, body).result()


def pull(group: str, topic: str) -> PullMessage:
    return PullMessage(group, topic, 0, 0, 32, SUBSCRIPTION, 0, 0, 0, "*")


def beat(group: str, topic: str) -> bytes:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    return json.dumps({"clientID": "me", "consumerDataSet": [consumer]}).encode()


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
]


@pytest.mark.parametrize(("code", "header", "body", "why"), CASES)
def test_what_an_account_may_do(broker: Broker, code: int, header: Header, body: bytes, why: str) -> None:
    answer = ask(broker, "clerk", "secret", code, header, body)
    assert (answer.code != ResponseCode.NO_PERMISSION) == (why == "ok")
    assert why == "ok" or why in (answer.remark or "")
    assert ask(broker, "admin", "12345678", code, header, body).code != ResponseCode.NO_PERMISSION


def test_who_is_not_who_he_says(broker: Broker, store: MessageStore) -> None:
    for key, secret in (("clerk", "12345678"), ("nobody", "secret"), ("", "")):
        answer = ask(broker, key, secret, RequestCode.SEND_MESSAGE_V2, send(), b"body")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "signature" in (answer.remark or "") or "no account" in (answer.remark or "")
    assert broker.send(b"unsigned").code == ResponseCode.NO_PERMISSION
    broker.client.tell(broker.address, RequestCode.SEND_MESSAGE_V2, send().texts(), b"oneway")
    assert ask(broker, "admin", "12345678", RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders")).code == 0
    assert store.max_offset("orders", 0) == 0


def test_what_was_changed_on_the_way(broker: Broker) -> None:
    """A field, the body, or a field that was added."""
    command = Command(RequestCode.SEND_MESSAGE_V2, {**send().texts(), "AccessKey": "clerk"}, b"body")
    fields = {**command.fields, "Signature": signature(command, b"secret")}
    changes: list[tuple[dict[str, str], bytes]] = [({}, b"bodY"), ({"e": "1"}, b"body"), ({"more": "x"}, b"body")]
    for change, body in changes:
        answer = broker.client.ask(broker.address, command.code, {**fields, **change}, body).result()
        assert (answer.code, "signature" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
    assert broker.client.ask(broker.address, command.code, fields, b"body").result().code == ResponseCode.SUCCESS


def test_who_comes_from_a_known_address_need_not_sign(broker: Broker) -> None:
    answer = ask(broker, "neighbour", "wrong", RequestCode.SEND_MESSAGE_V2, send(), b"body")
    assert answer.code == ResponseCode.SUCCESS
    answer = ask(broker, "neighbour", "wrong", RequestCode.PULL_MESSAGE, pull("readers", "orders"))
    assert answer.code == ResponseCode.NO_PERMISSION


def test_addresses_that_may_do_everything(store: MessageStore, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("globalWhiteRemoteAddresses: [10.*, 127.0.0.1]\naccounts: []\n")
    with serve(store, "127.0.0.1:0", access=Access.load(path)) as serving:
        assert Broker(serving, client).send(b"body").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no accounts"),
        ("accounts: 7", "no accounts"),
        ("accounts: [{accessKey: a}]", "secretKey"),
        ("accounts: [{accessKey: a, secretKey: [1]}]", "no text"),
        ("accounts: [{accessKey: a, secretKey: b, topicPerms: [orders=WRITE]}]", "'WRITE' is none of DENY, PUB"),
        ("accounts: [", "cannot be read"),
        ("accounts: !!python/object:os.system [ls]", "cannot be read"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*{why}"):
        Access.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    missing: Any = tmp_path / "nowhere.yml"
    with pytest.raises(ConfigError, match="cannot be read"):
        Access.load(missing)
