"""The built-in name server: this broker has every topic, at the address that the client connected to."""

from __future__ import annotations

import json
from typing import Any

from store import MessageStore
from store.model.codes import RequestCode, ResponseCode
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import GetRoute
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.store.remoting.broker import Broker
from tests.store.remoting.golden import FRAMES

MADE = next(line for line in FRAMES if b"brokerDatas" in bytes.fromhex(line["body"]))


def content(answer: Command) -> Any:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return json.loads(bytes(answer.body))


def test_route_has_rocketmqs_format(broker: Broker) -> None:
    route = content(broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders")))
    made = json.loads(bytes.fromhex(MADE["body"]).replace(b"{0:", b'{"0":'))
    assert route.keys() == made.keys()
    (data,), (queues,) = route["brokerDatas"], route["queueDatas"]
    assert data == {**made["brokerDatas"][0], "brokerAddrs": {"0": broker.address}}
    assert queues == {**made["queueDatas"][0], "readQueueNums": 2, "writeQueueNums": 2}


def test_missing_topic_has_no_route(broker: Broker) -> None:
    answer = broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("nowhere"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nowhere" in (answer.remark or "")


def test_topics_are_created_only_if_allowed(store: MessageStore, client: Client) -> None:
    for may, code in ((True, ResponseCode.SUCCESS), (False, ResponseCode.TOPIC_NOT_EXIST)):
        with serve(store, "127.0.0.1:0", config=BrokerConfig(autoCreateTopicEnable=may)) as serving:
            broker = Broker(serving, client)
            assert broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("TBW102")).code == code
            assert broker.send(b"", topic=f"new-{may}").code == code
    assert "new-False" not in store.topics()


def test_cluster_is_described(store: MessageStore, client: Client) -> None:
    with serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName="mine", brokerClusterName="ours")) as serving:
        found = content(Broker(serving, client).ask(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert found["clusterAddrTable"] == {"ours": ["mine"]}
    assert found["brokerAddrTable"]["mine"]["brokerAddrs"] == {"0": serving.address}


def test_topics_of_cluster_and_broker_have_routes(store: MessageStore, client: Client) -> None:
    """Even if producers may not create topics; they are created with their first message."""
    config = BrokerConfig(brokerName="mine", brokerClusterName="ours", autoCreateTopicEnable=False)
    with serve(store, "127.0.0.1:0", config=config) as serving:
        broker = Broker(serving, client)
        for topic, count in (("ours", 16), ("mine", 1)):
            assert topic in content(broker.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))["topicList"]
            route = content(broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic)))
            assert route["queueDatas"][0]["writeQueueNums"] == count
            assert topic not in store.topics()
            assert broker.send(b"", topic=topic, queue_id=count - 1).code == ResponseCode.SUCCESS
            assert store.topics()[topic] == count


def test_topics_are_listed(broker: Broker) -> None:
    assert content(broker.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))["topicList"] == ["orders"]
    assert "TBW102" in content(broker.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))["topicList"]
