from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from store import MessageStore, RemotingError, StoreError, Unreachable, Untrusted
from store.cluster.address import ClusterAddress
from store.cluster.brokers import Brokers
from store.cluster.pulls import pull
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.client import Pipe
from store.remoting.endpoints import Tls
from store.remoting.serving import Serving, serve
from tests.certificates import Certificate, certificate
from tests.store.cluster.test_pulls import Moody

A0 = Queue("orders", 0, broker="broker-a")
BODIES = [b"%d" % n + bytes(1000) for n in range(2000)]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("others"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 1)
        yield it


@pytest.fixture
def serving(store: MessageStore, own: Certificate) -> Iterator[Serving]:
    with serve(store, "127.0.0.1:0", tls=own.server()) as it:
        yield it


def address(serving: Serving, tls: Tls | None, patience: float = 0.0) -> ClusterAddress:
    return ClusterAddress((serving.address,), tls=tls, patience=patience, broker_timeout=patience)


def error_of(asked: ClusterAddress) -> StoreError:
    with asked.open() as log, pytest.raises(RemotingError) as raised:
        log.bounds([A0])
    return raised.value


def test_cluster_is_written_and_read_over_tls(
    serving: Serving, own: Certificate, others: Certificate, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_text(others.path.read_text() + own.path.read_text())
    for path in (own.path, both):
        with address(serving, Tls.trusting(str(path))).open_writer() as log:
            first = log.bounds([A0])[A0].max_offset
            append = log.begin()
            append.add("orders", pa.table({"body": BODIES}))
            append.publish()
            wanted = QueueRange(A0, first, first + len(BODIES))
            batches = log.scan(wanted, ReadSpec(("body",), EVERYTHING))
            assert [body for batch in batches for body in batch["body"].to_pylist()] == BODIES


def test_untrusted_certificate_of_a_name_server_is_an_error(serving: Serving, others: Certificate) -> None:
    for tls in (Tls(), Tls.trusting(str(others.path))):
        error = error_of(address(serving, tls, patience=3600))
        assert isinstance(error, Untrusted)
        assert re.match(f"{serving.address}: its certificate is not trusted: self-signed.*set tlsCaFile", str(error))
        with pytest.raises(Untrusted, match=f"{serving.address}: its certificate is not trusted"):
            Pipe(serving.address, 60, tls.context())


def test_untrusted_certificate_of_a_broker_is_an_error(serving: Serving, others: Certificate) -> None:
    moody = Moody(others.server())
    moody.addresses = {"0": serving.address}
    asked = ClusterAddress(
        (moody.server.address,), tls=Tls.trusting(str(others.path)), patience=3600, broker_timeout=3600
    )
    told = f"broker b at {serving.address}: its certificate is not trusted"
    try:
        with asked.open() as log:
            (queue,) = log.topics()["orders"]
            with pytest.raises(Untrusted, match=told):
                log.bounds([queue])
        brokers = Brokers(asked)
        with pytest.raises(Untrusted, match=told):
            list(pull(brokers, QueueRange(queue, 0, 1)))
        brokers.close()
    finally:
        moody.close()


def test_server_without_tls_is_an_error(store: MessageStore, own: Certificate) -> None:
    tls = Tls.trusting(str(own.path))
    with serve(store, "127.0.0.1:0") as plain:
        error = error_of(address(plain, tls))
        assert isinstance(error, Unreachable)
        assert f"{plain.address}: this server does not answer by TLS. If the server has no TLS, remove useTls" in str(
            error
        )
        with pytest.raises(Unreachable, match=f"{plain.address}: this server does not answer by TLS"):
            Pipe(plain.address, 60, tls.context())


def test_server_that_requires_tls_is_an_error(serving: Serving) -> None:
    error = error_of(address(serving, None))
    assert isinstance(error, Unreachable)
    assert f"{serving.address}: the connection was lost before the answer came" in str(error)
    assert "If the server needs TLS, set useTls" in str(error)
