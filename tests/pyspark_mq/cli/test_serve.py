import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store import MessageStore, RequestRefused, StoreConfig, StoredMessage
from store.model.codes import RequestCode, ResponseCode
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import CreateTopic, GetRoute, PullMessage, SendAnswer, SendMessageV2
from store.remoting.served_broker import BROKER_SETTINGS, BrokerConfig
from tests.pyspark_mq.cli.process import TIMEOUT_SECONDS, run, signal_another_thread, started

ROOT = Path(__file__).parents[3]


@contextmanager
def served(path: Path, *more: object) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with started("serve", path, "--listen", address, *more) as process:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        assert said == f"{path}: name server and broker at {address}; Ctrl-C ends it\n", process.stderr.read().decode()
        yield process, address


def send(client: Client, address: str) -> SendAnswer:
    header = SendMessageV2("producers", "orders", "TBW102", 4, 0, 0, 0, 0)
    return SendAnswer.of(
        client.request(address, RequestCode.SEND_MESSAGE_V2, header.texts(), b"body", timeout=60).fields
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_server_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "new"
    with served(path) as (process, address), Client(60) as client:
        sent = send(client, address)
        pull = PullMessage("g", "orders", 0, 1, 32, 6, 0, 60_000, 0, "*")
        held = client.ask(address, RequestCode.PULL_MESSAGE, pull.texts())
        client.request(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders").texts())
        process.send_signal(how)
        assert held.result().code == 19
        assert process.wait(TIMEOUT_SECONDS) == (130 if how == signal.SIGINT else 0)
        assert process.stderr is not None
        said = f"Interrupted: {path} is served no longer\n" if how == signal.SIGINT else ""
        assert process.stderr.read().decode() == said
    assert not (path / "abort").exists()
    assert message(path, sent).store_host == address


def test_signal_to_another_thread_stops_the_server(tmp_path: Path) -> None:
    """As when the signal arrives just before the main thread begins to wait."""
    with served(tmp_path / "mq") as (process, _):
        signal_another_thread(process, signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0


def message(path: Path, sent: SendAnswer) -> StoredMessage:
    with MessageStore.open(path, read_only=True) as store:
        return store.message_by_id(sent.msg_id)


def test_acknowledged_messages_survive_a_kill(tmp_path: Path) -> None:
    with served(tmp_path / "mq") as (process, address), Client(60) as client:
        sent = [send(client, address) for _ in range(20)]
        process.kill()
        process.wait(TIMEOUT_SECONDS)
    assert {message(tmp_path / "mq", each).body for each in sent} == {b"body"}


def test_address_in_use_is_an_error(path: Path, tmp_path: Path) -> None:
    with served(path) as (_, address):
        done = run("serve", tmp_path / "other", "--listen", address)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{address}: cannot listen on this address" in done.stderr
    assert run("serve", path, "--listen", "nowhere").returncode == 1


def route(client: Client, address: str, topic: str) -> Command:
    return client.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic).texts()).result()


def test_settings_are_read_from_a_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=of-the-file\nbrokerClusterName=old\nautoCreateTopicEnable=false\nmaxMessageSize=3\n")
    with served(tmp_path / "mq", "--config", conf, "--cluster", "new") as (_, address), Client(60) as client:
        assert route(client, address, "TBW102").code == ResponseCode.TOPIC_NOT_EXIST
        cluster = client.request(address, RequestCode.GET_BROKER_CLUSTER_INFO).body
        assert json.loads(bytes(cluster))["clusterAddrTable"] == {"new": ["of-the-file"]}
        client.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, NEW.texts())
        with pytest.raises(RequestRefused, match=r"3 bytes|maxMessageSize"):
            send(client, address)


NEW = CreateTopic("orders", "TBW102", 4, 4, 6, "SINGLE_TAG")


@pytest.mark.parametrize("line", ["transactionCheckMax=0", "autoCreateTopicEnable=maybe", "brokerNam\xe9=a"])
def test_wrong_settings_are_refused(tmp_path: Path, line: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(line.encode("latin-1") + b"\n")
    done = run("serve", tmp_path / "mq", "--config", conf)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert str(conf) in done.stderr


def test_example_configuration_has_the_defaults() -> None:
    path = ROOT / "conf" / "broker.conf"
    assert BrokerConfig.load(path) == BrokerConfig()
    assert StoreConfig.load(path, BROKER_SETTINGS) == StoreConfig()


def test_unsigned_request_is_refused_if_accounts_are_set(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts: [{accessKey: a, secretKey: b}]")
    with served(tmp_path / "mq", "--accounts", accounts) as (_, address), Client(60) as client:
        assert route(client, address, "orders").code == ResponseCode.NO_PERMISSION
    accounts.write_text("nothing")
    done = run("serve", tmp_path / "mq", "--accounts", accounts)
    assert (done.returncode, "cannot read the accounts" in done.stderr) == (1, True)


def test_wrong_certificate_is_refused(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.write_text("nothing")
    assert "not a certificate" in run("serve", tmp_path / "mq", "--tls-cert", cert).stderr
    assert "needs --tls-cert" in run("serve", tmp_path / "mq", "--tls-key", cert).stderr
