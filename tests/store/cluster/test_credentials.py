"""Signatures; what RocketMQ's own code makes of the same fields, tests/rocketmq asks a broker."""

from __future__ import annotations

import base64
import hashlib
import hmac

from store.cluster.address import ClusterAddress
from store.cluster.credentials import Credentials

WHO = Credentials("rocketmq2", "12345678")


def test_values_are_signed_in_the_order_of_their_names_and_then_the_body() -> None:
    signed = WHO.signed({"topic": "orders", "Zone": "z", "a": "1"}, b"body")
    expected = hmac.new(b"12345678", b"rocketmq2z1ordersbody", hashlib.sha1).digest()
    assert signed == {
        "topic": "orders",
        "Zone": "z",
        "a": "1",
        "AccessKey": "rocketmq2",
        "Signature": base64.b64encode(expected).decode(),
    }


def test_the_secret_is_not_shown() -> None:
    address = ClusterAddress(("127.0.0.1:9876",), WHO)
    assert "12345678" not in repr(address) + str(address)
