"""Cut the connection to a broker after any byte of a request or of an answer."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from store import Message, MessageStore, Unreachable
from store.api.group_protocol import Subscription
from store.cluster.address import ClusterAddress
from store.model.codes import RequestCode
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.request import Request, Response, of_json
from store.remoting.serving import serve
from tests.store.cluster.test_pulls import Moody

ROUNDS = int(os.environ.get("CLUSTER_CUTS", "3"))  # for each call and each direction
QUEUE = Queue("orders", 0, broker="b")
SPEC = ReadSpec(("body",), EVERYTHING)
UP, DOWN = 0, 1


class Cutting:
    """A proxy that cuts a connection after `left` bytes in one direction, and leaves its other connections open."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.passed = [0, 0]
        self.left: list[int | None] = [None, None]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._listening.accept()[0], socket.create_connection(self._target)
                self._sockets += (near, far)
                for source, sink, direction in ((near, far, UP), (far, near, DOWN)):
                    threading.Thread(target=self._pass_on, args=(source, sink, direction), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, direction: int) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept = self._kept(len(data), direction)
                sink.sendall(data[:kept])
                if kept < len(data):
                    break
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _kept(self, size: int, direction: int) -> int:
        with self._lock:
            self.passed[direction] += size
            left = self.left[direction]
            if left is None:
                return size
            self.left[direction] = None if size > left else left - size
            return min(size, left)

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Cluster:
    """The cluster's calls; each checks its own outcome after a cut."""

    def __init__(self, store: MessageStore, cutting: Cutting, address: ClusterAddress) -> None:
        self.cutting = cutting
        self._store = store
        self._address = address
        self._numbers = count()

    def _bodies(self, begin: int) -> list[bytes]:
        end = self._store.max_offset("orders", 0)
        return [self._store.get_message("g", "orders", 0, at).messages[0].body for at in range(begin, end)]

    def produce(self) -> None:
        begin, bodies = self._store.max_offset("orders", 0), [b"%d" % next(self._numbers) for _ in range(3)]
        with self._address.open_writer() as log:
            append = log.begin()
            append.add("orders", pa.table({"body": bodies}))
            append.publish()
        assert self._bodies(begin) in (bodies, bodies * 2)

    def pull(self) -> None:
        end = self._store.max_offset("orders", 0)
        with self._address.open() as log:
            found = [body for batch in log.scan(QueueRange(QUEUE, 0, end), SPEC) for body in batch[0].to_pylist()]
        assert found == self._bodies(0)

    def commit(self) -> None:
        position = next(self._numbers)
        with self._address.open() as log:
            log.commit("g", {QUEUE: position})
            assert log.committed("g", [QUEUE]) == {QUEUE: position}

    def lock(self) -> None:
        """A member raises an error if it cannot lock or cannot commit."""
        group = self._address.group(f"g{next(self._numbers)}")
        with suppress(Unreachable):
            with group.join({"orders": Subscription()}, orderly=True) as member:
                assert member.lock([QUEUE]) == {QUEUE}
                member.begin({QUEUE: 1})
                member.commit({QUEUE: 2})
            assert group.committed([QUEUE]) == {QUEUE: 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    def brokers(request: Request) -> Response:
        return of_json({"brokerAddrTable": {"b": {"brokerName": "b", "brokerAddrs": names.addresses}}})

    with ExitStack() as stack:
        store = stack.enter_context(MessageStore.open(tmp_path / "mq"))
        store.create_topic("orders", 1)
        store.put_many([Message("orders", bytes(100), queue_id=0) for _ in range(20)])
        cutting = stack.enter_context(closing(Cutting(stack.enter_context(serve(store, "127.0.0.1:0")).address)))
        others = {RequestCode.GET_BROKER_CLUSTER_INFO: brokers}
        names = stack.enter_context(closing(Moody(others=others)))
        names.addresses = {"0": cutting.address}
        yield Cluster(store, cutting, ClusterAddress((names.server.address,)))


@pytest.mark.parametrize("verb", [Cluster.produce, Cluster.pull, Cluster.commit, Cluster.lock])
def test_cut_connections_lose_nothing_silently(cluster: Cluster, verb: Callable[[Cluster], None]) -> None:
    verb(cluster)
    whole, cutting = [*cluster.cutting.passed], cluster.cutting
    for direction in (UP, DOWN):
        for number in range(ROUNDS):
            cutting.left[direction] = whole[direction] * number // ROUNDS
            verb(cluster)
