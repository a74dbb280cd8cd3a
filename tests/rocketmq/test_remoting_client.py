from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from store import RequestRefused
from store.format.layout import RECORD_HEADER
from store.format.properties import encode_properties
from store.format.stored_message import StoredMessage, decode_record
from store.model.codes import RequestCode, ResponseCode
from store.remoting.bodies import Batched
from store.remoting.client import Client
from store.remoting.headers import GetRoute, Offset, Pulled, PullMessage, SendAnswer, SendMessageV2, TopicQueue
from tests.rocketmq.harness import RocketMQ, free_ports
from tests.store.remoting.broker import encode_batch

pytestmark = pytest.mark.rocketmq

SUSPEND, SUBSCRIPTION = 2, 4


class Theirs(NamedTuple):
    name_server: str
    broker: str
    client: Client


@pytest.fixture(scope="module")
def theirs(rocketmq5: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    ports = free_ports()
    directory = tmp_path_factory.mktemp("theirs") / "mq"
    with rocketmq5.broker(directory, topic="orders", queues=2, **ports), Client(60) as client:
        yield Theirs(f"127.0.0.1:{ports['namesrvPort']}", f"127.0.0.1:{ports['brokerPort']}", client)


def test_client_gets_routes_sends_and_pulls(theirs: Theirs) -> None:
    name_server, broker, client = theirs
    answer = client.request(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders", True).texts())
    route = json.loads(bytes(answer.body))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": broker}
    assert route["queueDatas"][0]["readQueueNums"] == 2

    properties = encode_properties({"KEYS": "k", "own": "café"}).decode()
    header = SendMessageV2("producers", "orders", "TBW102", 4, 1, 0, 1_700_000_000_000, -7, properties)
    sent, left = [], [b"%d" % n for n in range(100)]
    while left:
        asked = [(body, client.ask(broker, RequestCode.SEND_MESSAGE_V2, header.texts(), body)) for body in left]
        answers = [(body, answer.result()) for body, answer in asked]
        sent += [SendAnswer.of(answer.fields) for _, answer in answers if answer.code == ResponseCode.SUCCESS]
        left = [body for body, answer in answers if answer.code == ResponseCode.SYSTEM_BUSY]
    assert {(each.queue_id, each.queue_offset) for each in sent} == {(1, n) for n in range(100)}
    batch = [Batched(n, b"batch %d" % n, encode_properties({"KEYS": f"b{n}"})) for n in range(3)]
    several = replace(header, batch=True, properties="own\1café\2")
    answer = client.request(broker, RequestCode.SEND_BATCH_MESSAGE, several.texts(), encode_batch(batch))
    assert SendAnswer.of(answer.fields).queue_offset == 100

    found: list[StoredMessage] = []
    while len(found) < 103:
        answer = client.request(broker, RequestCode.PULL_MESSAGE, pull(len(found), seconds=60).texts(), timeout=90)
        found += messages(bytes(answer.body))
        assert Pulled.of(answer.fields).next_begin_offset == len(found)
    assert {message.body for message in found[:100]} == {b"%d" % n for n in range(100)}
    assert [(each.body, each.flag, each.keys) for each in found[100:]] == [
        (one.body, one.flag, (f"b{one.flag}",)) for one in batch
    ]
    assert {message.properties["own"] for message in found[:100]} == {"café"}
    answer = client.request(broker, RequestCode.GET_MAX_OFFSET, TopicQueue("orders", 1).texts())
    assert Offset.of(answer.fields).offset == 103


def test_held_pull_is_answered_by_a_new_message(theirs: Theirs) -> None:
    _, broker, client = theirs
    header = SendMessageV2("producers", "orders", "TBW102", 4, 0, 0, 1_700_000_000_000, 0)
    held = client.ask(broker, RequestCode.PULL_MESSAGE, pull(0, queue_id=0, seconds=60).texts(), timeout=120)
    # By now the broker has the pull.
    client.request(broker, RequestCode.GET_MAX_OFFSET, TopicQueue("orders", 0).texts())
    assert not held.done()
    client.request(broker, RequestCode.SEND_MESSAGE_V2, header.texts(), b"wake")
    assert messages(bytes(held.result().body))[0].body == b"wake"


def test_refusals_of_the_broker_are_raised(theirs: Theirs) -> None:
    name_server, broker, client = theirs
    with pytest.raises(RequestRefused, match=f"{name_server}, request 105: .*nowhere") as refused:
        client.request(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("nowhere").texts())
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
    answer = client.ask(broker, RequestCode.PULL_MESSAGE, pull(5000).texts()).result()
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED


def pull(offset: int, queue_id: int = 1, seconds: float = 0) -> PullMessage:
    flags = SUBSCRIPTION | (SUSPEND if seconds else 0)
    return PullMessage("readers", "orders", queue_id, offset, 32, flags, 0, int(seconds * 1000), 0, "*", "TAG")


def messages(data: bytes) -> list[StoredMessage]:
    found, at, width = [], 0, RECORD_HEADER["total_size"].itemsize
    while at < len(data):
        size = int.from_bytes(data[at : at + width], "big")
        found.append(decode_record(data[at : at + size], at))
        at += size
    return found
