from __future__ import annotations

import struct
from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

from store.model.codes import RequestCode
from store.remoting.bodies import Batched
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import Header, PullMessage, SendMessage, SendMessageV2
from store.remoting.serving import Serving

SUSPEND, SUBSCRIPTION = 2, 4


class Broker(NamedTuple):
    serving: Serving
    client: Client

    @property
    def address(self) -> str:
        return self.serving.address

    def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """Return the answer, whatever its code."""
        return self.begin(code, header, body).result()

    def begin(self, code: int, header: Header | None = None, body: bytes = b"") -> Future[Command]:
        return self.client.ask(self.address, code, {} if header is None else header.texts(), body)

    def send(self, body: bytes, **fields: object) -> Command:
        return self.ask(RequestCode.SEND_MESSAGE_V2, send(**fields), body)

    def pull(self, offset: int, *, queue_id: int = 0, seconds: float = 0, tags: str = "*") -> Future[Command]:
        flags = SUBSCRIPTION | (SUSPEND if seconds else 0)
        header = PullMessage("group", "orders", queue_id, offset, 32, flags, 0, int(seconds * 1000), 0, tags)
        return self.begin(RequestCode.PULL_MESSAGE, header)


def send(kind: type[SendMessage] = SendMessageV2, **fields: object) -> SendMessage:
    usual: dict[str, object] = {
        "producer_group": "producers",
        "topic": "orders",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
    }
    return kind(**{**usual, **fields})  # type: ignore[arg-type]


def encode_batch(messages: Iterable[Batched]) -> bytes:
    pieces = []
    for flag, body, properties in messages:
        pieces += [struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body)), body]
        pieces += [struct.pack(">h", len(properties)), properties]
    return b"".join(pieces)
