"""Groups of which some members are clients of a server, and others of another one, or consumers in processes of this
host.

They cannot share the queues: a queue of a consumer here is its own until it gives it back, and RocketMQ's clients, but
for orderly ones, never say that they have; and no server knows the clients of another. So who comes second is refused:
a server tells which groups have members there, and no other consumer joins one (see `LocalGroup.join`); and it takes no
client into a group of others.
"""

from __future__ import annotations

import logging
from pathlib import Path

from store import GroupConflict, MessageStore, StoreUnavailable
from store.any_group import MessageModel
from store.format.layout import CLIENTS_DIR
from store.local_group import LocalGroup
from store.publish.figures import MEMBERS, Figures, served_members

_logger = logging.getLogger("store.remoting")


class Neighbours:
    """Of one server. Any thread may call its verbs, one at a time."""

    def __init__(self, store: MessageStore, figures: Figures) -> None:
        """figures: the server's, where it tells of its clients; also later what was refused, for they are written now
        and then."""
        self._root = Path(store.path)
        self._figures = figures

    @property
    def client(self) -> str:
        """As this server tells of its clients, see `Figures.client`."""
        return self._figures.client

    def admit(self, group: str) -> None:
        """A client is about to be a member here. Raises `GroupConflict` where others are beside the server.

        First it says so, then it looks; they do the same, so not both miss each other. Raises `StoreUnavailable` where
        the system does not let it say so.
        """
        figure = self._figures.of(MEMBERS, "", group)
        figure.change(1)
        if not self._figures.write():
            figure.change(-1)
            raise StoreUnavailable(
                f"{self._root / CLIENTS_DIR}: it cannot be written here that group {group} has members by this server, "
                "as who consumes beside it must know; see the server's log for why"
            )
        others = [each.id for each in LocalGroup(self._root, group).members() if each.model is MessageModel.CLUSTERING]
        elsewhere = served_members(self._root, group, but=self.client)
        if others or elsewhere:
            figure.change(-1)
            self._figures.write()
            who = f"consumers in processes of the broker's host read its queues ({', '.join(others)})"
            why = (
                f"group {group}: {who if others else f'{elsewhere} clients of another server read its queues'}, "
                "and clients of this broker cannot share them: end those first, or consume in a group of another name"
            )
            _logger.error("%s", why)
            raise GroupConflict(why)

    def changed(self, group: str, count: int) -> None:
        """A group has so many members here now, without broadcasting ones."""
        figure = self._figures.of(MEMBERS, "", group)
        figure.set(count)
        if not count:  # clients may make up any number of groups
            self._figures.give_back(figure)
        self._figures.write()
