"""Keeps clients of a server out of groups that have other members: of another server, or consumers of this host.

They cannot share queues. A consumer of this host owns a queue until it gives the queue up, and most clients of RocketMQ
never say that they gave one up. A server does not know the clients of another server. So the second to come is refused:
a server locks each group that it has members of (`ServerGroups`), and `LocalGroup.join` refuses a locked group.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from store.api.group_protocol import MessageModel
from store.api.message_store import MessageStore
from store.broker.served_groups import ServerGroups, server_of
from store.directory.directory_group import LocalGroup
from store.model.errors import GroupConflict, StoreClosed, StoreError

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
        members = LocalGroup(self._root, group).members()
        if others := [each.id for each in members if each.model is MessageModel.CLUSTERING]:
            raise self._conflict(group, f"consumers in processes of the broker's host ({', '.join(others)})")

    def _conflict(self, group: str, others: str) -> GroupConflict:
        why = (
            f"group {group}: {others} read its queues, and clients of this broker cannot share them: end those first, "
            "or consume in a group of another name"
        )
        _logger.error("%s", why)
        return GroupConflict(why)
