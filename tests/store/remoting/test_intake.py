"""Which connections are closed when the memory for requests or the connection limit is used up."""

from __future__ import annotations

import gc
import socket
import struct
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

import pytest

from store import MessageStore
from store.disk.figures import CROWDED
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import BadFrame
from store.remoting.access import Access, signature
from store.remoting.client import Client
from store.remoting.command import Command, decode, encode
from store.remoting.headers import GetRoute
from store.remoting.intake import ServerLimits
from store.remoting.serving import serve
from tests.store.remoting.broker import Broker, send
from tests.store.remoting.test_server import connected, is_closed, is_well, refused
from tests.waiting import until

MIB = 1 << 20
ACCOUNTS = "accounts: [{accessKey: user, secretKey: secret1, defaultTopicPerm: PUB|SUB}]"


def test_unfinished_frames_of_all_share_one_budget(store: MessageStore, client: Client) -> None:
    with serve(store, "127.0.0.1:0", limits=ServerLimits(memory_bytes=16 * MIB)) as serving, ExitStack() as stack:
        broker = Broker(serving, client)
        assert is_well(broker)
        strangers = [stack.enter_context(connected(serving.address)) for _ in range(20)]
        for stranger in strangers:
            stranger.sendall(struct.pack(">i", 15 * MIB) + bytes(MIB))
        until(lambda: refused(store).get(CROWDED, 0) >= 12)
        assert is_well(broker)
        assert serving._server._intake._buffered <= 8 * MIB
        assert broker.send(bytes(MIB)).code == ResponseCode.SUCCESS


def test_held_pulls_leave_memory_for_requests(store: MessageStore, client: Client) -> None:
    with serve(store, "127.0.0.1:0", limits=ServerLimits(memory_bytes=MIB)) as serving:
        broker = Broker(serving, client)
        tags = "x" * 30_000
        held = [broker.pull(0, tags=tags, seconds=60) for _ in range(100)]
        until(lambda: serving.held == 100)
        until(lambda: serving._server._intake._queued == 0)
        assert is_well(broker)
        broker.send(b"body", properties="TAGS\1" + tags + "\2")
        assert {each.result().code for each in held} == {ResponseCode.SUCCESS}


def test_requests_wait_for_memory(store: MessageStore) -> None:
    with serve(store, "127.0.0.1:0", limits=ServerLimits(memory_bytes=8 * MIB)) as serving, ExitStack() as stack:
        brokers = [Broker(serving, stack.enter_context(Client(timeout=60))) for _ in range(10)]
        sent = [broker.begin(RequestCode.SEND_MESSAGE_V2, send(), bytes(200_000)) for broker in brokers * 5]
        assert {answer.result().code for answer in sent} == {ResponseCode.SUCCESS}
        assert serving._server._intake._queued == 0


def test_address_with_most_connections_loses_one(store: MessageStore, client: Client) -> None:
    with serve(store, "127.0.0.1:0", limits=ServerLimits(connections=3)) as serving, ExitStack() as stack:
        host, _, port = serving.address.rpartition(":")
        hog = []
        for _ in range(3):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.2", 0))
            one.connect((host, int(port)))
            hog.append(one)
        until(lambda: serving.connections == 3)
        broker = Broker(serving, client)
        assert is_well(broker)
        assert is_closed(hog[2])
        with connected(serving.address) as one_more:
            assert is_closed(one_more)
        assert is_well(broker)


def test_large_frames_need_a_signed_request_first(store: MessageStore, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    large = struct.pack(">i", 6 * MIB)
    with serve(store, "127.0.0.1:0", access=Access.load(path)) as serving:
        with connected(serving.address) as stranger:
            stranger.sendall(encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders").texts())))
            assert decode(stranger.recv(4096)[4:]).code == ResponseCode.NO_PERMISSION
            stranger.sendall(large)
            assert is_closed(stranger)
        with connected(serving.address) as known:
            route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {**GetRoute("orders").texts(), "AccessKey": "user"})
            route.fields = {**route.fields, "Signature": signature(route, b"secret1")}
            known.sendall(encode(route))
            assert known.recv(4096)
            sent = Command(RequestCode.SEND_MESSAGE_V2, {**send().texts(), "AccessKey": "user"}, bytes(6 * MIB))
            sent.fields = {**sent.fields, "Signature": signature(sent, b"secret1")}
            known.sendall(encode(sent))
            assert decode(known.recv(4096)[4:]).code == ResponseCode.MESSAGE_ILLEGAL


def test_header_with_many_fields_is_refused() -> None:
    with pytest.raises(BadFrame, match="at most 256"):
        decode(encode(Command(RequestCode.HEART_BEAT, {str(number): "" for number in range(257)}))[4:])


def test_refused_requests_leave_nothing_in_memory(broker: Broker) -> None:
    body = bytes(5 * MIB)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(5):
            assert broker.ask(RequestCode.SEND_BATCH_MESSAGE, send(), body).code == ResponseCode.MESSAGE_ILLEGAL
        until(lambda: tracemalloc.get_traced_memory()[0] < 5 * MIB)
    finally:
        tracemalloc.stop()
        gc.enable()
