from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from store import Message, MessageStore, RequestRefused
from store.cluster.address import ClusterAddress, Credentials
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.access import Access
from store.remoting.serving import serve

WHO = Credentials("rocketmq2", "12345678")


def test_signature_is_of_sorted_fields_and_then_the_body() -> None:
    signed = WHO.signed({"topic": "orders", "Zone": "z", "a": "1"}, b"body")
    expected = hmac.new(b"12345678", b"rocketmq2z1ordersbody", hashlib.sha1).digest()
    assert signed == {
        "topic": "orders",
        "Zone": "z",
        "a": "1",
        "AccessKey": "rocketmq2",
        "Signature": base64.b64encode(expected).decode(),
    }


def test_secret_is_not_shown() -> None:
    address = ClusterAddress(("127.0.0.1:9876",), WHO)
    assert "12345678" not in repr(address) + str(address)


ACCOUNTS = """
accounts:
  - {accessKey: rocketmq2, secretKey: 12345678, defaultTopicPerm: SUB, defaultGroupPerm: SUB, topicPerms: [copy=PUB]}
"""


def test_cluster_requires_signed_requests(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    access = Access.load(tmp_path / "plain_acl.yml")
    with MessageStore.open(tmp_path / "mq") as store, serve(store, "127.0.0.1:0", access=access) as serving:
        for topic in ("orders", "copy"):
            store.create_topic(topic, 1)
        store.put_many([Message("orders", b"x")] * 100)
        queue = Queue("orders", 0, broker="broker-a")
        address = ClusterAddress((serving.address,), WHO)
        with address.open_writer() as log:
            wanted = QueueRange(queue, *log.bounds([queue])[queue])
            assert sum(map(len, log.scan(wanted, ReadSpec(("body",), EVERYTHING)))) == 100
            log.commit("readers", {queue: 7})
            assert log.committed("readers", [queue]) == {queue: 7}
            for topic in ("copy", "orders"):
                append = log.begin()
                append.add(topic, pa.table({"body": ["café"]}))
                if topic == "copy":
                    append.publish()
            with pytest.raises(
                RequestRefused,
                match=r"broker broker-a .*SEND_BATCH_MESSAGE of orders/broker-a:0: .*PUB of topic 'orders'",
            ):
                append.publish()
        for wrong in (None, Credentials("rocketmq2", "another"), Credentials("nobody", "12345678")):
            with replace(address, credentials=wrong).open() as log, pytest.raises(RequestRefused, match="accessKey"):
                log.bounds([queue])
