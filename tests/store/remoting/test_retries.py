"""Messages that clients send back, and those that they send to be delivered later."""

from __future__ import annotations

import time

import pytest

from store import Message, MessageStore
from store.broker.response_codes import ResponseCode
from store.files.consumer_offsets import ConsumerOffsets
from store.remoting.codes import RequestCode
from store.remoting.headers import SendBack
from tests.store.remoting.broker import Broker
from tests.store.remoting.test_clients import heartbeat
from tests.waiting import until


def test_a_group_is_made_with_its_first_member(broker: Broker, store: MessageStore) -> None:
    assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a")).code == ResponseCode.SUCCESS
    assert store.topics()["%RETRY%group"] == 1
    assert ConsumerOffsets(store.path).settings("group") is not None


def test_sent_back(broker: Broker, store: MessageStore) -> None:
    store.put(Message("orders", b"again", keys="k", queue_id=0))
    (message,) = store.get_message("g", "orders", 0, 0).messages
    back = SendBack(message.physical_offset, "group", 1, origin_topic="orders")
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SUCCESS
    until(lambda: "%RETRY%group" in store.topics() and store.max_offset("%RETRY%group", 0) == 1)
    (again,) = store.get_message("g", "%RETRY%group", 0, 0).messages
    assert (again.body, again.reconsume_times, again.properties["RETRY_TOPIC"]) == (b"again", 1, "orders")
    dead = SendBack(message.physical_offset, "group", -1)
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead).code == ResponseCode.SUCCESS
    (message,) = store.get_message("g", "%DLQ%group", 0, 0).messages
    assert message.body == b"again"


@pytest.mark.parametrize("offset", [5, 1 << 40])
def test_what_is_not_there_is_not_sent_back(broker: Broker, store: MessageStore, offset: int) -> None:
    store.put(Message("orders", b"body"))
    answer = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(offset, "group", 1))
    assert answer.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.SERVICE_NOT_AVAILABLE)


def test_delivered_later(broker: Broker, store: MessageStore) -> None:
    began = time.time()
    answer = broker.send(b"later", properties="DELAY\x011\x02TAGS\x01paid\x02")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert store.max_offset("orders", 0) == 0
    until(lambda: store.max_offset("orders", 0) == 1)
    (message,) = store.get_message("g", "orders", 0, 0).messages
    assert (message.body, message.tags, time.time() >= began + 1) == (b"later", "paid", True)


def test_a_delay_that_is_no_number(broker: Broker) -> None:
    answer = broker.send(b"", properties="DELAY\x01soon\x02")
    assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "property DELAY='soon' is no number")
