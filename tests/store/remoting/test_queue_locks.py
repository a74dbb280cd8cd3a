from __future__ import annotations

import json

import pytest

from store import BadFrame, MessageStore, RequestRefused
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Queue
from store.remoting.bodies import LockRequest
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.connection import Connection
from store.remoting.queue_locks import Locks
from store.remoting.request import Request
from tests.store.remoting.broker import Broker
from tests.store.remoting.golden import FRAMES
from tests.waiting import until

(MADE,) = {bytes.fromhex(line["body"]) for line in FRAMES if line["code"] == RequestCode.UNLOCK_BATCH_MQ}
TOPICS = {"orders": 4}


def queues(*ids: int) -> list[dict[str, object]]:
    return [{"brokerName": "broker-a", "queueId": id, "topic": "orders"} for id in ids]


def ask(broker: Broker, code: int, client_id: str, *ids: int, group: str = "g") -> list[int]:
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": queues(*ids), "onlyThisBroker": False}
    answer = broker.ask(code, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    if not answer.body:
        return []
    locked = json.loads(bytes(answer.body))["lockOKMQSet"]
    assert locked == queues(*(each["queueId"] for each in locked))
    return [each["queueId"] for each in locked]


def test_request_of_rocketmq_is_read() -> None:
    asked = LockRequest.of(MADE)
    assert (asked.group, asked.client_id, list(asked.queues)) == ("group", "127.0.0.1@1", [Queue("orders", 3)])


@pytest.fixture(autouse=True)
def four_queues(store: MessageStore) -> None:
    store.create_topic("orders", TOPICS["orders"])


def test_one_client_owns_a_queue(broker: Broker) -> None:
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "a", 0, 1) == [0, 1]
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "b", 0, 1, 2) == [2]
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "b", 0, group="other") == [0]
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "a", 0, 1) == [0, 1]
    ask(broker, RequestCode.UNLOCK_BATCH_MQ, "b", 0)
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "b", 0) == []
    ask(broker, RequestCode.UNLOCK_BATCH_MQ, "a", 0)
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "b", 0, 1) == [0]


def test_disconnected_client_keeps_its_locks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be alive, with messages of the queue in hand."""
    with Client() as before:
        assert ask(Broker(broker.serving, before), RequestCode.LOCK_BATCH_MQ, "a", 0, 1) == [0, 1]
        assert ask(broker, RequestCode.LOCK_BATCH_MQ, "b", 2) == [2]
    until(lambda: broker.serving.connections == 1)
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "b", 0, 1, 2) == [2]
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "a", 0) == [0]
    monkeypatch.setattr("store.broker.allocation.LOCK_SECONDS", -1.0)
    assert ask(broker, RequestCode.LOCK_BATCH_MQ, "c", 0, 1) == [0, 1]


def test_disconnected_client_without_locks_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stayed connected learns that another may have owned its queue in between."""
    locks = Locks(lambda: TOPICS)
    gone, here = (Connection(lambda connection, command: None, lambda connection, error: None) for _ in range(2))

    def claim(connection: Connection, body: bytes = MADE) -> bool:
        asked = Request(Command(RequestCode.LOCK_BATCH_MQ, body=body), connection)
        (answer,) = locks.handlers()[RequestCode.LOCK_BATCH_MQ](asked).body
        return bool(json.loads(bytes(answer))["lockOKMQSet"])

    assert claim(gone)
    gone.connection_lost(None)
    locks.forget()
    assert not claim(here, MADE.replace(b"127.0.0.1@1", b"127.0.0.1@2"))
    monkeypatch.setattr("store.broker.allocation.LOCK_SECONDS", -1.0)
    locks.forget()
    assert claim(here)
    locks.forget()
    assert not claim(here)


def test_client_disconnected_before_its_request_gets_no_lock() -> None:
    locks = Locks(lambda: TOPICS)
    connection = Connection(lambda connection, command: None, lambda connection, error: None)
    connection.connection_lost(None)
    asked = Command(RequestCode.LOCK_BATCH_MQ, body=MADE)
    (body,) = locks.handlers()[RequestCode.LOCK_BATCH_MQ](Request(asked, connection)).body
    assert json.loads(bytes(body)) == {"lockOKMQSet": []}


def connection() -> Connection:
    return Connection(lambda connection, command: None, lambda connection, error: None)


def lock(locks: Locks, on: Connection, client_id: str, *ids: int, group: str = "g") -> list[int]:
    body = json.dumps({"clientId": client_id, "consumerGroup": group, "mqSet": queues(*ids)}).encode()
    request = Request(Command(RequestCode.LOCK_BATCH_MQ, body=body), on)
    (answer,) = locks.handlers()[RequestCode.LOCK_BATCH_MQ](request).body
    return [each["queueId"] for each in json.loads(bytes(answer))["lockOKMQSet"]]


def test_only_existing_queues_can_be_locked() -> None:
    locks, on = Locks(lambda: TOPICS), connection()
    assert lock(locks, on, "a", -1, 0, 3, 4, 1 << 30) == [0, 3]
    for number in range(100):
        assert lock(locks, on, f"b{number}", 0, 7, group=f"g{number % 2}" if number else "g") == [0] * (
            number in (1, 2)
        )
    assert {group: list(clients) for group, clients in locks._locked.items()} == {
        "g": ["a"],
        "g1": ["b1"],
        "g0": ["b2"],
    }


def test_number_of_clients_with_locks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.remoting.queue_locks._MAX_CLIENTS", 3)
    locks, on, other = Locks(lambda: TOPICS), connection(), connection()
    for number in range(3):
        assert lock(locks, on, f"{number}", number) == [number]
    for group in ("g", "h"):
        with pytest.raises(RequestRefused, match="3 clients have locked queues on this connection"):
            lock(locks, on, "3", 3, group=group)
    assert lock(locks, on, "0", 0, 1) == [0]
    assert lock(locks, other, "3", 3) == [3]
    locks.forget()
    with pytest.raises(RequestRefused):
        lock(locks, on, "4", 0, group="h")
    body = json.dumps({"clientId": "1", "consumerGroup": "g", "mqSet": queues(1)}).encode()
    locks.handlers()[RequestCode.UNLOCK_BATCH_MQ](Request(Command(RequestCode.UNLOCK_BATCH_MQ, body=body), on))
    locks.forget()
    assert lock(locks, on, "4", 1) == [1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"clientId":"a","consumerGroup":"g","mqSet":[7]}',
        b'{"mqSet":7}',
        b'{"clientId":"%s","consumerGroup":"g"}' % (b"a" * 1025),
    ],
)
def test_wrong_requests_are_refused(broker: Broker, body: bytes) -> None:
    with pytest.raises(BadFrame):
        LockRequest.of(body)
    assert broker.ask(RequestCode.LOCK_BATCH_MQ, body=body).code == ResponseCode.SYSTEM_ERROR
