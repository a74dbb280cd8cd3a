"""A RocketMQ broker with accounts that requires TLS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from store import RequestRefused, Unreachable, Untrusted
from store.cluster.address import TOOLS_GROUP, ClusterAddress, Credentials
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.endpoints import Tls
from tests.certificates import Certificate, certificate
from tests.rocketmq.harness import RocketMQ, free_ports
from tests.rocketmq.served import mqadmin
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

ACCOUNTS = """
accounts:
  - {accessKey: housekeeper, secretKey: keeps-all, admin: true}
  - accessKey: bookkeeper
    secretKey: keeps-books
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB|SUB, bills=SUB]
    groupPerms: [readers=SUB]
"""
KEEPER, BOOKS = Credentials("housekeeper", "keeps-all"), Credentials("bookkeeper", "keeps-books")
PROVIDERS = "org.apache.rocketmq.auth.{0}.provider"
SINCE_5_3 = {
    "authenticationEnabled": True,
    "authenticationProvider": f"{PROVIDERS}.DefaultAuthenticationProvider".format("authentication"),
    "authenticationMetadataProvider": f"{PROVIDERS}.LocalAuthenticationMetadataProvider".format("authentication"),
    "authorizationEnabled": True,
    "authorizationProvider": f"{PROVIDERS}.DefaultAuthorizationProvider".format("authorization"),
    "authorizationMetadataProvider": f"{PROVIDERS}.LocalAuthorizationMetadataProvider".format("authorization"),
    "migrateAuthFromV1Enabled": True,  # migrates plain_acl.yml, which it does not use otherwise
}


class Guarded(NamedTuple):
    name_server: str
    broker: str
    certificate: Certificate

    def asked(self, who: Credentials | None, group: str = "readers") -> ClusterAddress:
        return ClusterAddress(
            (self.name_server,), who, group, Tls.trusting(str(self.certificate.path)), patience=10, broker_timeout=10
        )

    def options(self, who: Credentials) -> dict[str, str]:
        tls = {"useTls": "true", "tlsCaFile": str(self.certificate.path)}
        return {"nameServer": self.name_server, "accessKey": who.access_key, "secretKey": who.secret_key, **tls}


@pytest.fixture(scope="module")
def guarded(rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("home")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    own, ports = certificate(home), free_ports()
    properties = {
        "rocketmq.home.dir": home,
        "tls.enable": True,
        "tls.client.authServer": False,
        "tls.test.mode.enable": False,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.path,
        "tls.server.keyPath": own.key,
    }
    live: dict[str, Any] = {"topic": "orders", "queues": 1, "properties": properties, **ports}
    if rocketmq.line < "5.3":
        live["brokerConfig"] = {"aclEnable": "true"}
    else:
        auth = {**SINCE_5_3, "authConfigPath": home / "auth"}
        live["authConfig"] = {name: str(value).replace("True", "true") for name, value in auth.items()}
    with rocketmq.broker(home / "mq", **live):
        it = Guarded(*(f"127.0.0.1:{ports[name]}" for name in ("namesrvPort", "brokerPort")), own)
        with it.asked(KEEPER).open_writer() as writer:
            for topic in ("bills", "secrets"):
                writer.create_topic(topic, 1)
        if rocketmq.line >= "5.3":
            account = KEEPER.access_key, KEEPER.secret_key
            with rocketmq.clients(it.name_server, account, tls=True) as admin:
                for topic, actions in {"orders": "Pub,Sub,Get", "bills": "Sub,Get"}.items():
                    words = ["-b", it.broker, "-s", "User:bookkeeper", "-r", f"Topic:{topic}", "-a", actions]
                    mqadmin(admin, "updateAcl", *words, "-d", "Allow")
        yield it


def queue(topic: str) -> Queue:
    return Queue(topic, 0, broker="harness")


def write(asked: ClusterAddress, topic: str) -> None:
    """Send a message outside of a batch: brokers of RocketMQ 4 do not check permissions for batches."""
    with asked.open_writer() as writer:
        append = writer.begin()
        append.add(topic, pa.table({"body": ["x"], "bornTimestamp": [1_700_000_000_000]}))
        append.publish()


def read(asked: ClusterAddress, topic: str) -> list[bytes]:
    with asked.open() as log:
        bounds = log.bounds([queue(topic)])[queue(topic)]
        batches = log.scan(QueueRange(queue(topic), *bounds), ReadSpec(("body",), EVERYTHING))
        bodies = [body for batch in batches for body in batch["body"].to_pylist()]
        with log.hold({queue(topic): 0}, time.monotonic() + 60, EVERYTHING, 60) as held:
            assert next(held) == QueueRange(queue(topic), 0, len(bodies))
    return bodies


def test_account_with_permission_reads_writes_and_commits(guarded: Guarded) -> None:
    write(guarded.asked(BOOKS), "orders")
    assert set(read(guarded.asked(BOOKS), "orders")) == {b"x"}
    write(guarded.asked(KEEPER), "bills")
    assert read(guarded.asked(BOOKS), "bills") == [b"x"]
    with guarded.asked(BOOKS).open() as log:
        log.commit("readers", {queue("orders"): 1})
        until(lambda: log.committed("readers", [queue("orders")]) == {queue("orders"): 1})


@pytest.mark.parametrize(
    ("who", "group", "topic"),
    [
        pytest.param(Credentials("bookkeeper", "guessed"), "readers", "orders", id="a wrong secret"),
        pytest.param(Credentials("stranger", "keeps-books"), "readers", "orders", id="a wrong account"),
        pytest.param(None, "readers", "orders", id="no account"),
        pytest.param(BOOKS, "readers", "secrets", id="a topic that may not be read"),
        pytest.param(BOOKS, TOOLS_GROUP, "orders", id="a group that may not read"),
    ],
)
def test_account_without_permission_cannot_read(
    guarded: Guarded, who: Credentials | None, group: str, topic: str
) -> None:
    write(guarded.asked(KEEPER), topic)
    told = rf"broker harness at {guarded.broker}, \w+ of {topic}(/harness:0)?: .* Check accessKey and secretKey, co"
    with pytest.raises(RequestRefused, match=told):
        read(guarded.asked(who, group), topic)


@pytest.mark.parametrize(
    ("who", "topic"),
    [
        pytest.param(Credentials("bookkeeper", "guessed"), "orders", id="a wrong secret"),
        pytest.param(BOOKS, "bills", id="a topic that may not be written"),
    ],
)
def test_account_without_permission_cannot_write(guarded: Guarded, who: Credentials, topic: str) -> None:
    told = (
        rf"broker harness at {guarded.broker}, SEND_MESSAGE_V2 of {topic}/harness:0: .* Check accessKey and secretKey"
    )
    with pytest.raises(RequestRefused, match=told):
        write(guarded.asked(who), topic)


def test_untrusted_certificate_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    wrong = Tls.trusting(str(certificate(tmp_path).path))
    for tls, error, told in ((wrong, Untrusted, "its certificate is not trusted"), (None, Unreachable, "useTls")):
        asked = replace(guarded.asked(BOOKS), tls=tls, patience=0.0, broker_timeout=0.0)
        with asked.open() as log, pytest.raises(error, match=f"{guarded.name_server}: .*{told}"):
            log.topics()["orders"]


def test_spark_uses_an_account_over_tls(guarded: Guarded, spark: SparkSession) -> None:
    write(guarded.asked(KEEPER), "orders")
    books = {**guarded.options(BOOKS), "consumerGroup": "readers"}
    rows = spark.read.format("mq").options(**books, subscribe="orders").load().collect()
    assert {bytes(row.body) for row in rows} == {b"x"}
    spark.range(3).selectExpr("string(id) AS body").write.format("mq").mode("append").options(
        **guarded.options(BOOKS), topic="orders", delivery="at-least-once"
    ).save()
    assert len(read(guarded.asked(KEEPER), "orders")) == len(rows) + 3
    with pytest.raises(PySparkException, match=r"of secrets(/harness:0)?: .*Check accessKey and secretKey") as refused:
        spark.read.format("mq").options(**books, subscribe="secrets").load().count()
    assert BOOKS.secret_key not in str(refused.value)
