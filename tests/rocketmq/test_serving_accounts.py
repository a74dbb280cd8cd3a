from __future__ import annotations

from pathlib import Path

import pytest

from store import MessageStore
from store.remoting.access import Access
from store.remoting.serving import serve
from tests.certificates import certificate
from tests.rocketmq.harness import HarnessError, RocketMQ
from tests.rocketmq.served import consumed, left, mqadmin

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


def test_clients_use_an_account_over_tls(rocketmq: RocketMQ, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    with (
        MessageStore.open(tmp_path / "mq") as store,
        serve(store, "127.0.0.1:0", access=Access.load(path), tls=certificate(tmp_path).server()) as serving,
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
