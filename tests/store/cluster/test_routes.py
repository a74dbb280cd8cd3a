"""What name servers answer, of RocketMQ 5 and of older ones."""

from __future__ import annotations

import pickle

import pytest

from store import BadFrame
from store.cluster.routes import Broker, parse_reset, parse_route, parse_topics
from store.model.log_protocol import Queue

TWO_BROKERS = b"""{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.2:10911"},"brokerName":"broker-b","cluster":"C"},
{"brokerAddrs":{"1":"10.0.0.3:10911","0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C"}],
"queueDatas":[{"brokerName":"broker-b","perm":4,"readQueueNums":1,"writeQueueNums":1,"topicSysFlag":0},
{"brokerName":"broker-a","perm":6,"readQueueNums":2,"writeQueueNums":1,"topicSysFlag":0}]}"""


def test_a_route_over_two_brokers_with_integer_keys_as_old_name_servers_write_them() -> None:
    route = parse_route("orders", TWO_BROKERS, 1.0)
    assert [str(queue) for queue in route.read] == ["orders/broker-a:0", "orders/broker-a:1", "orders/broker-b:0"]
    assert [str(queue) for queue in route.write] == ["orders/broker-a:0"]
    a = route.read[Queue("orders", 1, broker="broker-a")]
    assert (a.readable, a.writable) == ("10.0.0.1:10911", ["10.0.0.1:10911"])
    assert [a.next(attempt).is_copy for attempt in range(5)] == [False, False, True, True, False]
    assert (a.next(2).readable, a.next(2).writable) == ("10.0.0.3:10911", a.writable)


def test_a_broker_whose_master_is_gone_is_read_and_not_written() -> None:
    broker = Broker("a", ((1, "10.0.0.3:10911"),))
    assert (broker.readable, broker.writable) == ("10.0.0.3:10911", [])


def test_no_route() -> None:
    for data in (b'{"queueDatas":[{}]}', b'{"queueDatas":3}', b'{"brokerDatas":[{"brokerName":"a"}]}'):
        with pytest.raises(BadFrame, match="topic 'orders'"):
            parse_route("orders", data, 0.0)
    with pytest.raises(BadFrame, match="topics"):
        parse_topics(b'{"topicList":3}')
    with pytest.raises(BadFrame):
        parse_topics(b"<html>")


def test_queues_of_brokers_have_an_order_and_names_of_their_own() -> None:
    a0, a10, b0 = Queue("t", 0, broker="a"), Queue("t", 10, broker="a"), Queue("t", 0, broker="b")
    assert sorted([b0, a10, a0]) == [a0, a10, b0]
    assert len({a0, b0, Queue("t", 0), Queue("t", 0, broker="a")}) == 3
    assert pickle.loads(pickle.dumps(a10)) == a10
    assert (a10.name, str(a10), Queue("t", 10).name) == ("a:10", "t/a:10", "10")


def test_what_a_reset_brings() -> None:
    """As fastjson writes it: keys are objects."""
    one = b'{"brokerName":"a","queueId":1,"topic":"t"}:17'
    other = b'{"topic":"t", "brokerName":"b", "queueId":0} : 0'
    expected = {Queue("t", 1, broker="a"): 17, Queue("t", 0, broker="b"): 0}
    assert parse_reset(b'{"offsetTable":{' + one + b"," + other + b"}}") == expected
    assert parse_reset(b'{"offsetTable":{}}') == {}
    for wrong in (b'{"queueId":1}:3', b'{"brokerName":"a","queueId":"x","topic":"t"}:3', b"{x}:3"):
        with pytest.raises(BadFrame):
            parse_reset(b'{"offsetTable":{' + wrong + b"}}")
