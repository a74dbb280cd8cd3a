"""Heartbeats: clients join and leave groups, and a group's members are notified.

Clients of a server do not share a group's queues with clients of other servers or consumers of this host. Such a
consumer owns a queue until it releases it, and most RocketMQ clients never report a release. So a server locks each
group that has clients (`ServerGroups`), and `DirectoryGroup.join` refuses a locked group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from store.api.group_protocol import MessageModel
from store.api.message_store import MessageStore
from store.broker.members import ServerGroups, server_of
from store.directory.directory_group import DirectoryGroup
from store.disk.consumer_offsets import check_group_name
from store.format.layout import RETRY_TOPIC_PREFIX
from store.model.codes import CommandFlag, RequestCode, ResponseCode
from store.model.errors import GroupConflict, RequestRefused, StoreClosed, StoreError
from store.remoting.clients import ClientHeartbeat, ConsumerClient, ProducerClient
from store.remoting.command import Command
from store.remoting.connection import Connection
from store.remoting.headers import ConsumerGroup, UnregisterClient
from store.remoting.request import Handler, Request, Response, of_json
from store.remoting.rights import Perm, of_group
from store.remoting.served_broker import ServedBroker

_MAX_NEW_GROUPS = 16  # in one heartbeat; each rewrites files of the store
_logger = logging.getLogger("store.remoting")


class HeartBeats:
    def __init__(self, broker: ServedBroker, group_locks: GroupLocks) -> None:
        self._broker = broker
        self._store = broker.store
        self.clients = broker.clients
        self._offsets = broker.offsets
        self._group_locks = group_locks
        self._joining = threading.Lock()  # a group's lock and its members change together

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self._heart_beat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: lambda request: Response(),
        }

    def lost(self, connection: Connection) -> None:
        """Remove the clients of a closed connection, and notify their groups. May block."""
        for group in self.clients.remove_connection(connection):
            self._notify(group)

    def _heart_beat(self, request: Request) -> Response:
        beat = ClientHeartbeat.of(request.command, request.connection)
        self.clients.check_room(beat)
        changed: list[str] = []
        refused: StoreError | None = None
        new = 0
        for group, consumer in beat.consumers.items():
            try:
                if not self._is_known(group):
                    new += 1
                    _check_new_groups(new)
                if self._join(group, beat.client_id, consumer):
                    changed.append(group)
            except StoreError as error:  # join its other groups
                refused = error
        for group, producer in beat.producers.items():
            if not self._broker.access.has(request, of_group(group, Perm.EITHER)):
                continue  # it may send, and is not asked about transactions
            _must_be_same(beat.client_id, self.clients.producers(group).get(beat.client_id), producer)
            self.clients.put_producer(group, beat.client_id, producer)
        for group in changed:
            self._notify(group)
        if refused is not None:
            raise refused
        return Response()

    def _join(self, group: str, client_id: str, consumer: ConsumerClient) -> bool:
        """Add a client to a group, or update it. Return whether to notify the group's other members."""
        before = self.clients.consumers(group).get(client_id)
        _must_be_same(client_id, before, consumer)
        is_news = before is None or before.reads != consumer.reads
        if is_news:
            self._prepare(group)
        with self._joining:
            if not consumer.is_broadcasting and (before is None or before.is_broadcasting):
                self._group_locks.admit(group)
            self.clients.put_consumer(group, client_id, consumer)
        return is_news

    def _is_known(self, group: str) -> bool:
        return RETRY_TOPIC_PREFIX + group in self._store.topics()

    def _prepare(self, group: str) -> None:
        check_group_name(group)
        self._broker.must_know(group)
        DirectoryGroup(self._store.path, group).create()  # takes over the offsets of dead consumers of this host
        if not self._is_known(group):
            self._store.create_topic(RETRY_TOPIC_PREFIX + group, 1)

    def _unregister(self, request: Request) -> Response:
        header, connection = UnregisterClient.of(request.command.fields), request.connection
        id, group = header.client_id, header.consumer_group
        if header.producer_group is not None:
            _must_be_own_connection(connection, id, self.clients.producers(header.producer_group).get(id))
            self.clients.remove_producer(header.producer_group, id)
        if group is not None:
            _must_be_own_connection(connection, id, self.clients.consumers(group).get(id))
            if self.clients.remove_consumer(group, id):
                self._notify(group)
        return Response()

    def _consumer_list(self, request: Request) -> Response:
        group = ConsumerGroup.of(request.command.fields).consumer_group
        ids = list(self.clients.consumers(group))
        if not ids:
            return Response(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return of_json({"consumerIdList": ids})

    def _notify(self, group: str) -> None:
        if not self.clients.sharing(group):
            self._offsets.persist()  # consumers of this host, which read the files, may join now
        with self._joining:
            if not self.clients.sharing(group):
                self._group_locks.release(group)
        told = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(group).texts(), flag=CommandFlag.ONEWAY)
        for connection in {each.connection for each in self.clients.consumers(group).values()}:
            connection.send_soon(told)


def _check_new_groups(new: int) -> None:
    if new > _MAX_NEW_GROUPS:
        why = f"{_MAX_NEW_GROUPS} new groups are created for one heart-beat; the next one goes on"
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, why)


def _must_be_same(
    client_id: str, before: ConsumerClient | ProducerClient | None, now: ConsumerClient | ProducerClient
) -> None:
    # Two connections of the same account are allowed, because a client reconnects after a late answer.
    if before is not None and before.connection.account != now.connection.account:
        _must_be_own_connection(now.connection, client_id, before)


def _must_be_own_connection(
    connection: Connection, client_id: str, client: ConsumerClient | ProducerClient | None
) -> None:
    if client is not None and client.connection is not connection and not client.connection.is_over:
        why = f"client {client_id} is on another connection, from {client.connection.peer}; only that one may end it"
        raise RequestRefused(ResponseCode.NO_PERMISSION, why)


class GroupLocks:
    """The groups that this server has locked for its clients. Thread-safe."""

    def __init__(self, store: MessageStore) -> None:
        self._root = Path(store.path)
        self._locks = ServerGroups(self._root)
        self._turn = threading.Lock()
        self._groups: set[str] = set()
        self._is_over = False

    def has(self, group: str) -> bool:
        return group in self._groups

    def admit(self, group: str) -> None:
        """Lock a group for a client that is about to join. Raises `GroupConflict`, `StoreClosed`.

        The server locks the group first, then looks for consumers of this host. A consumer does the same in the same
        order, so at least one of the two notices the other.
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

    def release(self, group: str) -> None:
        with self._turn:
            if group in self._groups and not self._is_over:
                self._groups.remove(group)
                self._locks.leave(group)

    def close(self) -> None:
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
