"""Which brokers have a topic, as a name server says: read out of its JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from store.any_log import Positions, Queue
from store.errors import BadFrame
from store.format.layout import GROUP_SEPARATOR
from store.remoting.command import parse_object

_READ, _WRITE = 4, 2  # bits of perm
_MASTER = 0
_QUEUE_AND_OFFSET = re.compile(rb"(\{[^{}]*\})[ ]*:[ ]*(-?[0-9]+)")
_BARE_KEY = re.compile(rb"([{,])(-?[0-9]+):")  # older name servers write integer keys without quotes


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


def parse_route(topic: str, data: bytes, made: float) -> Route:
    """The answer to GET_ROUTEINFO_BY_TOPIC.

    Raises `BadFrame` for what is no such answer.
    """
    json_ = parse_json(data)
    try:
        brokers = {each["brokerName"]: _broker(each) for each in json_.get("brokerDatas") or ()}
        parts = sorted(json_.get("queueDatas") or (), key=lambda part: str(part["brokerName"]))
        parts = [part for part in parts if part["brokerName"] in brokers]
        return Route(
            dict(_queues(topic, parts, brokers, "readQueueNums", _READ)),
            dict(_queues(topic, parts, brokers, "writeQueueNums", _WRITE)),
            made,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFrame(f"a route of topic {topic!r} that makes no sense ({error!r}): {data[:200]!r}") from error


def parse_json(data: bytes) -> dict[str, Any]:
    """What a name server answers with. Raises `BadFrame`."""
    try:
        return parse_object(data)
    except BadFrame:
        return parse_object(_BARE_KEY.sub(rb'\1"\2":', data))


def parse_topics(data: bytes) -> list[str]:
    """The answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_SYSTEM_TOPIC_LIST_FROM_NS. Raises `BadFrame`."""
    try:
        return [str(name) for name in parse_json(data).get("topicList") or ()]
    except TypeError as error:
        raise BadFrame(f"a list of topics that makes no sense ({error!r}): {data[:200]!r}") from error


def parse_brokers(json_: dict[str, Any]) -> list[Broker]:
    """The answer to GET_BROKER_CLUSTER_INFO. Raises `BadFrame`."""
    try:
        return [_broker(each) for each in json_["brokerAddrTable"].values()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFrame(f"a list of brokers that makes no sense: {error!r}") from error


def parse_offsets(data: bytes) -> Iterator[tuple[str, str, int, int]]:
    """The answer to GET_ALL_CONSUMER_OFFSET: topic, group, queue id and offset. Raises `BadFrame`."""
    try:
        for key, offsets in parse_json(data).get("offsetTable", {}).items():
            topic, _, group = key.partition(GROUP_SEPARATOR)
            for number, offset in offsets.items():
                yield topic, group, int(number), int(offset)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadFrame(f"offsets of groups that make no sense: {error!r}") from error


def parse_reset(data: bytes) -> Positions:
    """What RESET_CONSUMER_CLIENT_OFFSET brings: a table whose keys are queues, as fastjson writes it, which is no JSON.

    Raises `BadFrame`.
    """
    found = ((parse_json(queue), int(offset)) for queue, offset in _QUEUE_AND_OFFSET.findall(data))
    try:
        return {
            Queue(str(queue["topic"]), int(queue["queueId"]), broker=str(queue["brokerName"])): offset
            for queue, offset in found
        }
    except (KeyError, TypeError, ValueError) as error:
        raise BadFrame(f"a reset that makes no sense ({error!r}): {data[:200]!r}") from error


def _broker(json_: dict[str, Any]) -> Broker:
    addresses = sorted((int(number), str(address)) for number, address in json_["brokerAddrs"].items())
    return Broker(str(json_["brokerName"]), tuple(addresses))


def _queues(
    topic: str, parts: list[dict[str, Any]], brokers: dict[str, Broker], count: str, bit: int
) -> Iterator[tuple[Queue, Broker]]:
    for part in parts:
        broker = brokers[part["brokerName"]]
        if int(part["perm"]) & bit and broker.addresses:
            for number in range(int(part[count])):
                yield Queue(topic, number, broker=broker.name), broker
