"""How far a group is, and who is in it."""

from __future__ import annotations

import json

from store import Message, MessageStore
from store.broker.response_codes import ResponseCode
from store.remoting.codes import RequestCode
from store.remoting.headers import CommitOffset, ConsumeStats, Group
from tests.store.remoting.broker import Broker
from tests.store.remoting.test_clients import heartbeat


def test_how_far(broker: Broker, store: MessageStore) -> None:
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


def test_who(broker: Broker) -> None:
    assert broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, Group("group")).code == ResponseCode.CONSUMER_NOT_ONLINE
    broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a", "paid"))
    content = json.loads(bytes(broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, Group("group")).body))
    ((connection,), table) = content["connectionSet"], content["subscriptionTable"]
    assert (connection["clientId"], connection["language"]) == ("a", "PYTHON")
    assert table["orders"]["subString"] == "paid"
