"""`RouteTable`: the brokers of each topic, from a cluster's name servers.

Functions named `parse_` parse the answer to the request in their docstring, and raise `BadFrame`.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import msgspec

from store.cluster.address import (
    ANSWER_SECONDS,
    ClusterAddress,
)
from store.cluster.name_servers import NameServers
from store.format.layout import GROUP_SEPARATOR, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from store.format.strict_json import decode_fastjson
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import BadFrame, Unreachable
from store.model.log_protocol import Bounds, Positions, Queue
from store.remoting.bodies import MessageQueue
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import GetRoute, KvKey, KvValue

_READ, _WRITE = 4, 2  # bits of perm
_MASTER = 0
_QUEUE_AND_OFFSET = re.compile(rb"(\{[^{}]*\})[ ]*:[ ]*(-?[0-9]{1,19})")
_ORDERED = re.compile(r"([^:;]+):([0-9]{1,5})")
_QUEUE_AND_VALUES = re.compile(rb"(\{[^{}]*\})[ ]*:[ ]*(\{[^{}]*\})")
T = TypeVar("T")


class Broker(NamedTuple):
    """A master and its slaves.

    addresses: pairs of broker id and "host:port", in the order to try them. The master has id 0.
    """

    name: str
    addresses: tuple[tuple[int, str], ...]

    def next(self, attempt: int) -> Broker:
        """Return the broker with the address for this attempt (from 0) moved to the front.

        Each address has two attempts, because connections are lost more often than brokers, and slaves may be behind.
        """
        turn = attempt // 2 % max(1, len(self.addresses))
        return self._replace(addresses=self.addresses[turn:] + self.addresses[:turn])

    @property
    def readable(self) -> str:
        """Return the address to read from, "" if none is known."""
        return self.addresses[0][1] if self.addresses else ""

    @property
    def is_slave(self) -> bool:
        return bool(self.addresses) and self.addresses[0][0] != _MASTER

    @property
    def writable(self) -> list[str]:
        """Return the master's address, in a list that is empty if it is not known."""
        return [address for number, address in self.addresses if number == _MASTER]


@dataclass(frozen=True)
class Route:
    """The brokers of a topic's readable and writable queues. made: `time.monotonic()` of the request."""

    read: dict[Queue, Broker] = field(default_factory=dict)
    write: dict[Queue, Broker] = field(default_factory=dict)
    made: float = 0.0

    @cached_property
    def brokers(self) -> set[str]:
        return {broker.name for broker in (*self.read.values(), *self.write.values())}

    @cached_property
    def has_masters(self) -> bool:
        """Return whether all brokers have a master.

        Otherwise a master is missing, or a name server does not know it yet.
        """
        return all(broker.writable for broker in (*self.read.values(), *self.write.values()))

    def with_master(self) -> list[Queue]:
        """Return the writable queues whose broker has a master."""
        return [queue for queue, broker in self.write.items() if broker.writable]


class _QueueData(msgspec.Struct, rename="camel"):
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
    queue_datas: list[_QueueData] | None = None


class _Topics(msgspec.Struct, rename="camel"):
    topic_list: list[str] | None = None


class _Brokers(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _BrokerData]


class _Offsets(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]] = {}


class _LockedQueues(msgspec.Struct):
    queues: list[MessageQueue] | None = msgspec.field(default=None, name="lockOKMQSet")


class _TopicOffset(msgspec.Struct, rename="camel"):
    min_offset: int
    max_offset: int


class _MemberIds(msgspec.Struct, rename="camel"):
    consumer_id_list: list[str] | None = None


def parse_json(data: bytes, kind: type[T], what: str = "an answer") -> T:
    """Decode JSON as RocketMQ's fastjson writes it. what: the kind of answer, for errors."""
    try:
        return decode_fastjson(data, kind)
    except ValueError as error:
        raise BadFrame(
            f"a server sent {what} that cannot be parsed ({error}): {data[:200]!r}. Check that it is RocketMQ's"
        ) from error


def parse_route(topic: str, data: bytes, made: float) -> Route:
    """GET_ROUTEINFO_BY_TOPIC."""
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
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_SYSTEM_TOPIC_LIST_FROM_NS."""
    return parse_json(data, _Topics, "a list of topics").topic_list or []


def parse_brokers(data: bytes) -> list[Broker]:
    """GET_BROKER_CLUSTER_INFO."""
    return [each.broker() for each in parse_json(data, _Brokers, "a list of brokers").broker_addr_table.values()]


def _listed(answers: Iterable[Command]) -> dict[str, Broker]:
    return _together(broker for answer in answers for broker in parse_brokers(bytes(answer.body)))


def parse_offsets(data: bytes) -> Iterator[tuple[str, str, int, int]]:
    """Parse the answer to GET_ALL_CONSUMER_OFFSET. Yield topic, group, queue id and offset."""
    for key, offsets in parse_json(data, _Offsets, "offsets of groups").offset_table.items():
        topic, _, group = key.partition(GROUP_SEPARATOR)
        for number, offset in offsets.items():
            yield topic, group, number, offset


def parse_reset(data: bytes) -> Positions:
    """Parse the request RESET_CONSUMER_CLIENT_OFFSET. Its body is not JSON, because the keys are objects."""
    found = ((parse_json(queue, MessageQueue, "a reset"), offset) for queue, offset in _QUEUE_AND_OFFSET.findall(data))
    return {Queue(each.topic, each.queue_id, broker=each.broker_name): int(offset) for each, offset in found}


def parse_topic_stats(broker: str, data: bytes) -> dict[Queue, Bounds]:
    """Parse the answer to GET_TOPIC_STATS_INFO. Its body is not JSON, because the keys are objects."""
    found: dict[Queue, Bounds] = {}
    for key, value in _QUEUE_AND_VALUES.findall(data):
        queue, offsets = parse_json(key, MessageQueue, "statistics"), parse_json(value, _TopicOffset, "statistics")
        end = max(0, offsets.max_offset)
        found[Queue(queue.topic, queue.queue_id, broker=broker)] = Bounds(min(max(0, offsets.min_offset), end), end)
    return found


def parse_locked(broker: str, data: bytes) -> set[Queue]:
    """LOCK_BATCH_MQ."""
    locked = parse_json(data, _LockedQueues, "a list of locked queues").queues or ()
    return {Queue(each.topic, each.queue_id, broker=broker) for each in locked}


def parse_member_ids(data: bytes) -> list[str]:
    """GET_CONSUMER_LIST_BY_GROUP."""
    return parse_json(data, _MemberIds, "a list of members").consumer_id_list or []


def _route_of(topic: str, answers: Iterable[Command], made: float) -> Route | None:
    routes = [parse_route(topic, bytes(each.body), made) for each in answers if each.code == ResponseCode.SUCCESS]
    if not routes:
        return None
    brokers = _together(broker for route in routes for broker in (*route.read.values(), *route.write.values()))
    read = {queue: brokers[queue.broker] for route in routes for queue in route.read}
    write = {queue: brokers[queue.broker] for route in routes for queue in route.write}
    return Route(dict(sorted(read.items())), dict(sorted(write.items())), made)


def _together(brokers: Iterable[Broker]) -> dict[str, Broker]:
    """Return each broker with the addresses from all name servers, because a new one knows only some."""
    addresses: dict[str, dict[int, str]] = {}
    for broker in brokers:
        addresses.setdefault(broker.name, {}).update(broker.addresses)
    return {name: Broker(name, tuple(sorted(each.items()))) for name, each in addresses.items()}


_NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
ROUTE_SECONDS = 60.0  # a failed request refreshes its route at once
_NAMES_SECONDS = _AGAIN_SECONDS = 1.0
_AT_ONCE = 16  # requests to name servers
_REPLY_TOPIC = "_REPLY_TOPIC"


class RouteTable:
    """The routes of topics in one process. Thread-safe.

    A broker that no name server lists is missing: its queues are not deleted, and it is asked at its last address. A
    queue is deleted if its broker is listed and the topic's route lacks the queue.
    """

    def __init__(self, address: ClusterAddress, client: Client) -> None:
        self._address = address
        self._servers = NameServers(address, client)
        self._lock = threading.Lock()
        self._routes: dict[str, Route | None] = {}
        self._last: dict[str, Broker] = {}  # every broker that was in a route
        self._listed: tuple[float, dict[str, Broker]] = -math.inf, {}  # `time.monotonic()` of the request
        self._names: tuple[float, list[str]] = -math.inf, []
        self._written: dict[str, dict[Queue, Broker]] = {}  # every queue that was in a route
        self._order: dict[str, tuple[float, dict[str, int]]] = {}
        self._own: tuple[float, list[str]] = -math.inf, []  # topics of the cluster and its brokers
        # `time.monotonic()` when no name server answered, so that not each topic waits for an answer.
        self._unanswered_at = -math.inf

    def topics(self, oldest: float) -> list[str]:
        """Return all topics except a cluster's own, at most `oldest` seconds old.

        If no name server answers, return an older list. Raises `Unreachable` if there is none, or if `oldest` is 0.0.
        """
        made, names = self._names
        if time.monotonic() - made < min(oldest, _NAMES_SECONDS):
            return names
        now, patience = time.monotonic(), 0.0 if names and oldest else self._address.patience
        try:
            listed = self._list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, patience, names)
            if now - self._own[0] >= ROUTE_SECONDS:
                self._own = now, self._list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, patience, self._own[1])
        except Unreachable:
            if not (names and oldest):
                raise
            return names
        own = self._own[1]
        hidden = {*SYSTEM_TOPICS, *own, *(f"{name}{_REPLY_TOPIC}" for name in own)}
        names = sorted(name for name in listed if name not in hidden and not name.startswith(SYSTEM_TOPIC_PREFIX))
        self._names = now, names
        return names

    def _list(self, code: RequestCode, patience: float, known: Collection[str]) -> list[str]:
        """Ask a name server for topics, and the others, too, if it lacks a `known` topic, or if none is known."""
        names = {*parse_topics(bytes(self._servers.ask(code, None, patience).body))}
        if not known or not names.issuperset(known):
            names.update(*(parse_topics(bytes(answer.body)) for answer in self._servers.ask_others(code)))
        return [*names]

    def route(
        self, topic: str, *, oldest: float = ROUTE_SECONDS, expected: AbstractSet[str] = frozenset()
    ) -> Route | None:
        """Return a topic's route, at most `oldest` seconds old, None if the topic does not exist.

        If no name server answers, return the last route. Raises `Unreachable` if there is none, or if `oldest` is 0.0.
        expected: names of brokers; if the route lacks one, all name servers are asked.
        """
        with self._lock:
            known = self._routes.get(topic)
        now, may_be_old = time.monotonic(), known is not None and oldest > 0.0
        made = -math.inf if known is None else known.made
        if may_be_old and (now - made < oldest or now - self._unanswered_at < max(oldest, ANSWER_SECONDS)):
            return known
        try:
            expected = expected | self._address.brokers | (known or Route()).brokers
            patience = 0.0 if may_be_old else self._address.patience
            found = self._ask_route(topic, expected, patience, is_first=known is None)
        except Unreachable:
            if not may_be_old:
                raise
            self._unanswered_at = time.monotonic()
            return known
        with self._lock:
            self._routes[topic] = found
            if found is not None:
                self._written[topic] = {**self._written.get(topic, {}), **found.write}
                self._last |= {broker.name: broker for broker in (*found.read.values(), *found.write.values())}
        return found

    def routes(self, topics: Collection[str], oldest: float) -> dict[str, Route]:
        """Return the routes of the topics that exist. Requests run concurrently."""
        now = time.monotonic()
        with self._lock:
            known = {topic: route for topic in topics if (route := self._routes.get(topic)) is not None}
        fresh = {topic for topic, route in known.items() if now - route.made < oldest}
        stale = [topic for topic in topics if topic not in fresh]
        ask = partial(self.route, oldest=oldest)
        if len(stale) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                asked: dict[str, Route | None] = dict(zip(stale, threads.map(ask, stale), strict=True))
        else:
            asked = {topic: ask(topic) for topic in stale}
        found: dict[str, Route | None] = {**known, **asked}
        return {topic: route for topic in topics if (route := found.get(topic)) is not None}

    def readable(self, queues: Iterable[Queue]) -> dict[Queue, Broker]:
        """Return the brokers of the queues that are not deleted. A missing broker has its last addresses."""
        found: dict[Queue, Broker] = {}
        for queue in queues:
            route = self.route(queue.topic)
            if route is None or queue not in route.read:
                asked, listed = self._listing()
                if self._is_missing(queue.broker, listed):
                    found[queue] = self._last.get(queue.broker, Broker(queue.broker, ()))
                    continue
                route = self.route(queue.topic, oldest=time.monotonic() - asked, expected={queue.broker})
            if route is not None and queue in route.read:
                found[queue] = self._with_master(route.read[queue])
        return found

    def _with_master(self, broker: Broker) -> Broker:
        """Return a broker. If its route has no master, take its addresses from the list of brokers."""
        return broker if broker.writable else self._listing()[1].get(broker.name, broker)

    def _is_missing(self, broker: str, listed: Mapping[str, Broker]) -> bool:
        return broker not in listed and (broker in self._address.brokers if self._address.brokers else broker != "")

    def configured(self, topic: str) -> dict[Queue, Broker]:
        """Return the writable queues of a topic, including queues of missing brokers.

        Queues of missing brokers are known from earlier routes or from the topic's order configuration. Otherwise a
        missing broker of `ClusterAddress.brokers` is assumed to have as many queues as the broker with the most.
        """
        missing = self.unlisted()
        asked, _ = self._listed
        # Not older than the list of brokers: otherwise a broker in the list might be missing from the route.
        route = self.route(topic, oldest=min(ROUTE_SECONDS, time.monotonic() - asked))
        there = {} if route is None else route.write
        counts = Counter(queue.broker for queue in there)
        expected = dict.fromkeys(missing, max(counts.values(), default=0)) | self._ordered(topic)
        found = {
            Queue(topic, number, broker=name): self._last.get(name, Broker(name, ()))
            for name, count in expected.items()
            if name not in counts
            for number in range(count)
        }
        before = {queue: broker for queue, broker in self._written.get(topic, {}).items() if queue not in there}
        if before:
            listed = self._listing()[1]
            found |= {queue: broker for queue, broker in before.items() if self._is_missing(queue.broker, listed)}
        return dict(sorted({**found, **there}.items()))

    def _ordered(self, topic: str) -> dict[str, int]:
        """Return each broker's number of queues in an ordered topic.

        RocketMQ's name servers have this configuration, as "broker-a:8;broker-b:8".
        """
        made, counts = self._order.get(topic, (-math.inf, {}))
        if time.monotonic() - made >= ROUTE_SECONDS:
            key, none = KvKey("ORDER_TOPIC_CONFIG", topic), (ResponseCode.QUERY_NOT_FOUND, _NOT_SUPPORTED)
            value = KvValue.of(self._servers.ask(RequestCode.GET_KV_CONFIG, key, None, none).fields).value
            counts = {name: int(count) for name, count in _ORDERED.findall(value or "")}
            self._order[topic] = time.monotonic(), counts
        return counts

    def refresh(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self.route(topic, oldest=_AGAIN_SECONDS)

    def unlisted(self) -> frozenset[str]:
        """Return the names in `ClusterAddress.brokers` that no name server lists."""
        expected = self._address.brokers
        asked, listed = self._listed
        if expected <= listed.keys() and time.monotonic() - asked < ROUTE_SECONDS:
            return frozenset()
        return expected - self._listing()[1].keys() if expected else expected

    def lists(self, queue: Queue) -> bool:
        """Return whether the topic's route, at most a second old, has the queue."""
        route = self.route(queue.topic, oldest=_AGAIN_SECONDS)
        return route is not None and queue in route.read

    def brokers(self) -> list[Broker]:
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        return [*_listed([self._servers.ask(code), *self._servers.ask_others(code)]).values()]

    def _listing(self) -> tuple[float, dict[str, Broker]]:
        """Return the brokers that any name server lists, at most a second old, and when they were requested."""
        if time.monotonic() - self._listed[0] >= _AGAIN_SECONDS:
            now = time.monotonic()
            self._listed = now, _listed(self._servers.ask_all(RequestCode.GET_BROKER_CLUSTER_INFO))
        return self._listed

    def _ask_route(self, topic: str, expected: AbstractSet[str], patience: float, *, is_first: bool) -> Route | None:
        """Ask a name server for a route. If it may have restarted and not know each broker yet, ask the others, too."""
        code, header, made = (
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            GetRoute(topic, accept_standard_json_only=True),
            time.monotonic(),
        )
        answer = self._servers.ask(code, header, patience, (ResponseCode.TOPIC_NOT_EXIST,))
        found = _route_of(topic, [answer], made)
        if is_first or found is None or not found.has_masters or not expected <= found.brokers:
            found = _route_of(topic, [answer, *self._servers.ask_others(code, header)], made)
        return found
