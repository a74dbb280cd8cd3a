"""`ClusterAddress`: a cluster as a log, and its groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.cluster.name_servers import NameServers

if TYPE_CHECKING:
    from store.cluster.group import ClusterGroup
    from store.cluster.log import ClusterLog
    from store.cluster.writer import ClusterWriter

SCHEME = "rocketmq://"  # of an address that stands where a path may


@dataclass(frozen=True)
class ClusterAddress(NameServers):
    """A `LogAddress`. What it opens is imported then, for whoever only looks at options does without."""

    directory = None  # nothing lies beside it

    def open(self) -> ClusterLog:
        """Connects to nobody yet."""
        from store.cluster.log import ClusterLog

        return ClusterLog(self)

    def group(self, name: str) -> ClusterGroup:
        """Connects to nobody yet. Raises `InvalidGroup`."""
        from store.cluster.group import ClusterGroup

        return ClusterGroup(self, name)

    def open_writer(self) -> ClusterWriter:
        """Connects to nobody yet."""
        from store.cluster.writer import ClusterWriter

        return ClusterWriter(self)
