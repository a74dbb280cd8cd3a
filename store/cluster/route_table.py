"""Where topics are, as a cluster's name servers say."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from store.cluster.address import (
    ANSWER_SECONDS,
    FIRST_PAUSE_SECONDS,
    PAUSE_SECONDS,
    REQUEST_SECONDS,
    ClusterAddress,
)
from store.cluster.broker_refusals import explained, may_pass
from store.format.layout import GROUP_SEPARATOR, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from store.format.strict_json import decode_fastjson
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import BadFrame, RequestRefused, Unreachable
from store.model.log_protocol import Positions, Queue
from store.remoting.bodies import MessageQueue
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import GetRoute, Header

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
        """Whether reads go to a slave."""
        return self.addresses[0][0] != _MASTER

    @property
    def writable(self) -> list[str]:
        """The master's address, if there is one."""
        return [address for number, address in self.addresses if number == _MASTER]


@dataclass(frozen=True)
class Route:
    """The brokers of a topic's queues. read, write: by queue, in order. made: `time.monotonic()` of the request."""

    read: dict[Queue, Broker] = field(default_factory=dict)
    write: dict[Queue, Broker] = field(default_factory=dict)
    made: float = 0.0

    @property
    def brokers(self) -> set[str]:
        """Their names."""
        return {broker.name for broker in (*self.read.values(), *self.write.values())}


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


class _MemberIds(msgspec.Struct, rename="camel"):
    consumer_id_list: list[str] | None = None


def parse_json(data: bytes, kind: type[T], what: str = "an answer") -> T:
    """Return what a broker or a name server sent. Raises `BadFrame`, which names the kind of answer."""
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
    locked = parse_json(data, _LockedQueues, "a list of locked queues").queues or ()
    return {Queue(each.topic, each.queue_id, broker=broker) for each in locked}


def parse_member_ids(data: bytes) -> list[str]:
    """The answer to GET_CONSUMER_LIST_BY_GROUP. Raises `BadFrame`."""
    return parse_json(data, _MemberIds, "a list of members").consumer_id_list or []


ROUTE_SECONDS = 30.0  # pollNameServerInterval
_REPLY_TOPIC = "_REPLY_TOPIC"
# Of a name server that waits until it knows all brokers (needWaitForService). One that lists no topics
# (enableAllTopicList=false) says the same of that, for ever.
_NOT_READY = ResponseCode.SYSTEM_ERROR, RequestCode.GET_ROUTEINFO_BY_TOPIC


class RouteTable:
    """Of one process, for any threads.

    A request that a name server refuses for a while, or does not answer, goes to the next one, for
    `ClusterAddress.patience` seconds.
    """

    def __init__(self, address: ClusterAddress, client: Client) -> None:
        self._address = address
        self._client = client
        self._lock = threading.Lock()
        self._routes: dict[str, Route | None] = {}
        self._missed: dict[str, float] = {}  # since when brokers are in no route that had them
        self._in_vain: set[tuple[str, str]] = set()  # topics and brokers that were waited for
        self._server = 0  # of the name servers, the one that answered last
        self._unheard = -math.inf  # when none of them answered, time.monotonic(): not each topic waits for that

    def topics(self) -> list[str]:
        """The names of all topics but a cluster's own."""
        listed = parse_topics(bytes(self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body))
        own = parse_topics(bytes(self._ask_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body))
        # Clusters and brokers have topics, too.
        hidden = {*SYSTEM_TOPICS, *own, *(f"{name}{_REPLY_TOPIC}" for name in own)}
        return sorted(name for name in listed if name not in hidden and not name.startswith(SYSTEM_TOPIC_PREFIX))

    def route(
        self, topic: str, *, oldest: float = ROUTE_SECONDS, waits: bool = True, named: Iterable[str] = ()
    ) -> Route | None:
        """Return the route of a topic, at most `oldest` seconds old; None if there is no such topic.

        Brokers that vanished from it, and `named` brokers, which a caller has seen in it, are waited for: each once,
        for as long as the address has patience. waits: False to get their old addresses at once. While no name server
        answers, this returns the last known route, unless the caller asks for the current one (oldest=0.0).
        """
        with self._lock:
            known = self._routes.get(topic)
            there = {name for name in named if (topic, name) not in self._in_vain}
        if known is not None and time.monotonic() - known.made < oldest:
            return known
        may_be_old = known is not None and (oldest > 0.0 or not waits)  # its brokers may be well
        if may_be_old and time.monotonic() - self._unheard < max(oldest, ANSWER_SECONDS):
            return known
        try:
            found = self._ask_route(topic, 0.0 if may_be_old else self._address.patience)
        except Unreachable:
            if not may_be_old:
                raise
            self._unheard = time.monotonic()
            return known
        return self._with_those(there | (known or Route()).brokers, topic, known, found, waits)

    def readable(self, queues: Iterable[Queue], *, waits: bool = True) -> dict[Queue, Broker]:
        """Return the brokers of the existing ones of `queues`, in their order. waits: see `route`."""
        found: dict[Queue, Broker] = {}
        asked: set[str] = set()
        queues = list(queues)
        for queue in queues:
            route = self.route(queue.topic, waits=waits)
            if (route is None or queue not in route.read) and queue.topic not in asked:
                asked.add(queue.topic)
                named = {each.broker for each in queues if each.topic == queue.topic}
                route = self.route(queue.topic, oldest=0.0, waits=waits, named=named - {""})
            if route is not None and queue in route.read:
                found[queue] = route.read[queue]
        return found

    def refresh(self, topics: Iterable[str], *, waits: bool = True) -> None:
        """Ask for new routes. waits: see `route`."""
        for topic in topics:
            self.route(topic, oldest=0.0, waits=waits)

    def brokers(self) -> list[Broker]:
        """All of the cluster."""
        return parse_brokers(bytes(self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO).body))

    def _with_those(
        self, there: set[str], topic: str, known: Route | None, found: Route | None, waits: bool
    ) -> Route | None:
        """Return `found`, or a later route that has all brokers of `there`; without `waits`, both `found` and `known`.

        A broker that restarts is in no route for a while, and neither is a topic that only this broker has."""
        since: dict[str, float] = {}  # by broker that was missing at the last look, too
        while missed := there - (found or Route()).brokers:
            since = {name: since.get(name, self._missed_since(name)) for name in missed}
            if time.monotonic() >= max(since.values()) + self._address.patience:
                self._in_vain.update((topic, name) for name in missed)
                break
            if not waits:
                before, now = known or Route(), found or Route()
                return Route(before.read | now.read, before.write | now.write, now.made)
            time.sleep(PAUSE_SECONDS)
            self._server += 1  # one that was started just now knows only who told it since; another one may know all
            found = self._ask_route(topic, self._address.patience)
        with self._lock:
            self._routes[topic] = found
        return found

    def _missed_since(self, broker: str) -> float:
        """Since when it is in no route that had it (time.monotonic())."""
        with self._lock:
            return self._missed.setdefault(broker, time.monotonic())

    def _ask_route(self, topic: str, patience: float) -> Route | None:
        made = time.monotonic()
        try:
            header = GetRoute(topic, accept_standard_json_only=True)
            answer = self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, patience)
        except RequestRefused as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return None
        route = parse_route(topic, bytes(answer.body), made)
        with self._lock:
            for name in route.brokers:
                self._missed.pop(name, None)
        return route

    def _ask_name_server(
        self, code: RequestCode, header: Header | None = None, patience: float | None = None
    ) -> Command:
        """What one of them answers, from the one on that answered last. patience: seconds, the
        address' own by default. Raises `Unreachable`, `RequestRefused`."""
        servers = self._address.name_servers
        fields = self._address.signed({} if header is None else header.texts())
        patience = self._address.patience if patience is None else patience
        timeout = min(REQUEST_SECONDS, max(ANSWER_SECONDS, patience))
        deadline, pause = time.monotonic() + patience, FIRST_PAUSE_SECONDS
        while True:
            silent: list[str] = []
            for number in range(len(servers)):
                server = servers[(self._server + number) % len(servers)]
                try:
                    answer = self._client.ask(server, code, fields, timeout=timeout).result()
                except Unreachable as error:
                    silent.append(str(error))
                    continue
                refused = (
                    None if answer.code == ResponseCode.SUCCESS else explained(answer, f"name server {server}", code)
                )
                if refused is not None and (may_pass(refused) or (refused.code, code) == _NOT_READY):  # or is leaving
                    silent.append(str(refused))
                    continue
                self._server = (self._server + number) % len(servers)
                if refused is not None:
                    raise refused
                return answer
            if time.monotonic() >= deadline:
                raise Unreachable(f"no name server answers (option nameServer): {'; '.join(silent)}")
            time.sleep(pause)
            pause = PAUSE_SECONDS
