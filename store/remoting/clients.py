"""The clients that are connected to a server, by group, with their subscriptions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from store.api.group_protocol import Subscription
from store.format.strict_json import encode
from store.model.codes import ResponseCode
from store.model.errors import RequestRefused
from store.remoting.bodies import MAX_BEAT_BYTES, ConsumerData, Heartbeat, SubscriptionData
from store.remoting.command import Command
from store.remoting.connection import Connection

_ENTRY_BYTES = 256  # of memory for a client in a group
_FACTOR = 16  # memory of parsed JSON, as a multiple of its text
MAX_CONNECTION_BYTES = _FACTOR * MAX_BEAT_BYTES
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class ConsumerClient:
    """A client that consumes for a group. size: approximate bytes of memory."""

    connection: Connection
    data: ConsumerData
    topics: Mapping[str, SubscriptionData]
    language: int
    version: int
    size: int = 0

    @property
    def is_broadcasting(self) -> bool:
        return self.data.message_model == "BROADCASTING"

    @property
    def reads(self) -> tuple[bool, Set[str]]:
        """Whether the client broadcasts, and its topics. If they change, the group's other consumers are notified."""
        return self.is_broadcasting, self.topics.keys()


class ProducerClient(NamedTuple):
    connection: Connection
    language: int
    version: int
    size: int = 0


@dataclass(frozen=True)
class ClientHeartbeat:
    client_id: str
    connection: Connection
    consumers: Mapping[str, ConsumerClient]
    producers: Mapping[str, ProducerClient]

    @staticmethod
    def of(command: Command, connection: Connection) -> ClientHeartbeat:
        """Parse the request HEART_BEAT. Raises `BadFrame`."""
        said = Heartbeat.of(command.body)
        id, by = said.client_id, (command.language, command.version)
        consumers = {
            each.group_name: ConsumerClient(connection, each, _topics(each), *by, _size(id, each.group_name, each))
            for each in said.consumers or ()
        }
        groups = [each.group_name for each in said.producers or ()]
        return ClientHeartbeat(
            id,
            connection,
            consumers,
            {group: ProducerClient(connection, *by, _size(id, group)) for group in groups},
        )


Kind = TypeVar("Kind", ConsumerClient, ProducerClient)
_Table = dict[str, dict[str, Kind]]  # by group, then by client id


class Clients:
    """The clients of a server. Thread-safe. Memory is limited for each connection and in total."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._consumers: _Table[ConsumerClient] = {}
        self._producers: _Table[ProducerClient] = {}
        self._bytes: Counter[Connection] = Counter()

    def consumers(self, group: str) -> Mapping[str, ConsumerClient]:
        with self._lock:
            return dict(sorted(self._consumers.get(group, {}).items()))

    def producers(self, group: str) -> Mapping[str, ProducerClient]:
        with self._lock:
            return dict(sorted(self._producers.get(group, {}).items()))

    def producer_groups(self) -> list[str]:
        with self._lock:
            return sorted(self._producers)

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups with a consumer that reads a topic."""
        with self._lock:
            found = {group: list(consumers.values()) for group, consumers in self._consumers.items()}
        return {group for group, consumers in found.items() if any(topic in each.topics for each in consumers)}

    def subscription(self, group: str, topic: str, version: int) -> Subscription:
        """Return a group's latest subscription to a topic.

        Raises `RequestRefused` if there is none, or if it is older than `version`.
        """
        found = [consumer.topics[topic] for consumer in self.consumers(group).values() if topic in consumer.topics]
        if not found:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist: {topic}@{group}"
            )
        last = max(found, key=lambda each: each.sub_version or 0)
        if (last.sub_version or 0) < version:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, f"the consumer's subscription not latest: {topic}@{group}"
            )
        return last.subscription

    def sharing(self, group: str) -> int:
        """Return the number of consumers that are not broadcasting."""
        return sum(not each.is_broadcasting for each in self.consumers(group).values())

    # --- changes -------------------------------------------------------------------------------------------

    def check_room(self, beat: ClientHeartbeat) -> None:
        """Raise `RequestRefused` if the clients would take too much memory after this heartbeat."""
        with self._lock:
            more = _growth(self._consumers, beat, beat.consumers) + _growth(self._producers, beat, beat.producers)
            if more > 0 and self._bytes[beat.connection] + more > MAX_CONNECTION_BYTES:
                why = f"clients of this connection take more than {MAX_CONNECTION_BYTES:,} bytes: use another one"
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, why)
            if more > 0 and self._bytes.total() + more > MAX_BYTES:
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"all clients take more than {MAX_BYTES:,} bytes")

    def put_consumer(self, group: str, client_id: str, consumer: ConsumerClient) -> None:
        self._put(self._consumers, group, client_id, consumer)

    def put_producer(self, group: str, client_id: str, producer: ProducerClient) -> None:
        self._put(self._producers, group, client_id, producer)

    def remove_consumer(self, group: str, client_id: str) -> bool:
        """Remove a client from a group. Return whether it was a member."""
        with self._lock:
            return self._remove(self._consumers, group, client_id)

    def remove_producer(self, group: str, client_id: str) -> None:
        with self._lock:
            self._remove(self._producers, group, client_id)

    def remove_connection(self, connection: Connection) -> list[str]:
        """Remove the clients of a connection. Return the groups that lost a consumer."""
        with self._lock:
            for group, id in _clients_on(connection, self._producers):
                self._remove(self._producers, group, id)
            lost = _clients_on(connection, self._consumers)
            for group, id in lost:
                self._remove(self._consumers, group, id)
        return list(dict.fromkeys(group for group, _ in lost))

    def _put(self, table: _Table[Kind], group: str, client_id: str, client: Kind) -> None:
        with self._lock:
            if not client.connection.is_over:  # else nothing would remove the client
                self._remove(table, group, client_id)
                table.setdefault(group, {})[client_id] = client
                self._bytes[client.connection] += client.size

    def _remove(self, table: _Table[Kind], group: str, client_id: str) -> bool:
        of_group = table.get(group, {})
        client = of_group.pop(client_id, None)
        if client is None:
            return False
        if not of_group:
            del table[group]
        self._bytes[client.connection] -= client.size
        if not self._bytes[client.connection]:
            del self._bytes[client.connection]
        return True


def _clients_on(connection: Connection, table: _Table[Kind]) -> list[tuple[str, str]]:
    return [
        (group, id)
        for group, of_group in table.items()
        for id, client in of_group.items()
        if client.connection is connection
    ]


def _growth(table: _Table[Kind], beat: ClientHeartbeat, said: Mapping[str, Kind]) -> int:
    more = 0
    for group, client in said.items():
        known = table.get(group, {}).get(beat.client_id)
        more += client.size - (known.size if known is not None and known.connection is beat.connection else 0)
    return more


def _topics(consumer: ConsumerData) -> Mapping[str, SubscriptionData]:
    return {each.topic: each for each in consumer.subscription_data_set or ()}


def _size(client_id: str, group: str, data: ConsumerData | None = None) -> int:
    return _ENTRY_BYTES + len(client_id) + len(group) + _FACTOR * (len(encode(data)) if data else 0)
