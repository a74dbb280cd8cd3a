"""Who is connected: producers and consumers, as their heart-beats say, and what consumers subscribe to."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from store.api.group_protocol import MessageModel, Subscription
from store.api.message_store import MessageStore
from store.broker.members import ServerGroups, server_of
from store.directory.directory_group import DirectoryGroup
from store.format.strict_json import encode
from store.model.codes import CommandFlag, RequestCode, ResponseCode
from store.model.errors import GroupConflict, RequestRefused, StoreClosed, StoreError
from store.remoting.bodies import MAX_BODY_BYTES, ConsumerData, Heartbeat, SubscriptionData
from store.remoting.command import Command
from store.remoting.connection import Connection
from store.remoting.headers import ConsumerGroup, UnregisterClient
from store.remoting.request import Handler, Request, Response, of_json

_ENTRY_BYTES = 256  # that a client of a group takes, whatever it says


@dataclass(frozen=True)
class ConsumerClient:
    """A consumer of one group. data: of its heart-beat. size: what is kept of it, about as many bytes."""

    connection: Connection
    data: ConsumerData
    topics: Mapping[str, SubscriptionData]
    language: int
    version: int
    size: int = 0

    @property
    def is_broadcasting(self) -> bool:
        """Whether it reads all queues, whoever else is in the group."""
        return self.data.message_model == "BROADCASTING"

    @property
    def reads(self) -> tuple[bool, Set[str]]:
        """Who says something else here is told of anew."""
        return self.is_broadcasting, self.topics.keys()


class ProducerClient(NamedTuple):
    """A producer of one group. size: as a consumer's."""

    connection: Connection
    language: int
    version: int
    size: int = 0


Entry = TypeVar("Entry", ConsumerClient, ProducerClient)


class Clients:
    """The clients of one server, until their connection is over. Any thread may ask. What is kept is bounded: of all
    clients on one connection as much as one heart-beat may say."""

    def __init__(
        self,
        joined: Callable[[str], None] = lambda group: None,
        admit: Callable[[str], None] = lambda group: None,
        emptied: Callable[[], None] = lambda: None,
        changed: Callable[[str, int], None] = lambda group, count: None,
    ) -> None:
        """joined: called with each consumer group that a client is new in, before it is told of. admit: likewise, if it
        is not broadcasting; raises where it may not be in it. changed: with each that has others now, and how many,
        without broadcasting ones. emptied: before that where there are none; it may take a while.
        """
        self._joined = joined
        self._admit = admit
        self._emptied = emptied
        self._changed = changed
        self._telling = threading.Lock()  # or who is admitted meanwhile would not be among those that are told of
        self._lock = threading.Lock()
        self._consumers: dict[str, dict[str, ConsumerClient]] = {}  # group to client id
        self._producers: dict[str, dict[str, ProducerClient]] = {}
        self._kept: Counter[Connection] = Counter()  # bytes, see `_ENTRY_BYTES`

    def others(self) -> Mapping[int, Handler]:
        """Handlers that may wait."""
        return {
            RequestCode.HEART_BEAT: self._heart_beat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: lambda request: Response(),
        }

    def consumers(self, group: str) -> Mapping[str, ConsumerClient]:
        """Client id to consumer, sorted."""
        with self._lock:
            return dict(sorted(self._consumers.get(group, {}).items()))

    def producers(self, group: str) -> Mapping[str, ProducerClient]:
        """Client id to producer, sorted."""
        with self._lock:
            return dict(sorted(self._producers.get(group, {}).items()))

    def producer_groups(self) -> list[str]:
        """Those that have a producer, sorted."""
        with self._lock:
            return sorted(self._producers)

    def groups_of(self, topic: str) -> set[str]:
        """The groups of which a consumer reads a topic."""
        with self._lock:
            found = {group: list(consumers.values()) for group, consumers in self._consumers.items()}
        return {group for group, consumers in found.items() if any(topic in each.topics for each in consumers)}

    def subscription(self, group: str, topic: str, version: int) -> Subscription:
        """What the group's consumers said last that they read of a topic.

        Raises `RequestRefused` where none did, or none as lately as the version says.
        """
        found = [consumer.topics[topic] for consumer in self._of(group) if topic in consumer.topics]
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

    def lost(self, connection: Connection) -> None:
        """The clients of a connection that is over are gone. It may take a while."""
        with self._lock:
            self._drop_of(connection, self._producers)
            left = self._drop_of(connection, self._consumers)
        for group in left:
            self._notify(group)

    # --- requests ----------------------------------------------------------------------------------------

    def _heart_beat(self, request: Request) -> Response:
        command, connection = request
        beat = Heartbeat.of(command.body)
        id, by = beat.client_id, (command.language, command.version)
        consumers = {
            each.group_name: ConsumerClient(connection, each, _topics(each), *by, _size(id, each.group_name, each))
            for each in beat.consumers or ()
        }
        groups = [each.group_name for each in beat.producers or ()]
        producers = {group: ProducerClient(connection, *by, _size(id, group)) for group in groups}
        self._must_fit(id, connection, consumers, producers)
        changed = []
        refused: StoreError | None = None
        for group, consumer in consumers.items():
            with self._lock:
                before = self._consumers.get(group, {}).get(id)
            try:
                if before is None or before.reads != consumer.reads:
                    self._joined(group)
                    changed.append(group)
                with self._telling:
                    if not consumer.is_broadcasting and (before is None or before.is_broadcasting):
                        self._admit(group)
                    self._keep(self._consumers, group, id, consumer)
            except StoreError as error:  # its other groups are none the worse for it
                refused = error
        for group, producer in producers.items():
            self._keep(self._producers, group, id, producer)
        for group in changed:
            self._notify(group)
        if refused is not None:
            raise refused
        return Response()

    def _unregister(self, request: Request) -> Response:
        header = UnregisterClient.of(request.command.fields)
        with self._lock:
            if header.producer_group is not None:
                self._drop(self._producers, header.producer_group, header.client_id)
            group = header.consumer_group
            left = group is not None and self._drop(self._consumers, group, header.client_id)
        if group is not None and left:
            self._notify(group)
        return Response()

    def _consumer_list(self, request: Request) -> Response:
        group = ConsumerGroup.of(request.command.fields).consumer_group
        ids = list(self.consumers(group))
        if not ids:
            return Response(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return of_json({"consumerIdList": ids})

    def _notify(self, group: str) -> None:
        """Tell a group's consumers that its members are others now, so that they share the queues anew."""
        told = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(group).texts(), flag=CommandFlag.ONEWAY)
        if not self._sharing(group):
            self._emptied()
        with self._telling:
            self._changed(group, self._sharing(group))
        for connection in {each.connection for each in self._of(group)}:  # once, whoever is at its other end
            connection.send_soon(told)

    def _of(self, group: str) -> list[ConsumerClient]:
        with self._lock:
            return list(self._consumers.get(group, {}).values())

    def _sharing(self, group: str) -> int:
        """How many a group's queues are shared by."""
        return sum(not each.is_broadcasting for each in self._of(group))

    # --- what is kept --------------------------------------------------------------------------------------

    def _must_fit(
        self,
        client_id: str,
        connection: Connection,
        consumers: Mapping[str, ConsumerClient],
        producers: Mapping[str, ProducerClient],
    ) -> None:
        """Raises `RequestRefused` for a heart-beat that would make a connection's clients too many, or too large."""
        with self._lock:
            more = 0
            for table, said in ((self._consumers, consumers), (self._producers, producers)):
                for group, entry in said.items():
                    more += entry.size - _size_on(connection, table.get(group, {}).get(client_id))
            if more > 0 and self._kept[connection] + more > MAX_BODY_BYTES:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"the clients on this connection say more than {MAX_BODY_BYTES:,} bytes of themselves: let "
                    "others come on another one",
                )

    def _keep(self, table: dict[str, dict[str, Entry]], group: str, client_id: str, entry: Entry) -> None:
        with self._lock:
            if not entry.connection.is_over:  # or nobody would ever notice that it is lost
                self._drop(table, group, client_id)
                table.setdefault(group, {})[client_id] = entry
                self._kept[entry.connection] += entry.size

    def _drop(self, table: dict[str, dict[str, Entry]], group: str, client_id: str) -> bool:
        """Whether it was there. With the lock."""
        of_group = table.get(group, {})
        entry = of_group.pop(client_id, None)
        if entry is None:
            return False
        if not of_group:
            del table[group]
        self._kept[entry.connection] -= entry.size
        if not self._kept[entry.connection]:
            del self._kept[entry.connection]
        return True

    def _drop_of(self, connection: Connection, table: dict[str, dict[str, Entry]]) -> list[str]:
        """The groups of which a connection had clients, who are dropped. With the lock."""
        found = [
            (group, id)
            for group, of_group in table.items()
            for id, it in of_group.items()
            if it.connection is connection
        ]
        for group, id in found:
            self._drop(table, group, id)
        return list(dict.fromkeys(group for group, _ in found))


def _topics(consumer: ConsumerData) -> Mapping[str, SubscriptionData]:
    return {each.topic: each for each in consumer.subscription_data_set or ()}


def _size(client_id: str, group: str, data: ConsumerData | None = None) -> int:
    """About as many bytes as are kept of a client in a group."""
    return _ENTRY_BYTES + len(client_id) + len(group) + (len(encode(data)) if data else 0)


def _size_on(connection: Connection, entry: ConsumerClient | ProducerClient | None) -> int:
    return entry.size if entry is not None and entry.connection is connection else 0


_logger = logging.getLogger("store.remoting")


class Neighbours:
    """Of one server. Threads may share it."""

    def __init__(self, store: MessageStore) -> None:
        """Raises `StoreUnavailable`."""
        self._root = Path(store.path)
        self._locks = ServerGroups(self._root)
        self._turn = threading.Lock()
        self._groups: set[str] = set()
        self._is_over = False

    def has(self, group: str) -> bool:
        """Return whether the group has members here."""
        return group in self._groups

    def admit(self, group: str) -> None:
        """Lock a group for a client that is about to join it here.

        First this locks, then it looks for consumers; a consumer does likewise, so one of the two sees the other.
        Raises `GroupConflict`, `StoreClosed`, `StoreUnavailable`.
        """
        with self._turn:
            if self._is_over:
                raise StoreClosed(f"{self._root}: the server was closed")
            if group in self._groups:
                return
            if not self._locks.enter(group):
                raise self._conflict(group, f"clients of another server ({server_of(self._root, group)})")
            try:
                self._must_have_no_consumers(group)
            except StoreError:
                self._locks.leave(group)
                raise
            self._groups.add(group)

    def changed(self, group: str, count: int) -> None:
        """Release a group if it has no members here any more. count: of its members, without broadcasting ones."""
        with self._turn:
            if not count and group in self._groups and not self._is_over:
                self._groups.remove(group)
                self._locks.leave(group)

    def close(self) -> None:
        """Release all groups."""
        with self._turn:
            self._is_over = True
            self._locks.close()

    def _must_have_no_consumers(self, group: str) -> None:
        members = DirectoryGroup(self._root, group).members()
        if others := [each.id for each in members if each.model is MessageModel.CLUSTERING]:
            raise self._conflict(group, f"consumers in processes of the broker's host ({', '.join(others)})")

    def _conflict(self, group: str, others: str) -> GroupConflict:
        why = (
            f"group {group}: {others} read its queues, and clients of this broker cannot share them: end those first, "
            "or consume in a group of another name"
        )
        _logger.error("%s", why)
        return GroupConflict(why)
