from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyspark_mq.browsing import Place, PointInTime, bounds_of, offsets_at
from store import BrokerMissing, Message, MessageStore
from store.cluster.address import ClusterAddress
from store.remoting.access import Access
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import Serving, serve
from tests.certificates import Certificate, certificate
from tests.name_server import name_server
from tests.pyspark_mq.cli.process import run, succeed, tailing

ACCOUNTS = """
accounts:
  - {accessKey: reader, secretKey: 12345678, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture
def own(tmp_path: Path) -> Certificate:
    return certificate(tmp_path)


@pytest.fixture
def store(path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(path) as it:
        it.put_many([Message("orders", b"%d" % n, queue_id=n % 2) for n in range(6)])
        yield it


@pytest.fixture
def serving(store: MessageStore) -> Iterator[Serving]:
    with serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName="b")) as it:
        yield it


def test_commands_read_a_cluster(serving: Serving, store: MessageStore, tmp_path: Path) -> None:
    cluster = f"rocketmq://{serving.address}"
    assert sorted(succeed("tail", cluster, "orders", "--until-end").split()) == [*"012345"]
    assert succeed("tail", cluster, "orders", "--until-end", "--queue", 1).split() == [*"135"]
    lines = succeed("tail", cluster, "orders", "-n", 2, "--json", "--queue", 0).splitlines()
    assert [(row["queueOffset"], row["body"]) for row in map(json.loads, lines)] == [(1, "2"), (2, "4")]
    exported = tmp_path / "orders.jsonl"
    assert "6 messages" in succeed("export", cluster, "orders", "--to", "jsonl", "-o", exported)
    assert sorted(json.loads(line)["body"] for line in exported.read_text().splitlines()) == [*"012345"]
    found = succeed("query", cluster, "orders", "--time", 0).splitlines()
    assert found == ["queue b:0: offset 0", "queue b:1: offset 0"]
    assert "mqadmin queryMsgByKey" in run("query", cluster, "orders", "--key", "k").stderr
    assert json.loads(succeed("query", cluster, "orders", "--time", 0, "--queue", 1, "--json"))["queueId"] == "b:1"
    with tailing(cluster, "orders", "--from", "latest", "--count", 1) as tail:
        assert tail.stdout is not None
        while tail.poll() is None:
            store.put(Message("orders", b"came", queue_id=0))
        assert tail.stdout.read() == "came\n"


def test_commands_use_an_account_over_tls(
    store: MessageStore, own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = own.path.with_name("plain_acl.yml")
    accounts.write_text(ACCOUNTS)
    with serve(store, "127.0.0.1:0", access=Access.load(accounts), tls=own.server()) as serving:
        words = "tail", f"rocketmq://{serving.address}", "orders", "--until-end"
        monkeypatch.setenv("ROCKETMQ_CA_FILE", str(own.path))
        assert "Check accessKey and secretKey" in run(*words).stderr
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "reader")
        assert "ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY belong together" in run(*words).stderr
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "12345678")
        assert sorted(succeed(*words).split()) == [*"012345"]
        monkeypatch.setenv("ROCKETMQ_CA_FILE", str(accounts))
        assert f"{accounts}: no certificates can be read" in run(*words).stderr


def test_errors_are_one_line(serving: Serving) -> None:
    cluster = f"rocketmq://{serving.address}"
    for words, said in (
        ((cluster, "nowhere"), "Topic 'nowhere' does not exist. Existing topics: orders"),
        ((cluster, "orders", "--queue", 7), "opic 'orders' has queues 0 to 1, not 7"),
        (("rocketmq://nonsense", "orders"), "address 'nonsense': must be host:port"),
        (
            ("rocketmq://127.0.0.1:1", "orders"),
            "no name server answers (option nameServer): 127.0.0.1:1: Connection r",
        ),
    ):
        done = run("tail", *words, "--until-end")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert said in done.stderr


@pytest.mark.parametrize("place", [None, PointInTime(0)])
def test_broker_lost_while_a_command_finds_its_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Place | None
) -> None:
    """The result would lack the broker's queues, and tail would start at their end once the broker is back."""
    with ExitStack() as stack:
        brokers = []
        for name in "ab":
            it = stack.enter_context(MessageStore.open(tmp_path / name))
            it.create_topic("t", 1)
            it.put_many([Message("t", b"")] * 3)
            brokers.append(stack.enter_context(serve(it, "127.0.0.1:0", config=BrokerConfig(brokerName=name))))
        addresses = [broker.address for broker in brokers]
        names = stack.enter_context(name_server(*addresses, remembers=False))
        log = stack.enter_context(ClusterAddress((names,), patience=0.3, broker_timeout=0.3).open())
        there = bounds_of(log, "t")
        topics = log.topics()
        assert list(there.values()) == [(0, 3)] * len(topics["t"]) == [(0, 3)] * 2
        monkeypatch.setattr(log, "topics", lambda: topics)
        brokers[1].close()
        with pytest.raises(BrokerMissing, match="broker b has been missing since"):
            bounds_of(log, "t") if place is None else offsets_at(log, there, place)
