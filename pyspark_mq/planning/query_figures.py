"""A record in the store's directory that a query of a consumer group runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from store.disk.figures import READS, Figures
from store.model.log_protocol import LogAddress


class QueryFigures:
    """Records which topics a query reads, so that other processes can list running queries.

    Does nothing for a log without a directory. The record needs no heartbeat: other processes ignore it when this
    process has ended.
    """

    def __init__(self, address: LogAddress, group: str) -> None:
        self._root = None if address.directory is None else Path(address.directory)
        self._group = group
        self._figures = Figures(self._root)

    def note(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._figures.of(READS, topic, self._group).set(1)
        self._figures.write()

    def close(self) -> None:
        """Remove the record, until the next `note`."""
        self._figures.close()
        self._figures = Figures(self._root)
