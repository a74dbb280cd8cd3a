"""The body of an op message: the queue offsets of half messages that are ended."""

from __future__ import annotations

import re
from collections.abc import Iterable

from store.format.layout import OP_SEPARATOR

_OFFSET = re.compile(rb"[0-9]{1,18}")


def op_body(offsets: Iterable[int]) -> str:
    """As RocketMQ's TransactionalMessageBridge writes it."""
    return "".join(f"{offset}{OP_SEPARATOR}" for offset in offsets)


def offsets_ended(body: bytes) -> list[int]:
    """What is no offset there ends nothing: anybody may have put it."""
    return [int(each) for each in body.split(OP_SEPARATOR.encode()) if _OFFSET.fullmatch(each)]
