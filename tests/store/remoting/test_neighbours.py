"""Clients of a server, and consumers beside it, in one group: they do not see each other, so they are told."""

from __future__ import annotations

import json

import pytest

from store import GroupConflict, MessageModel, MessageStore
from store.any_group import Subscription
from store.local_group import LocalGroup
from store.publish.figures import served_members
from store.remoting.codes import RequestCode
from store.remoting.headers import UnregisterClient
from tests.store.remoting.broker import Broker
from tests.store.remoting.test_clients import heartbeat

ALL = {"orders": Subscription()}


def test_nobody_joins_a_group_that_is_served(store: MessageStore, broker: Broker) -> None:
    group = LocalGroup(store.path, "group")
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("b"))
    with pytest.raises(GroupConflict, match=r"group group: 2 clients consume in it through a server"):
        group.join(ALL)
    group.join(ALL, model=MessageModel.BROADCASTING).leave()
    LocalGroup(store.path, "others").join(ALL).leave()
    for name in ("a", "b"):
        broker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient(name, None, "group"))
    group.join(ALL).leave()


def test_who_was_there_before_is_named(store: MessageStore, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with LocalGroup(store.path, "group").join(ALL) as member:
        broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert member.id in caplog.text
    caplog.clear()
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("b"))
    assert caplog.records == []


def test_broadcasting_clients_do_not_mind(store: MessageStore, broker: Broker) -> None:
    beat = json.loads(heartbeat("a"))
    beat["consumerDataSet"][0]["messageModel"] = "BROADCASTING"
    broker.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
    assert served_members(store.path, "group") == 0
    LocalGroup(store.path, "group").join(ALL).leave()
