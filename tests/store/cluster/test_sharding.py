from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from store import Unreachable
from store.cluster.address import ClusterAddress
from store.cluster.brokers import Brokers
from store.model.codes import RequestCode, ResponseCode
from store.remoting.headers import KvValue
from store.remoting.request import Request, Response, of_json
from tests.pair import Pair
from tests.store.cluster.test_pulls import Moody
from tests.store.cluster.test_route_table import nowhere, said

KEYS = [f"k{number}" for number in range(20)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, tmp_path, queues=4)


def send(address: ClusterAddress) -> None:
    with address.open_writer() as log:
        append = log.begin()
        append.add("t", pa.table({"body": KEYS, "shardingKey": KEYS}))
        append.publish()


def stored(pair: Pair, name: str) -> list[tuple[str, int]]:
    table = pair.stores[name].to_arrow("t", ["body", "queueId"]).read_all()
    return sorted((row["body"].decode(), row["queueId"]) for row in table.to_pylist())


def test_key_waits_for_its_broker(pair: Pair) -> None:
    address = ClusterAddress.parse(f"{pair.names}?brokers=a,b")
    send(address)
    before = {name: stored(pair, name) for name in "ab"}
    assert len(before["a"]) > 1 < len(before["b"])
    pair.serving["b"].close()
    with pytest.raises(Unreachable, match="no master broker of t/b:"):
        send(replace(address, broker_timeout=0.5))
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(send, address)
        pair.start("b")
        sent.result()
    assert stored(pair, "b") == sorted(before["b"] * 2)
    assert {*stored(pair, "a")} == {*before["a"]}


def test_key_fails_over_to_other_broker(pair: Pair) -> None:
    address = replace(ClusterAddress.parse(f"{pair.names}?brokers=a,b"), fails_over=True)
    pair.serving["b"].close()
    send(address)
    assert sorted(key for key, _ in stored(pair, "a")) == sorted(KEYS)


def test_message_without_key_goes_to_other_broker(pair: Pair) -> None:
    with ClusterAddress.parse(pair.names).open_writer() as log:
        assert len(log.topics()["t"]) == 8
        pair.serving["b"].close()
        append = log.begin()
        append.add("t", pa.table({"body": KEYS}))
        append.publish()
    assert sorted(key for key, _ in stored(pair, "a")) == sorted(KEYS)


def test_queues_of_a_broker_that_returns_now_are_known() -> None:
    """It registers between two requests to the name server."""
    routed = ["a"]

    def listing(request: Request) -> Response:
        routed[:] = "ab"
        return of_json({"brokerAddrTable": {name: {"brokerName": name, "brokerAddrs": {}} for name in "ab"}})

    answers = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda request: said(nowhere(routed)),
        RequestCode.GET_BROKER_CLUSTER_INFO: listing,
        RequestCode.GET_KV_CONFIG: lambda request: Response(ResponseCode.QUERY_NOT_FOUND),
    }
    with (
        closing(Moody(others=answers)) as names,
        closing(Brokers(ClusterAddress((names.server.address,), brokers=frozenset("ab")))) as brokers,
    ):
        brokers.routes.route("orders")
        assert [queue.broker for queue in brokers.routes.configured("orders")] == ["a", "b"]


def test_order_configuration_names_queues_of_missing_broker() -> None:
    """As `mqadmin updateTopic -o true` stores it at the name servers."""

    def order(request: Request) -> Response:
        assert request.command.fields == {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
        return Response(header=KvValue("b:1;c:2"))

    with (
        closing(Moody(others={RequestCode.GET_KV_CONFIG: order})) as names,
        closing(Brokers(ClusterAddress((names.server.address,)))) as brokers,
    ):
        found = brokers.routes.configured("orders")
    assert [str(queue) for queue in found] == ["orders/b:0", "orders/c:0", "orders/c:1"]
