"""RocketMQ's own clients with an account, by TLS, against a store that is served to such clients only."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from store import MessageStore
from store.remoting.access import Access
from store.remoting.serving import serve
from tests.rocketmq.harness import HarnessError, RocketMQ
from tests.rocketmq.test_serving import consumed, left, mqadmin

pytestmark = pytest.mark.rocketmq

ACCOUNTS = """
accounts:
  - {accessKey: RocketMQ, secretKey: 12345678, admin: true}
  - accessKey: clerk
    secretKey: secret-key
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB|SUB, bills=SUB]
    groupPerms: [readers=SUB]
"""


def certificate(folder: Path) -> ssl.SSLContext:
    """One for 127.0.0.1, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, to make a certificate")
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1", *files]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_accounts_and_tls(rocketmq: RocketMQ, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    with (
        MessageStore.open(tmp_path / "mq") as store,
        serve(store, "127.0.0.1:0", access=Access.load(path), tls=certificate(tmp_path)) as serving,
    ):
        store.create_topic("orders", 2)
        store.create_topic("bills", 2)
        with rocketmq.clients(serving.address, ("clerk", "secret-key"), tls=True) as clerk:
            clerk.answers("send", topic="orders", messages=5, bodyBytes=5000)
            clerk.answers("send", topic="orders", how="batch", messages=5)
            clerk.ask("subscribe", id="one", group="readers", topic="orders")
            assert next(clerk)["kind"] == "subscribed"
            assert len({line["keys"] for line in consumed(clerk, 10)}) == 10
            left(clerk, "one")
            with pytest.raises(HarnessError, match="no permission PUB of topic 'bills'"):
                clerk.answers("send", topic="bills")
            with pytest.raises(HarnessError, match="needs an admin account"):
                mqadmin(clerk, "updateTopic", "-b", serving.address, "-t", "mine")
        with rocketmq.clients(serving.address, ("RocketMQ", "12345678"), tls=True) as admin:
            mqadmin(admin, "updateTopic", "-b", serving.address, "-t", "mine", "-r", "2", "-w", "2")
            assert store.topics()["mine"] == 2
            (sent,) = admin.answers("send", topic="bills")
            (found,) = admin.answers("find", topic="bills", id=sent["msgId"])
            assert found["msgId"] == sent["msgId"]
        with (
            rocketmq.clients(serving.address, ("clerk", "guessed"), tls=True) as stranger,
            pytest.raises(HarnessError, match=r"signature of accessKey 'clerk' is wrong|No route info"),
        ):
            stranger.answers("send", topic="orders")
        assert sum(store.max_offset("orders", queue) for queue in (0, 1)) == 10
