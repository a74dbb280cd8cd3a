from __future__ import annotations

import gc
import socket

import pytest

from store import BadFrame, InvalidArgument, RequestRefused, StoreClosed, Unreachable
from store.model.codes import CommandFlag, RequestCode, ResponseCode
from store.remoting.client import Client
from store.remoting.command import LENGTH, MAX_FRAME_BYTES, Command, decode, encode
from store.remoting.endpoints import host_and_port
from store.remoting.headers import GetRoute, TopicQueue
from tests.store.remoting.broker import Broker


def test_many_requests_share_one_connection(broker: Broker) -> None:
    held = broker.pull(0, seconds=60)
    answers = [broker.begin(RequestCode.GET_MAX_OFFSET, TopicQueue("orders", n % 2)) for n in range(200)]
    assert {answer.result().fields["offset"] for answer in answers} == {"0"}
    assert broker.serving.connections == 1
    assert not held.done()


def test_error_code_in_an_answer_is_raised(broker: Broker) -> None:
    with pytest.raises(RequestRefused, match=f"{broker.address}, request 105: .*nowhere.*response code 17") as refused:
        broker.client.request(broker.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("nowhere").texts())
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


def test_refused_connection_is_an_error(client: Client) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        for verb in (client.request, client.tell):
            with pytest.raises(Unreachable, match=f"{address}: Connection refused; is a name server or broker running"):
                verb(address, RequestCode.HEART_BEAT)


def test_missing_answer_is_an_error(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"{address}: no answer to request 34 within 0.1 s"):
            client.request(address, RequestCode.HEART_BEAT, timeout=0.1)


def test_wrong_protocol_or_disconnection_is_an_error(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        asked = client.ask(address, RequestCode.HEART_BEAT)
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")
            assert isinstance(asked.exception(), BadFrame)
        asked = client.ask(address, RequestCode.HEART_BEAT)
        connection, _ = other.accept()
        connection.recv(10)
        connection.close()
        assert isinstance(asked.exception(), Unreachable)


def test_lost_connection_is_opened_again(broker: Broker) -> None:
    assert broker.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
    broker.serving.close()
    assert isinstance(broker.begin(RequestCode.GET_BROKER_CLUSTER_INFO).exception(), Unreachable)


def answered(connection: socket.socket) -> Command:
    (length,) = LENGTH.unpack(connection.recv(LENGTH.size, socket.MSG_WAITALL))
    request = decode(connection.recv(length, socket.MSG_WAITALL))
    connection.sendall(encode(Command(ResponseCode.SUCCESS, opaque=request.opaque, flag=CommandFlag.RESPONSE)))
    return request


def test_silent_connection_is_given_up(client: Client) -> None:
    """As after a router dropped its state: both ends consider the connection alive, and packets get lost."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        there.settimeout(30)
        address = f"127.0.0.1:{there.getsockname()[1]}"
        for _ in range(2):
            asked = client.ask(address, RequestCode.HEART_BEAT)
            connection, _ = there.accept()
            answered(connection)
            assert asked.result().code == ResponseCode.SUCCESS
            other = client.ask(address, RequestCode.PULL_MESSAGE)
            with pytest.raises(Unreachable, match=r"no answer to request 34 within 0\.1 s"):
                client.request(address, RequestCode.HEART_BEAT, timeout=0.1)
            with pytest.raises(Unreachable, match="nothing comes on it any more"):
                other.result()


def test_connection_with_other_answers_is_kept(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        address = f"127.0.0.1:{there.getsockname()[1]}"
        silent = client.ask(address, RequestCode.HEART_BEAT, timeout=0.5)
        connection, _ = there.accept()
        other = client.ask(address, RequestCode.PULL_MESSAGE)
        assert isinstance(silent.exception(), Unreachable)
        assert [answered(connection).code for _ in range(2)] == [RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE]
        assert other.result().code == ResponseCode.SUCCESS


def test_too_large_request_is_not_sent(client: Client) -> None:
    with pytest.raises(BadFrame, match="Send fewer or smaller messages"):
        client.ask("127.0.0.1:1", RequestCode.SEND_MESSAGE, body=bytes(MAX_FRAME_BYTES))


def test_closed_client_raises(broker: Broker) -> None:
    client = Client()
    asked = Broker(broker.serving, client).pull(0, seconds=60)
    client.close()
    client.close()
    assert asked.exception() is not None
    with pytest.raises(StoreClosed):
        client.ask(broker.address, RequestCode.HEART_BEAT)


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:9876", ("127.0.0.1", 9876)), ("[::1]:1", ("::1", 1)), ("mq.example.org:80", ("mq.example.org", 80))],
)
def test_addresses_are_parsed(text: str, found: tuple[str, int]) -> None:
    assert host_and_port(text) == found


@pytest.mark.parametrize("text", ["", "9876", "a:b", "::1:5", "a:99999", "a b:1", "a:1:2"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="must be host:port"):
        host_and_port(text)


def test_cancelled_request_logs_nothing(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    assert Broker(broker.serving, client).pull(0, seconds=60).cancel()
    client.close()
    gc.collect()
    assert "never retrieved" not in caplog.text
