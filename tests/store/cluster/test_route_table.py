from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace

import pytest

from store import BadFrame, RequestRefused, Unreachable
from store.cluster.address import ClusterAddress
from store.cluster.brokers import Brokers
from store.cluster.route_table import ROUTE_SECONDS, Broker, parse_reset, parse_route, parse_topics
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Queue
from store.remoting.request import Request, Response, of_json
from tests.store.cluster.test_pulls import Moody


class Clock:
    """A clock that only `sleep` advances; each sleep calls the function given."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._now = 0.0
        self._meanwhile = meanwhile

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self._meanwhile()


def said(brokers: Mapping[str, str]) -> Response:
    datas = [{"brokerName": name, "brokerAddrs": {"0": address}} for name, address in brokers.items()]
    queues = [{"brokerName": name, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1} for name in brokers]
    return of_json({"brokerDatas": datas, "queueDatas": queues})


def nowhere(brokers: Iterable[str]) -> Mapping[str, str]:
    return dict.fromkeys(sorted(brokers), "127.0.0.1:1")


def test_restarted_name_server_hides_no_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("store.cluster.route_table.time", Clock())
    known = {"a", "b"}
    of_one = {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda request: said(nowhere(known))}
    of_other = {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda request: said(nowhere("ab"))}
    with (
        closing(Moody(others=of_one)) as one,
        closing(Moody(others=of_other)) as other,
        closing(Brokers(ClusterAddress((one.server.address, other.server.address)))) as brokers,
    ):
        for _ in range(2):
            assert (found := brokers.routes.route("orders", oldest=0.0)) is not None
            assert found.brokers == {"a", "b"}
            known.discard("b")


def test_first_answers_are_those_of_all_name_servers() -> None:
    """The one that is asked first restarted, and knows a slave, or nothing."""
    of_slave = {"brokerName": "b", "brokerAddrs": {"1": "127.0.0.1:2"}}
    queues = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    restarted = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda request: of_json(
            {"brokerDatas": [of_slave], "queueDatas": [queues]}
        ),
        RequestCode.GET_BROKER_CLUSTER_INFO: lambda request: of_json({"brokerAddrTable": {"b": of_slave}}),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda request: of_json({"topicList": []}),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda request: of_json({"topicList": []}),
    }
    others = {
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda request: of_json({"topicList": ["orders"]}),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda request: of_json({"topicList": []}),
    }
    with (
        closing(Moody(others=restarted)) as one,
        closing(Moody(others=others)) as other,
        closing(Brokers(ClusterAddress((one.server.address, other.server.address)))) as brokers,
    ):
        whole = Broker("b", ((0, other.server.address), (1, "127.0.0.1:2")))
        queue = Queue("orders", 0, broker="b")
        assert (route := brokers.routes.route("orders")) is not None
        assert (route.read, route.write) == ({queue: whole}, {queue: whole})
        assert brokers.routes.brokers() == [whole]
        assert brokers.routes.topics(0.0) == ["orders"]


def test_route_without_a_master_is_soon_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.cluster.route_table.time", clock := Clock())
    queue = Queue("orders", 0, broker="b")
    with closing(Moody()) as names, closing(Brokers(ClusterAddress((names.server.address,)))) as brokers:
        names.addresses = {"1": "127.0.0.1:2"}
        assert brokers.routes.readable([queue])[queue].is_slave
        names.addresses = {"0": "127.0.0.1:1", "1": "127.0.0.1:2"}
        clock.sleep(1.0)
        assert not brokers.routes.readable([queue])[queue].is_slave


def test_last_route_counts_while_no_name_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.cluster.route_table.time", clock := Clock())
    queue = Queue("orders", 0, broker="b")
    with closing(Brokers(ClusterAddress(((names := Moody()).server.address,)))) as brokers:
        assert list(brokers.routes.readable([queue])) == [queue]
        names.close()
        for _ in range(5):
            clock.sleep(ROUTE_SECONDS)
            assert list(brokers.routes.readable([queue])) == [queue]
        assert clock.monotonic() == 5 * ROUTE_SECONDS
        with pytest.raises(Unreachable, match="no name server answers"):
            brokers.routes.route("orders", oldest=0.0)


def test_silent_name_servers_are_asked_once_for_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise held pulls would wait through one timeout for each topic."""
    monkeypatch.setattr("store.cluster.route_table.time", clock := Clock())
    asked: list[Request] = []

    def refuse(request: Request) -> Response:
        asked.append(request)
        return Response(ResponseCode.SERVICE_NOT_AVAILABLE) if len(asked) > 2 else said(nowhere("b"))

    queues = [Queue(topic, 0, broker="b") for topic in ("orders", "others")]
    with (
        closing(Moody(others={RequestCode.GET_ROUTEINFO_BY_TOPIC: refuse})) as names,
        closing(Brokers(ClusterAddress((names.server.address,)))) as brokers,
    ):
        for looks in (2, 3, 4):
            assert list(brokers.routes.readable(queues)) == queues
            assert len(asked) == looks
            clock.sleep(ROUTE_SECONDS)


def test_unlisted_broker_is_missing_with_its_last_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queues count as deleted only if a name server lists the broker and the topic's route lacks it."""
    monkeypatch.setattr("store.cluster.route_table.time", clock := Clock())
    routed, listed = ["a", "b"], ["a", "b"]

    def listing(request: Request) -> Response:
        return of_json({"brokerAddrTable": {name: {"brokerName": name, "brokerAddrs": {}} for name in listed}})

    answers = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda request: said(nowhere(routed)),
        RequestCode.GET_BROKER_CLUSTER_INFO: listing,
    }
    queues = [Queue("orders", 0, broker=name) for name in "abc"]
    with closing(Moody(others=answers)) as names:
        brokers = Brokers(address := ClusterAddress((names.server.address,)))
        named = Brokers(replace(address, brokers=frozenset("ab")))
        with closing(brokers), closing(named):
            found = brokers.routes.readable(queues)
            assert [broker.readable for broker in found.values()] == ["127.0.0.1:1", "127.0.0.1:1", ""]
            assert list(named.routes.readable(queues)) == queues[:2]
            routed.remove("b")
            listed.remove("b")
            clock.sleep(ROUTE_SECONDS)
            assert brokers.routes.readable(queues[1:2]) == {queues[1]: found[queues[1]]}
            assert named.routes.unlisted() == {"b"}
            listed.append("b")
            clock.sleep(ROUTE_SECONDS)
            assert brokers.routes.readable(queues[1:2]) == {}


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is leaving"),
        (ResponseCode.SYSTEM_ERROR, "name server not ready"),
    ],
)
def test_next_name_server_is_asked_if_one_is_not_ready(code: ResponseCode, remark: str) -> None:
    """With only one, the client retries until its timeout."""

    def refuse(request: Request) -> Response:
        return Response(code, remark)

    with (
        closing(Moody(others={RequestCode.GET_ROUTEINFO_BY_TOPIC: refuse})) as leaving,
        closing(Moody()) as stays,
    ):
        servers = leaving.server.address, stays.server.address
        with closing(Brokers(ClusterAddress(servers))) as brokers:
            assert (route := brokers.routes.route("orders")) is not None
            assert route.brokers == {"b"}
        with (
            closing(Brokers(ClusterAddress(servers[:1], patience=0.1, broker_timeout=0.1))) as brokers,
            pytest.raises(Unreachable, match=remark),
        ):
            brokers.routes.route("orders")


def test_refusal_to_list_topics_is_not_retried() -> None:
    """With enableAllTopicList=false."""
    asked: list[Request] = []

    def refuse(request: Request) -> Response:
        asked.append(request)
        return Response(ResponseCode.SYSTEM_ERROR, "disable")

    with (
        closing(Moody(others={RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: refuse})) as names,
        closing(Brokers(ClusterAddress((names.server.address,), patience=0.1, broker_timeout=0.1))) as brokers,
        pytest.raises(RequestRefused, match="disable"),
    ):
        brokers.routes.topics(0.0)
    assert len(asked) == 1


TWO_BROKERS = b"""{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.2:10911"},"brokerName":"broker-b","cluster":"C"},
{"brokerAddrs":{"1":"10.0.0.3:10911","0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C"}],
"queueDatas":[{"brokerName":"broker-b","perm":4,"readQueueNums":1,"writeQueueNums":1,"topicSysFlag":0},
{"brokerName":"broker-a","perm":6,"readQueueNums":2,"writeQueueNums":1,"topicSysFlag":0}]}"""


def test_route_of_an_old_name_server_is_parsed() -> None:
    route = parse_route("orders", TWO_BROKERS, 1.0)
    assert [str(queue) for queue in route.read] == ["orders/broker-a:0", "orders/broker-a:1", "orders/broker-b:0"]
    assert [str(queue) for queue in route.write] == ["orders/broker-a:0"]
    a = route.read[Queue("orders", 1, broker="broker-a")]
    assert (a.readable, a.writable) == ("10.0.0.1:10911", ["10.0.0.1:10911"])
    assert [a.next(attempt).is_slave for attempt in range(5)] == [False, False, True, True, False]
    assert (a.next(2).readable, a.next(2).writable) == ("10.0.0.3:10911", a.writable)


def test_broker_without_a_master_is_readable_only() -> None:
    broker = Broker("a", ((1, "10.0.0.3:10911"),))
    assert (broker.readable, broker.writable) == ("10.0.0.3:10911", [])


def test_wrong_routes_are_refused() -> None:
    for data in (b'{"queueDatas":[{}]}', b'{"queueDatas":3}', b'{"brokerDatas":[{"brokerName":"a"}]}'):
        with pytest.raises(BadFrame, match="topic 'orders'"):
            parse_route("orders", data, 0.0)
    with pytest.raises(BadFrame, match="topics"):
        parse_topics(b'{"topicList":3}')
    with pytest.raises(BadFrame):
        parse_topics(b"<html>")


def test_queues_of_brokers_are_ordered_and_named() -> None:
    a0, a10, b0 = Queue("t", 0, broker="a"), Queue("t", 10, broker="a"), Queue("t", 0, broker="b")
    assert sorted([b0, a10, a0]) == [a0, a10, b0]
    assert len({a0, b0, Queue("t", 0), Queue("t", 0, broker="a")}) == 3
    assert pickle.loads(pickle.dumps(a10)) == a10
    assert (a10.name, str(a10), Queue("t", 10).name) == ("a:10", "t/a:10", "10")


def test_offsets_of_a_reset_are_parsed() -> None:
    """fastjson writes the map's keys as objects."""
    one = b'{"brokerName":"a","queueId":1,"topic":"t"}:17'
    other = b'{"topic":"t", "brokerName":"b", "queueId":0} : 0'
    expected = {Queue("t", 1, broker="a"): 17, Queue("t", 0, broker="b"): 0}
    assert parse_reset(b'{"offsetTable":{' + one + b"," + other + b"}}") == expected
    assert parse_reset(b'{"offsetTable":{}}') == {}
    for wrong in (b'{"queueId":1}:3', b'{"brokerName":"a","queueId":"x","topic":"t"}:3', b"{x}:3"):
        with pytest.raises(BadFrame):
            parse_reset(b'{"offsetTable":{' + wrong + b"}}")
