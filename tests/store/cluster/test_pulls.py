from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from store import BadFrame, BrokerMissing, Message, MessageStore, OffsetLost, RequestRefused, StoreConfig, Unreachable
from store.cluster.address import ClusterAddress
from store.cluster.brokers import Brokers
from store.cluster.cluster_log import ClusterLog
from store.cluster.pulls import _MOST_UNDER_WAY, _Pulls
from store.cluster.route_table import Broker
from store.disk.figures import Figures
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.command import Command
from store.remoting.headers import Offset, Pulled
from store.remoting.request import Request, Response
from store.remoting.served_routes import of_json
from store.remoting.server import Processors, Server, ServerLimits
from store.remoting.serving import Serving, serve
from store.remoting.threads import LoopThread, WorkerPool

COUNT = 3000
SPEC = ReadSpec(("queueOffset", "body"), EVERYTHING, max_rows=500)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = StoreConfig(mappedFileSizeCommitLog=256 << 10, maxTransferBytesOnMessageInMemory=1000)
    with MessageStore.open(tmp_path / "mq", config=config) as it:
        it.create_topic("orders", 1)
        it.put_many([Message("orders", b"%d" % n, queue_id=0) for n in range(COUNT)])
        yield it


@pytest.fixture
def serving(store: MessageStore) -> Iterator[Serving]:
    with serve(store, "127.0.0.1:0") as it:
        yield it


def everything(log: ClusterLog) -> QueueRange:
    (queue,) = log.topics()["orders"]
    return QueueRange(queue, *log.bounds([queue])[queue])


def read(log: ClusterLog, wanted: QueueRange) -> list[tuple[int, bytes]]:
    return [(row["queueOffset"], row["body"]) for batch in log.scan(wanted, SPEC) for row in batch.to_pylist()]


def test_small_answers_are_joined(serving: Serving) -> None:
    with ClusterAddress((serving.address,)).open() as log:
        assert read(log, everything(log)) == [(n, b"%d" % n) for n in range(COUNT)]


def test_scan_continues_after_its_broker_restarts(store: MessageStore) -> None:
    first = serve(store, "127.0.0.1:0")
    with ClusterAddress((first.address,)).open() as log:
        wanted = everything(log)
        batches = log.scan(wanted, SPEC)
        seen = next(batches).num_rows
        first.close()
        again: list[Serving] = []
        later = threading.Timer(0.5, lambda: again.append(serve(store, first.address)))
        later.start()
        rows = [row["queueOffset"] for batch in batches for row in batch.to_pylist()]
        later.join()
        again[0].close()
    assert rows == [*range(seen, COUNT)]


def test_silence_longer_than_the_timeout_is_an_error(store: MessageStore) -> None:
    with serve(store, "127.0.0.1:0") as serving:
        log = replace(ClusterAddress((serving.address,)), patience=0.2, broker_timeout=0.2).open()
        wanted = everything(log)
    with log, pytest.raises(BrokerMissing, match=rf"broker broker-a at {serving.address}: Connection refused"):
        log.bounds([wanted.queue])
    with (
        replace(ClusterAddress((serving.address, "127.0.0.1:1")), patience=0.0, broker_timeout=0.0).open() as log,
        pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"),
    ):
        log.topics()["orders"]


def test_next_name_server_is_asked(serving: Serving) -> None:
    with ClusterAddress(("127.0.0.1:1", serving.address)).open() as log:
        assert everything(log).length == COUNT


def test_messages_deleted_during_a_scan_are_an_error(store: MessageStore, serving: Serving) -> None:
    store.put_many([Message("orders", b"", queue_id=0)] * (_MOST_UNDER_WAY * 64))
    with ClusterAddress((serving.address,)).open() as log:
        wanted = everything(log)
        batches = log.scan(wanted, SPEC)
        seen = next(batches).num_rows
        store.put_many([Message("orders", bytes(1000), queue_id=0) for _ in range(1000)])
        store.clean(forced=True)
        assert log.bounds([wanted.queue])[wanted.queue].min_offset > seen
        with pytest.raises(OffsetLost, match=r"broker broker-a at .*: orders/broker-a:0: offset \d+ was deleted"):
            list(batches)


_STATS = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"orders"}:{"minOffset":0,"maxOffset":3}}}'


class Moody:
    """A name server and broker of one queue with three messages, which answers as `moods` say, in order. None: a normal
    answer."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        others: Mapping[RequestCode, Callable[[Request], Response]] | None = None,
    ) -> None:
        self.thread = LoopThread("moody")
        self.moods: list[ResponseCode | None] = []
        self.is_gone = False
        self.is_listed = True
        self.perm = 6
        self.next_begin = 0
        self.pulled = ResponseCode.SUCCESS
        self.said: str | None = None
        self.addresses: dict[str, str] | None = None
        handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_TOPIC_STATS_INFO: lambda request: self._answer(_STATS),
            RequestCode.GET_MAX_OFFSET: lambda request: Response(header=Offset(3)),
            RequestCode.GET_BROKER_CLUSTER_INFO: self._listing,
            RequestCode.PULL_MESSAGE: lambda request: Response(self.pulled, header=Pulled(0, self.next_begin, 0, 3)),
            RequestCode.UPDATE_CONSUMER_OFFSET: lambda request: Response(remark=self.said),
            RequestCode.QUERY_CONSUMER_OFFSET: lambda request: Response(header=Offset(1)),
            **(others or {}),
        }
        self.server = Server(
            self.thread,
            Processors(WorkerPool(1, "test"), handlers, {}, lambda connection: None),
            "127.0.0.1:0",
            ServerLimits(),
            tls,
            Figures(),
        )

    def close(self) -> None:
        self.server.close()
        self.thread.stop()

    def _route(self, request: Request) -> Response:
        if self.is_gone:
            return Response(ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server for the topic: orders")
        broker = {"brokerName": "b", "brokerAddrs": self.addresses or {"0": self.server.address}}
        queues = {"brokerName": "b", "perm": self.perm, "readQueueNums": 1, "writeQueueNums": 1}
        return of_json({"brokerDatas": [broker], "queueDatas": [queues]})

    def _listing(self, request: Request) -> Response:
        broker = {"brokerName": "b", "brokerAddrs": self.addresses or {"0": self.server.address}}
        return of_json({"brokerAddrTable": {"b": broker} if self.is_listed else {}})

    def _answer(self, body: bytes) -> Response:
        mood = self.moods.pop(0)
        return Response(body=(body,)) if mood is None else Response(mood, "CODE: 1  DESC: in a mood\nFor more")


@pytest.fixture
def moody() -> Iterator[Moody]:
    it = Moody()
    yield it
    it.close()


def test_queue_is_deleted_if_its_broker_is_listed(moody: Moody) -> None:
    with replace(ClusterAddress((moody.server.address,)), patience=0.0, broker_timeout=0.0).open() as log:
        queues = log.topics()["orders"]
        moody.is_gone = True
        assert "orders" not in log.topics()
        assert log.bounds(queues) == {}


def test_slave_is_read_while_its_master_does_not_answer(moody: Moody, store: MessageStore, serving: Serving) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        moody.addresses = {"0": f"127.0.0.1:{unheard.getsockname()[1]}", "7": serving.address}
        with ClusterAddress((moody.server.address,)).open() as log:
            wanted = everything(log)
            assert read(log, wanted) == [(n, b"%d" % n) for n in range(COUNT)]
            store.put(Message("orders", b"x", queue_id=0))
            with log.hold({wanted.queue: COUNT}, time.monotonic() + 60, EVERYTHING, 60) as held:
                assert next(held) == QueueRange(wanted.queue, COUNT, COUNT + 1)


def test_slave_without_the_topic_is_no_loss(moody: Moody, tmp_path: Path) -> None:
    with (
        MessageStore.open(tmp_path / "copy") as empty,
        serve(empty, "127.0.0.1:0") as copy,
        closing(Brokers(ClusterAddress((moody.server.address,)))) as brokers,
    ):
        broker = Broker("b", ((0, moody.server.address), (1, copy.address)))
        with pytest.raises(Unreachable, match=rf"broker b at {copy.address}: this slave does not know topic"):
            list(_Pulls(brokers, broker.next(2), QueueRange(Queue("orders", 0), 0, 3)))


def test_messages_of_a_held_pull_need_no_further_request(store: MessageStore, serving: Serving) -> None:
    with replace(ClusterAddress((serving.address,)), patience=0.0, broker_timeout=0.0).open() as log:
        (queue,) = log.topics()["orders"]
        with log.hold({queue: COUNT}, time.monotonic() + 60, EVERYTHING, 60) as held:
            store.put_many([Message("orders", b"%d" % n, queue_id=0) for n in range(3)])
            there = next(held)
            assert there == QueueRange(queue, COUNT, COUNT + 3)
            assert read(log, there._replace(end=COUNT + 2)) == [(COUNT + n, b"%d" % n) for n in range(2)]
            held.again(queue, COUNT)
            assert next(held) == there
        serving.close()
        assert read(log, there) == [(COUNT + n, b"%d" % n) for n in range(3)]
        with pytest.raises(Unreachable):
            read(log, there)


@pytest.mark.parametrize("next_begin", [0, -1, -(1 << 63)])
def test_answer_that_does_not_advance_is_an_error(moody: Moody, next_begin: int) -> None:
    moody.moods, moody.next_begin = [None, None], next_begin
    with ClusterAddress((moody.server.address,)).open() as log, pytest.raises(BadFrame, match="but its next offset is"):
        read(log, everything(log))


def test_corrected_offset_of_a_broker_is_returned(moody: Moody) -> None:
    moody.pulled, moody.next_begin = ResponseCode.PULL_OFFSET_MOVED, 1
    with ClusterAddress((moody.server.address,)).open() as log:
        (queue,) = log.topics()["orders"]
        with log.hold({queue: 2}, time.monotonic() + 60, EVERYTHING, 60) as held:
            assert next(held) == QueueRange(queue, 1, 1)
        with log.hold({queue: 4}, time.monotonic() + 60, EVERYTHING, 60) as held:
            assert next(held) == QueueRange(queue, 4, 4), "the queue is shorter; the caller checks why"


def test_reset_of_a_group_is_logged(moody: Moody, caplog: pytest.LogCaptureFixture) -> None:
    moody.said, moody.pulled = "Offset has been previously reset", ResponseCode.PULL_OFFSET_MOVED
    with ClusterAddress((moody.server.address,)).open() as log:
        (queue,) = log.topics()["orders"]
        log.commit("g", {queue: 2})
    assert "group g was reset by an admin tool, in orders/b:0" in caplog.text


def test_answer_without_a_request_is_an_error(moody: Moody) -> None:
    with closing(Brokers(ClusterAddress((moody.server.address,)))) as brokers:
        pulls = _Pulls(brokers, Broker("b", ((0, moody.server.address),)), QueueRange(Queue("orders", 0), 0, 3))
        with pytest.raises(BadFrame, match="was not sent"):
            pulls._accept(Command(ResponseCode.SUCCESS, opaque=7))


def test_busy_broker_is_asked_again_and_refusals_are_raised(moody: Moody) -> None:
    with ClusterAddress((moody.server.address,)).open() as log:
        (queue,) = log.topics()["orders"]
        moody.moods = [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, None]
        assert log.bounds([queue]) == {queue: (0, 3)}
        moody.moods = [ResponseCode.NO_PERMISSION]
        told = rf"broker b at {moody.server.address}, GET_TOPIC_STATS_INFO of orders: .*in a mood; .*accessKey.*code 16"
        with pytest.raises(RequestRefused, match=told) as refused:
            log.bounds([queue])
        assert "For more" not in str(refused.value)
        assert moody.moods == []
