"""Groups of which some members are clients of a server, and others consumers in processes of this host.

Neither know of the other: each would read all queues of its share, many messages twice. So a server tells which groups
have members there, and no other consumer joins one (see `LocalGroup.join`); where those were first it says so.
"""

from __future__ import annotations

import logging
from pathlib import Path

from store import MessageStore
from store.any_group import MessageModel
from store.local_group import LocalGroup
from store.publish.figures import MEMBERS, Figures

_logger = logging.getLogger("store.remoting")


class Neighbours:
    """Of one server. Any thread may call its verbs."""

    def __init__(self, store: MessageStore) -> None:
        self._root = Path(store.path)
        self._figures = Figures(self._root, f"a server of {store.path}")

    def changed(self, group: str, count: int) -> None:
        """A group has so many members here now, without broadcasting ones."""
        self._figures.of(MEMBERS, "", group).set(count)
        self._figures.write()
        if not count:
            return
        others = [each.id for each in LocalGroup(self._root, group).members() if each.model is MessageModel.CLUSTERING]
        if others:
            _logger.error(
                "group %s: clients consume in it here, and beside the server %s: all of these read the same queues, "
                "each message twice. End one kind, or let it consume in a group of another name",
                group,
                ", ".join(others),
            )

    def close(self) -> None:
        """There are no members here any more."""
        self._figures.close()
