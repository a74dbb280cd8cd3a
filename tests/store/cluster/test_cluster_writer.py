from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest

from store import RequestRefused, StoreUnavailable
from store.cluster.address import ClusterAddress
from store.model.codes import RequestCode, ResponseCode
from store.remoting.headers import Offset, SendAnswer
from store.remoting.request import Request, Response, of_json
from tests.store.cluster.test_pulls import Moody

TAKEN = Response(header=SendAnswer("", 0, 3))


def publish(to: Moody, patience: float) -> None:
    with ClusterAddress((to.server.address,), patience=patience, broker_timeout=patience).open_writer() as log:
        append = log.begin()
        append.add("orders", pa.table({"body": ["a", "b"]}))
        append.publish()


def test_broker_lost_before_its_messages_are_visible_is_an_error() -> None:
    def take(request: Request) -> Response:
        moody.is_gone = True
        return TAKEN

    def look(request: Request) -> Response:
        return Response(ResponseCode.SYSTEM_BUSY)

    more = {RequestCode.SEND_BATCH_MESSAGE: take, RequestCode.GET_MAX_OFFSET: look}
    with closing(Moody(others=more)) as moody:
        moody.is_listed = False
        with pytest.raises(RequestRefused, match="GET_MAX_OFFSET of orders/b:0"):
            publish(moody, 0.1)


def test_messages_that_stay_invisible_are_an_error() -> None:
    """A write-only queue cannot be read to verify a write."""
    more = {RequestCode.SEND_BATCH_MESSAGE: lambda request: TAKEN}
    with closing(Moody(others=more)) as moody:
        with pytest.raises(StoreUnavailable, match="messages of orders/b:0 were sent, but are not visible"):
            publish(moody, 0.1)
        moody.perm = 2
        publish(moody, 0.1)


def test_rows_for_any_queue_go_to_a_broker_with_a_master() -> None:
    """A name server also lists the queues of a broker whose master is down."""
    queue = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}

    def route(request: Request) -> Response:
        brokers = [
            {"brokerName": "a", "brokerAddrs": {"1": "127.0.0.1:1"}},
            {"brokerName": "b", "brokerAddrs": {"0": moody.server.address}},
        ]
        return of_json({"brokerDatas": brokers, "queueDatas": [{"brokerName": name, **queue} for name in "ab"]})

    sends = {RequestCode.SEND_BATCH_MESSAGE: lambda request: TAKEN, RequestCode.GET_ROUTEINFO_BY_TOPIC: route}
    more = {**sends, RequestCode.GET_MAX_OFFSET: lambda request: Response(header=Offset(5))}
    with closing(Moody(others=more)) as moody:
        publish(moody, 0.1)
