from __future__ import annotations

import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from store import InvalidArgument, Message, MessageStore, StoreUnavailable
from store.disk.figures import BAD_FRAME, CROWDED, REFUSED, STUCK
from store.model.codes import CommandFlag, RequestCode, ResponseCode
from store.remoting.client import Client
from store.remoting.command import MAX_FRAME_BYTES, Command, Frames, decode, encode
from store.remoting.endpoints import Tls
from store.remoting.headers import GetRoute, PullMessage
from store.remoting.intake import ServerLimits
from store.remoting.serving import serve
from tests.certificates import certificate
from tests.store.remoting.broker import SUBSCRIPTION, SUSPEND, Broker, send
from tests.waiting import until


@contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_well(broker: Broker) -> bool:
    return broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders")).code == ResponseCode.SUCCESS


def refused(store: MessageStore) -> dict[str, int]:
    """Return the number of closed connections by reason."""
    return {name: figure.counts[0] for (name, *_), figure in store.figures._figures.items() if name in REFUSED}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", MAX_FRAME_BYTES),
        struct.pack(">i", -5),
        struct.pack(">ii", 8, 1 << 20) + bytes(4),
        struct.pack(">ii", 50_004, 50_000) + b"[" * 50_000,
    ],
)
def test_connection_of_another_protocol_is_closed(broker: Broker, store: MessageStore, data: bytes) -> None:
    with connected(broker.address) as stranger:
        stranger.sendall(data)
        assert is_closed(stranger)
    assert is_well(broker)
    until(lambda: refused(store) == {BAD_FRAME: 1})


def test_changed_frames_do_not_affect_others(broker: Broker, store: MessageStore) -> None:
    before, chance = broker.serving.connections, random.Random(7)
    frame = encode(Command(RequestCode.SEND_MESSAGE_V2, send(topic="other").texts(), b"body"))
    for _ in range(200):
        changed = bytearray(frame)
        for _ in range(chance.randrange(1, 6)):
            changed[chance.randrange(4, len(changed))] = chance.randrange(256)
        with connected(broker.address) as stranger:
            stranger.sendall(changed)
        assert chance.random() > 0.1 or is_well(broker)
    until(lambda: broker.serving.connections == max(before, 1))
    assert store.max_offset("orders", 0) == store.max_offset("orders", 1) == 0


def test_unknown_request_is_refused(broker: Broker) -> None:
    answer = broker.ask(4711)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "request type 4711 not supported" in (answer.remark or "")


def test_missing_field_is_named(broker: Broker) -> None:
    answer = broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the custom field <topic> is null")


def test_unrequested_answer_is_ignored(broker: Broker) -> None:
    with connected(broker.address) as stranger:
        stranger.sendall(encode(Command(0, flag=CommandFlag.RESPONSE)))
        stranger.settimeout(0.2)
        with pytest.raises(TimeoutError):
            stranger.recv(1)
    assert is_well(broker)


def test_slow_and_idle_connections_are_closed(store: MessageStore, client: Client) -> None:
    limits = ServerLimits(stuck_seconds=0.2, idle_seconds=0.5)
    with serve(store, "127.0.0.1:0", limits=limits) as serving, connected(serving.address) as slow:
        slow.sendall(struct.pack(">i", 1000) + b"a")
        with connected(serving.address) as idle:
            assert is_closed(slow)
            assert is_closed(idle)
        assert is_well(Broker(serving, client))
        until(lambda: refused(store) == {STUCK: 1})


def test_client_that_does_not_read_is_closed(store: MessageStore, client: Client) -> None:
    store.begin().abandon()
    with serve(store, "127.0.0.1:0", limits=ServerLimits(stuck_seconds=0.3)) as serving:
        broker = Broker(serving, client)
        broker.send(bytes(1 << 20))
        with connected(serving.address) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            pull = {
                **{"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"},
                **{"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"},
            }
            asking = threading.Thread(target=ask_for_ever, args=(deaf, encode(Command(11, pull))))
            asking.start()
            until(lambda: serving.connections == 1)
            asking.join()
        assert is_well(broker)
        until(lambda: refused(store) == {STUCK: 1})


def test_slow_client_that_makes_progress_is_not_closed(store: MessageStore) -> None:
    frame = encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders").texts()))
    with serve(store, "127.0.0.1:0") as serving, connected(serving.address) as busy:
        busy.sendall(frame[:-1])
        until(lambda: len(serving._server._intake) == 1)
        (connection,) = serving._server._intake
        before = 0.0
        for _ in range(3):
            until(lambda: (connection.stuck_since or 0) > before)  # noqa: B023
            before = connection.stuck_since or 0
            busy.sendall(frame[-1:] + frame[:-1])
            busy.recv(1 << 16)
        until(lambda: (connection.stuck_since or 0) > before)
        assert refused(store) == {}


def test_unread_answers_use_no_memory(store: MessageStore) -> None:
    size, at_once, held = 200_000, 300, 50
    store.put(Message("orders", bytes(size), queue_id=0))
    pulls = [pull_frame(0, opaque) for opaque in range(at_once)]
    pulls += [pull_frame(1, opaque) for opaque in range(at_once, at_once + held)]
    with serve(store, "127.0.0.1:0") as serving, connected(serving.address) as deaf:
        deaf.sendall(b"".join(pulls[at_once:]))
        until(lambda: serving.held == held)
        deaf.sendall(b"".join(pulls[:at_once]))
        (connection,) = serving._server._intake
        until(lambda: connection.stuck_since is not None)
        store.put(Message("orders", bytes(size), queue_id=1))
        until(lambda: serving.held == 0)
        assert connection._transport.get_write_buffer_size() < 3 * size
        frames, opaques = Frames(), set[int]()
        while len(opaques) < len(pulls):
            for answer in map(decode, frames.feed(deaf.recv(1 << 20))):
                assert len(answer.body) > size
                opaques.add(answer.opaque)
        assert opaques == {*range(len(pulls))}


def pull_frame(queue_id: int, opaque: int) -> bytes:
    header = PullMessage("g", "orders", queue_id, 0, 1, SUSPEND | SUBSCRIPTION, 0, 60_000, 0, "*", "TAG")
    return encode(Command(RequestCode.PULL_MESSAGE, header.texts(), opaque=opaque))


def ask_for_ever(connection: socket.socket, frame: bytes) -> None:
    with suppress(ConnectionError):
        while True:
            connection.sendall(frame)


def test_connections_above_the_limit_are_closed(store: MessageStore, client: Client) -> None:
    with serve(store, "127.0.0.1:0", limits=ServerLimits(connections=2)) as serving:
        assert is_well(Broker(serving, client))
        with connected(serving.address), connected(serving.address) as one_more:
            assert is_closed(one_more)
            assert is_well(Broker(serving, client))
        until(lambda: refused(store) == {CROWDED: 1})
        until(lambda: serving.connections == 1)


SERVER = """
import resource, ssl, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4096))
from store import MessageStore
from store.remoting.serving import serve
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if sys.argv[2:] else None
if tls:
    tls.load_cert_chain(*sys.argv[2:])
with MessageStore.open(sys.argv[1]) as store, serve(store, "127.0.0.1:0", tls=tls) as serving:
    print(serving.address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_tls", [False, True])
def test_connections_leave_descriptors_for_the_store(tmp_path: Path, is_tls: bool) -> None:
    path, own = tmp_path / "mq", certificate(tmp_path) if is_tls else None
    with MessageStore.open(path) as store:
        store.create_topic("orders", 60)
    program = [sys.executable, "-c", SERVER, str(path), *map(str, own or ())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, text=True, **pipes) as process, ExitStack() as stack:  # type: ignore[call-overload]
        client = stack.enter_context(Client(60, None if own is None else Tls.trusting(str(own.path))))
        assert process.stdin
        assert process.stdout
        address = process.stdout.readline().strip()
        ask = partial(client.ask, address, RequestCode.SEND_MESSAGE_V2)
        assert ask(send().texts(), b"body").result().code == ResponseCode.SUCCESS
        strangers = [stack.enter_context(connected(address)) for _ in range(250)]
        until(lambda: is_closed(strangers[-1]))
        answers = [ask(send(queue_id=queue_id).texts(), b"body").result() for queue_id in range(60)]
        assert [answer.remark for answer in answers if answer.code != ResponseCode.SUCCESS] == []
        process.stdin.close()


def test_unfinished_handshake_is_closed(store: MessageStore, tmp_path: Path) -> None:
    tls = certificate(tmp_path).server()
    with serve(store, "127.0.0.1:0", limits=ServerLimits(stuck_seconds=0.2), tls=tls) as serving:
        with connected(serving.address) as silent, connected(serving.address) as plain:
            plain.sendall(encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders").texts())))
            assert is_closed(silent)
            assert is_closed(plain)
        until(lambda: serving.connections == 0)


def test_request_sent_with_the_end_of_the_handshake(store: MessageStore, tmp_path: Path) -> None:
    own = certificate(tmp_path)
    with serve(store, "127.0.0.1:0", tls=own.server()) as serving:
        for missing in (200, 1, 0):
            with connected(serving.address) as connection:
                came, said = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = Tls.trusting(str(own.path)).context().wrap_bio(came, said)
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        connection.sendall(said.read())
                        came.write(connection.recv(1 << 16))
                tls.write(encode(Command(RequestCode.SEND_MESSAGE_V2, send().texts(), b"body")))
                end = said.read()
                connection.sendall(end[: len(end) - missing])
                if not missing:
                    until(lambda: store.max_offset("orders", 0) == 1)
            until(lambda: serving.connections == 0)
            assert store.max_offset("orders", 0) == (missing == 0)


@pytest.mark.parametrize(
    "limits", [ServerLimits(requests=3), ServerLimits(body_bytes=10), ServerLimits(memory_bytes=1 << 20)]
)
def test_requests_above_the_limit_wait(store: MessageStore, client: Client, limits: ServerLimits) -> None:
    with serve(store, "127.0.0.1:0", limits=limits) as serving:
        broker = Broker(serving, client)
        answers = [broker.begin(RequestCode.SEND_MESSAGE_V2, send(), bytes(20_000)) for _ in range(100)]
        assert {answer.result().code for answer in answers} == {ResponseCode.SUCCESS}
    assert store.max_offset("orders", 0) == 100


def test_running_requests_are_finished_by_close(store: MessageStore, client: Client) -> None:
    serving = serve(store, "127.0.0.1:0")
    broker = Broker(serving, client)
    assert is_well(broker)
    answers = [broker.begin(RequestCode.SEND_MESSAGE_V2, send(), b"body") for _ in range(50)]
    until(lambda: store.max_offset("orders", 0) > 0)
    serving.close()
    serving.close()
    done = [answer for answer in answers if answer.exception() is None and answer.result().code == 0]
    assert store.max_offset("orders", 0) == len(done)


def test_address_in_use_is_an_error(store: MessageStore, broker: Broker) -> None:
    with pytest.raises(StoreUnavailable, match="cannot listen on this address"):
        serve(store, broker.address)
    for address in ("nowhere", "127.0.0.1:99999", "127.0.0.1"):
        with pytest.raises(InvalidArgument, match="must be host:port"):
            serve(store, address)
    assert is_well(broker)
