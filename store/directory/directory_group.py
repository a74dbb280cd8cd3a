"""`DirectoryGroup`: a consumer group of processes that share a store's directory."""

from __future__ import annotations

import difflib
import logging
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from store.api.group_protocol import MemberInfo, MessageModel, Subscriptions
from store.broker.entries import MemberEntry, client_id
from store.broker.group_files import GroupFiles
from store.broker.members import is_served, server_of
from store.directory.directory_member import DirectoryMember
from store.disk.consumer_offsets import ConsumerOffsets
from store.model.errors import GroupConflict, UnknownGroup
from store.model.log_protocol import Positions, Queue
from store.upkeep.store_directory import StoreDirectory

_DEFAULT_INSTANCE = "DEFAULT"
_SHOWN_GROUPS = 10
_logger = logging.getLogger("store")


class DirectoryGroup:
    """A `Group` of processes of this host, with files in directory `path`. Raises `NotAStore`, `InvalidGroup`."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        directory = StoreDirectory.at(path)
        directory.must_be_store()
        self.path = directory.root
        self.name = name
        self._files = GroupFiles(self.path, name, directory.configuration(None).lockTimeoutMillis / 1000)

    def join(
        self,
        subscriptions: Subscriptions,
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        orderly: bool = False,
        exclusive: bool = False,
        instance: str | None = None,
    ) -> DirectoryMember:
        if instance is None and model is MessageModel.BROADCASTING:
            instance = _DEFAULT_INSTANCE
        id_, files = client_id(instance), self._files

        if model is MessageModel.CLUSTERING:
            self._must_not_be_served()

        with files.locked():
            resets, _ = files.resets.read()
            member_files = files.enter(MemberEntry(id_, dict(subscriptions), model, orderly, exclusive, resets))
            member = DirectoryMember(files, member_files)
        try:
            if model is MessageModel.CLUSTERING:  # again: a server may have started before it could see this member
                self._must_not_be_served()
        except BaseException:
            member.leave()
            raise
        return member

    def _must_not_be_served(self) -> None:
        self._no_clients(
            "cannot share its queues with other members, because they do not tell when they release one. Stop those "
            "clients, or join a group of another name"
        )

    def _no_clients(self, why: str) -> None:
        if is_served(self.path, self.name):
            server = server_of(self.path, self.name)
            raise GroupConflict(
                f"{self.path}: group {self.name} has clients of a server (pyspark-mq serve: {server}), which {why}"
            )

    def members(self) -> list[MemberInfo]:
        now = time.monotonic()
        return [entry.info(now) for entry in self._files.roster.present()]

    def committed(self, queues: Iterable[Queue]) -> Positions:
        queues = list(queues)
        found = self._files.offsets.positions(self.name, {queue.topic for queue in queues})
        return {queue: found[queue] for queue in queues if queue in found}

    def create(self) -> None:
        with self._files.locked():
            self._files.offsets.settings.create(self.name)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Change settings of RocketMQ's SubscriptionGroupConfig. Create the group if missing."""
        with self._files.locked():
            self._files.offsets.settings.configure(self.name, settings)

    def delete(self, *, with_offsets: bool) -> None:
        """Delete the group's settings. The next member to join recreates it.

        Raises `UnknownGroup`, and `GroupConflict` while the group has members.
        """
        self.must_exist()
        with self._files.locked():
            if members := self._files.roster.present():
                raise GroupConflict(
                    f"{self.path}: group {self.name} has members: {', '.join(each.id for each in members)}. "
                    "Stop them first"
                )
            for offsets in (self._files.offsets, *ConsumerOffsets.of_instances(self.path, self.name)):
                offsets.delete(self.name, with_offsets=with_offsets)

    def must_exist(self) -> None:
        known = self._files.offsets.names()
        if self.name not in known:
            near = difflib.get_close_matches(self.name, known)
            some = ", ".join(near or known[:_SHOWN_GROUPS]) or "no groups"
            more = ", ..." if len(known) > _SHOWN_GROUPS else ""
            found = f"similar names are {some}" if near else f"there are {some}{more}"
            raise UnknownGroup(
                f"{self.path}: group {self.name!r} does not exist; {found}. To list all groups: "
                f"pyspark-mq groups list {self.path}"
            )

    def reset(self, positions: Positions, *, by_its_server: bool = False) -> None:
        """Reset the group, see `Group.reset`. Raises `GroupConflict` while clients of a server are members.

        by_its_server: the caller is that server, and notifies its clients itself.
        """
        self.must_exist()
        if not by_its_server:
            self._no_clients(
                "would not notice the reset. Reset the group through the server (mqadmin resetOffsetByTime), or stop "
                "those clients first"
            )
        with self._files.locked():
            self._files.reset(positions)
