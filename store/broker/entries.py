"""`MemberEntry`: a member of a consumer group, as in its file, and the check that it fits the other members."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import starmap

from msgspec import Struct, structs

from store.api.group_protocol import EVERYTHING, MemberInfo, MessageModel, Subscription, Subscriptions
from store.broker.allocation import held
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.strict_json import Int, Long, decode, encode
from store.model.errors import GroupConflict, InvalidArgument
from store.model.log_protocol import Queue

SILENT_SECONDS = 120.0  # after which RocketMQ's broker drops a client
_INSTANCE = r"[a-zA-Z0-9_%|#-][a-zA-Z0-9_%|#.-]{0,99}"
_ONE_WAY = "All members of a group must agree. Stop the others first, or join a group of another name"


@dataclass(frozen=True)
class MemberEntry:
    """A member of a consumer group.

    id: host@instance.
    resets: the number of the group's resets that the member has seen.
    heard: time of the last heartbeat, as `time.monotonic()`, which all processes of a host share.
    boot: the kernel's boot id.
    claims: maps each queue to the time of the member's last request for it.
    asks: the queues that it requests from other members.
    slots: its queues, in their order in the file of its offsets.
    """

    id: str
    subscriptions: Subscriptions
    model: MessageModel
    orderly: bool
    exclusive: bool = False
    resets: int = 0
    heard: float = -math.inf
    boot: str = ""
    claims: dict[Queue, float] = field(default_factory=dict)
    asks: tuple[Queue, ...] = ()
    slots: tuple[Queue, ...] = ()

    @property
    def instance(self) -> str:
        return self.id.partition("@")[2]

    def is_well(self, now: float) -> bool:
        return now - self.heard <= SILENT_SECONDS

    def info(self, now: float) -> MemberInfo:
        queues = tuple(sorted(held(self.claims, now)))
        return MemberInfo(self.id, self.subscriptions, self.model, self.orderly, queues, max(0.0, now - self.heard))

    def to_json(self) -> bytes:
        claims = [(queue.topic, queue.queue_id, asked) for queue, asked in self.claims.items()]
        return encode(vars(self) | {"claims": claims, "asks": _pairs(self.asks), "slots": _pairs(self.slots)})

    @staticmethod
    def of_json(text: bytes) -> MemberEntry:
        """Parse the result of `to_json`. Raises `ValueError` for any other text."""
        found = decode(text, _Written)
        claims = {Queue(topic, queue_id): asked for topic, queue_id, asked in found.claims}
        asks, slots = (tuple(starmap(Queue, each)) for each in (found.asks, found.slots))
        return MemberEntry(**structs.asdict(found) | {"claims": claims, "asks": asks, "slots": slots})


class _Written(Struct):
    id: str
    subscriptions: dict[str, Subscription]
    model: MessageModel
    orderly: bool
    exclusive: bool
    resets: Long
    heard: float
    boot: str
    claims: list[tuple[str, Int, float]]
    asks: list[tuple[str, Int]]
    slots: list[tuple[str, Int]]


def _pairs(queues: Iterable[Queue]) -> list[tuple[str, int]]:
    return [(queue.topic, queue.queue_id) for queue in queues]


def client_id(instance: str | None = None) -> str:
    """Return RocketMQ's client id for a member in this process: host@instance. Raises `InvalidArgument`."""
    if instance is None:
        instance = f"{os.getpid()}#{time.monotonic_ns()}"
    if not re.fullmatch(_INSTANCE, instance):
        raise InvalidArgument(
            f"instance={instance!r} is not valid. Give up to 100 letters, digits, '%', '|', '_', '-', '#', '.'"
        )
    return f"{socket.gethostname()}@{instance}"


def check_fit(group: str, entry: MemberEntry, other: MemberEntry, processes: str) -> None:
    """Raise `GroupConflict` if two members cannot be in one group. processes: of `other`, for the error."""
    if entry.instance == other.instance:  # for example, of containers with the same host name
        found = "already has this name. Give each member an instance of its own"
    elif entry.model is not other.model:
        found = f"consumes by {other.model.value}, this one by {entry.model.value}. {_ONE_WAY}"
    elif entry.orderly != other.orderly:
        found = f"consumes {_order(other)}, this one {_order(entry)}. {_ONE_WAY}"
    elif _meaning(entry.subscriptions) != _meaning(other.subscriptions):
        found = (
            f"reads {_said(other.subscriptions)}, and this one {_said(entry.subscriptions)}, so each would skip "
            f"messages that only the other wants. {_ONE_WAY}"
        )
    else:
        return
    raise GroupConflict(f"group {group}: member {other.id} ({processes}) {found}")


def _order(entry: MemberEntry) -> str:
    return "orderly" if entry.orderly else "concurrently"


def _said(subscriptions: Subscriptions) -> str:
    return ", ".join(f"{topic} by {found}" for topic, found in _topics(subscriptions)) or "nothing"


def _topics(subscriptions: Subscriptions) -> Iterable[tuple[str, Subscription]]:
    return sorted(each for each in subscriptions.items() if not each[0].startswith(RETRY_TOPIC_PREFIX))


def _meaning(subscriptions: Subscriptions) -> dict[str, object]:
    # sets, because an expression may list its tags in any order
    return {topic: frozenset(_wanted(found)) for topic, found in _topics(subscriptions)}


def _wanted(subscription: Subscription) -> Iterator[str]:
    if subscription.expression_type != "TAG":
        yield from subscription
    elif subscription.expression.strip() in ("", EVERYTHING):
        yield EVERYTHING
    else:
        yield from filter(None, map(str.strip, subscription.expression.split("||")))
