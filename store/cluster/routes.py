"""Which brokers have a topic; and the JSON that name servers and brokers answer with, parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from store.format.layout import GROUP_SEPARATOR
from store.format.strict_json import decode_fastjson
from store.model.errors import BadFrame
from store.model.log_protocol import Positions, Queue
from store.remoting.bodies import MessageQueue

_READ, _WRITE = 4, 2  # bits of perm
_MASTER = 0
_QUEUE_AND_OFFSET = re.compile(rb"(\{[^{}]*\})[ ]*:[ ]*(-?[0-9]{1,19})")
T = TypeVar("T")


class Broker(NamedTuple):
    """One broker: a master, and what copies it. addresses: "host:port" by broker id, the master's is 0; the one to
    read from first."""

    name: str
    addresses: tuple[tuple[int, str], ...]

    def next(self, attempt: int) -> Broker:
        """To read from at an attempt, the first of which is 0: each has two, for it is the connection that is lost more
        often than a broker, and copies may be behind."""
        turn = attempt // 2 % len(self.addresses)
        return self._replace(addresses=self.addresses[turn:] + self.addresses[:turn])

    @property
    def readable(self) -> str:
        """Where to read."""
        return self.addresses[0][1]

    @property
    def is_copy(self) -> bool:
        """Whether what is read there is a copy."""
        return self.addresses[0][0] != _MASTER

    @property
    def writable(self) -> list[str]:
        """The master's address, if there is one."""
        return [address for number, address in self.addresses if number == _MASTER]


@dataclass(frozen=True)
class Route:
    """Where a topic's queues are. read, write: by queue, in order. made: `time.monotonic()` when it was asked for."""

    read: dict[Queue, Broker] = field(default_factory=dict)
    write: dict[Queue, Broker] = field(default_factory=dict)
    made: float = 0.0

    @property
    def brokers(self) -> set[str]:
        """Their names."""
        return {broker.name for broker in (*self.read.values(), *self.write.values())}


class _Part(msgspec.Struct, rename="camel"):
    broker_name: str
    perm: int
    read_queue_nums: int
    write_queue_nums: int


class _BrokerData(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[int, str]

    def broker(self) -> Broker:
        return Broker(self.broker_name, tuple(sorted(self.broker_addrs.items())))


class _RouteData(msgspec.Struct, rename="camel"):
    broker_datas: list[_BrokerData] | None = None
    queue_datas: list[_Part] | None = None


class _Topics(msgspec.Struct, rename="camel"):
    topic_list: list[str] | None = None


class _Brokers(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _BrokerData]


class _Offsets(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]] = {}


class _Locked(msgspec.Struct):
    queues: list[MessageQueue] | None = msgspec.field(default=None, name="lockOKMQSet")


class _MemberIds(msgspec.Struct, rename="camel"):
    consumer_id_list: list[str] | None = None


def parse_json(data: bytes, kind: type[T], what: str = "an answer") -> T:
    """Return what a broker or a name server sent. Raises `BadFrame`, which says what it should have been."""
    try:
        return decode_fastjson(data, kind)
    except ValueError as error:
        raise BadFrame(f"{what} that makes no sense ({error}): {data[:200]!r}") from error


def parse_route(topic: str, data: bytes, made: float) -> Route:
    """The answer to GET_ROUTEINFO_BY_TOPIC. Raises `BadFrame`."""
    found = parse_json(data, _RouteData, f"a route of topic {topic!r}")
    brokers = {each.broker_name: each.broker() for each in found.broker_datas or ()}
    parts = [part for part in found.queue_datas or () if part.broker_name in brokers]
    read: dict[Queue, Broker] = {}
    write: dict[Queue, Broker] = {}
    for part in sorted(parts, key=lambda part: part.broker_name):
        broker = brokers[part.broker_name]
        for queues, bit, count in ((read, _READ, part.read_queue_nums), (write, _WRITE, part.write_queue_nums)):
            if part.perm & bit and broker.addresses:
                queues |= {Queue(topic, number, broker=broker.name): broker for number in range(count)}
    return Route(read, write, made)


def parse_topics(data: bytes) -> list[str]:
    """The answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_SYSTEM_TOPIC_LIST_FROM_NS. Raises `BadFrame`."""
    return parse_json(data, _Topics, "a list of topics").topic_list or []


def parse_brokers(data: bytes) -> list[Broker]:
    """The answer to GET_BROKER_CLUSTER_INFO. Raises `BadFrame`."""
    return [each.broker() for each in parse_json(data, _Brokers, "a list of brokers").broker_addr_table.values()]


def parse_offsets(data: bytes) -> Iterator[tuple[str, str, int, int]]:
    """The answer to GET_ALL_CONSUMER_OFFSET: topic, group, queue id and offset. Raises `BadFrame`."""
    for key, offsets in parse_json(data, _Offsets, "offsets of groups").offset_table.items():
        topic, _, group = key.partition(GROUP_SEPARATOR)
        for number, offset in offsets.items():
            yield topic, group, number, offset


def parse_reset(data: bytes) -> Positions:
    """What RESET_CONSUMER_CLIENT_OFFSET brings: a table whose keys are queues, as fastjson writes it, which is no JSON.

    Raises `BadFrame`.
    """
    found = ((parse_json(queue, MessageQueue, "a reset"), offset) for queue, offset in _QUEUE_AND_OFFSET.findall(data))
    return {Queue(each.topic, each.queue_id, broker=each.broker_name): int(offset) for each, offset in found}


def parse_locked(broker: str, data: bytes) -> set[Queue]:
    """The answer of a broker to LOCK_BATCH_MQ. Raises `BadFrame`."""
    locked = parse_json(data, _Locked, "a list of locked queues").queues or ()
    return {Queue(each.topic, each.queue_id, broker=broker) for each in locked}


def parse_member_ids(data: bytes) -> list[str]:
    """The answer to GET_CONSUMER_LIST_BY_GROUP. Raises `BadFrame`."""
    return parse_json(data, _MemberIds, "a list of members").consumer_id_list or []
