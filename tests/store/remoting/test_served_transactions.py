from __future__ import annotations

import socket
import threading

import pytest

from store import MessageStore
from store.format.layout import HALF_TOPIC
from store.model.codes import RequestCode, ResponseCode
from store.remoting.client import Client
from store.remoting.command import Command, encode
from store.remoting.headers import EndTransaction, SendAnswer
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.store.remoting.broker import Broker
from tests.waiting import until

COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
HALF = "TRAN_MSG\1true\2PGROUP\1producers\2UNIQ_KEY\1T1\2"


def prepared(broker: Broker, **fields: object) -> SendAnswer:
    answer = broker.send(b"body", properties=HALF, sys_flag=4, **fields)
    assert answer.code == ResponseCode.SUCCESS
    return SendAnswer.of(answer.fields)


def end(broker: Broker, sent: SendAnswer, how: int, group: str = "producers", **moved: int) -> Command:
    at, queue_offset = int(sent.msg_id[16:], 16) + moved.get("at", 0), sent.queue_offset + moved.get("queue_offset", 0)
    return broker.ask(RequestCode.END_TRANSACTION, EndTransaction(group, queue_offset, at, how, "T1"))


def test_committed_half_message_is_visible(broker: Broker, store: MessageStore) -> None:
    sent = prepared(broker, queue_id=1)
    assert (sent.queue_id, sent.transaction_id) == (1, "T1")
    assert end(broker, sent, UNKNOWN).code == ResponseCode.SUCCESS
    assert store.max_offset("orders", 1) == 0
    assert end(broker, sent, COMMIT).code == ResponseCode.SUCCESS
    (found,) = store.get_message("g", "orders", 1, 0).messages
    assert (found.body, found.msg_id) == (b"body", "T1")


def test_transaction_ends_once(broker: Broker, store: MessageStore) -> None:
    sent = prepared(broker)
    assert end(broker, sent, ROLL_BACK).code == ResponseCode.SUCCESS
    again = end(broker, sent, COMMIT)
    assert (again.code, "already committed or rolled back" in (again.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert store.max_offset("orders", 0) == 0


def test_only_half_messages_of_the_group_can_be_ended(broker: Broker, store: MessageStore) -> None:
    """Not another group's half message, another record, or no record."""
    sent = prepared(broker)
    plain = SendAnswer.of(broker.send(b"plain").fields)
    assert "no half message of group" in (end(broker, sent, COMMIT, "others").remark or "")
    assert "no half message of group" in (end(broker, sent, COMMIT, queue_offset=1).remark or "")
    assert "no half message of group" in (end(broker, plain, COMMIT).remark or "")
    for at in (1, -1, 1 << 40):
        assert end(broker, sent, COMMIT, at=at).code != ResponseCode.SUCCESS
    assert end(broker, sent, 5).code == ResponseCode.INVALID_PARAMETER
    assert (store.max_offset("orders", 0), store.max_offset("orders", 1)) == (1, 0)


@pytest.mark.parametrize("delay", ["DELAY\0013\2", "TIMER_DELAY_SEC\00160\2"])
def test_delayed_half_message_is_refused(broker: Broker, delay: str) -> None:
    answer = broker.send(b"body", properties=HALF + delay)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "transaction" in (answer.remark or "")


def test_retried_committed_message_is_no_half_message(broker: Broker, store: MessageStore) -> None:
    """Old clients send it as a new message, with the properties that they received."""
    end(broker, prepared(broker), COMMIT)
    (seen,) = store.get_message("g", "orders", 0, 0).messages
    properties = "".join(f"{name}\1{value}\2" for name, value in {**seen.properties, "DELAY": "1"}.items())
    answer = broker.send(seen.body, topic="%RETRY%g", properties=properties, reconsume_times=1)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    until(lambda: store.topics().get("%RETRY%g", 0) > 0 and store.max_offset("%RETRY%g", 0) == 1)


def test_half_message_creates_its_topic(broker: Broker, store: MessageStore) -> None:
    end(broker, prepared(broker, topic="new"), COMMIT)
    assert store.topics()["new"] == 4
    assert store.max_offset("new", 0) == 1


def test_client_that_does_not_read_gets_no_further_checks(store: MessageStore) -> None:
    """Unread checks would fill the memory. Other clients are still asked."""
    beat = b'{"clientID":"me@1","producerDataSet":[{"groupName":"%s"}]}'
    asked = threading.Semaphore(0)
    with (
        Client(60, on_request=lambda command: asked.release()) as client,
        serve(
            store,
            "127.0.0.1:0",
            config=BrokerConfig(transactionCheckInterval=10, transactionTimeOut=0, transactionCheckMax=1000),
        ) as serving,
        socket.socket() as deaf,
    ):
        broker, body = Broker(serving, client), bytes(4_000_000)
        for _ in range(4):
            assert broker.send(body, properties=HALF).code == ResponseCode.SUCCESS
        host, _, port = serving.address.rpartition(":")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.sendall(encode(Command(RequestCode.HEART_BEAT, {}, beat % b"producers")))
        until(lambda: store.max_offset(HALF_TOPIC, 0) >= 8)
        broker.send(b"other", properties=HALF, producer_group="others")
        broker.ask(RequestCode.HEART_BEAT, body=beat % b"others")
        counted = []
        for _ in range(2):
            assert all(asked.acquire(timeout=60) for _ in range(5))
            halves = [store.get_message("g", HALF_TOPIC, 0, at, 1) for at in range(store.max_offset(HALF_TOPIC, 0))]
            counted.append(sum(len(half.messages[0].body) == len(body) for half in halves))
        assert counted[0] == counted[1]
