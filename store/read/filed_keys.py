"""`FiledKeys`: whether a directory has lost keys from its index since somebody noted what it had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from store.errors import CorruptSegment
from store.format.layout import ABORT_FILE
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.queue_ends import QueueEnds
from store.publish.log_end import LogEnd
from store.publish.published_end import PublishedEnd

Found = TypeVar("Found")


class FiledKeys:
    """The last key of each file of one store's index, as `QueueEnds` has them: whether all are there is looked at once,
    and again when there are other files. So is an index noticed that is being made anew.

    What a broker did with its index is known to nobody.
    """

    def __init__(self, root: Path, log: CommitLog, index: Index, end: PublishedEnd | LogEnd) -> None:
        self._root = root
        self._log = log
        self._index = index
        self._end = end
        self._is_known = not index.is_enabled
        self._whole: tuple[int | None, list[str]] | None = None  # what was seen when all were there

    def searched(self, search: Callable[[], Found]) -> Found:
        """What a search by key finds in a log and an index of which nothing is gone, or goes meanwhile. Raises as
        `check`.
        """
        while True:
            begin, names = self._log.min_offset(), self._index.names()
            self.check()
            found = search()
            # Or else retention is at work, or a recovery.
            if begin == self._log.min_offset() and set(names) <= set(self._index.names()):
                return found

    def check(self) -> None:
        """Raises `CorruptSegment` where one is gone that retention did not take, and as `lost`."""
        if (lost := self.lost()) is not None:
            raise CorruptSegment(
                f"{self._index.directory}: file {lost[0]} had a key of the record at log offset {lost[1]}, and no "
                "file has it now, so searches by key would find less; open the store for writing, with no other writer "
                "there, which makes an index anew of which files are gone, or run 'pyspark-mq verify --repair'; while "
                "that is at work, search later"
            )

    def lost(self) -> tuple[str, int] | None:
        """A file whose last key is gone, and the log offset of its record. Raises `ConfigError` as `Index.file`."""
        while not self._is_known and (seen := self._seen()) != self._whole:
            lost, (keys_from, names) = self._looked_for(seen[0]), self._seen()
            if keys_from == seen[0] and set(seen[1]) <= set(names):  # or else retention is at work, or a recovery
                self._whole = seen if lost is None else None
                return lost
        return None

    def _seen(self) -> tuple[int | None, list[str]]:
        return self._end.keys_from, self._index.names()

    def _looked_for(self, keys_from: int | None) -> tuple[str, int] | None:
        """`lost` as the files are now."""
        noted = QueueEnds.read(self._root)
        if noted is None or keys_from is None or noted.at > (confirm := self._end.confirm_offset):
            return None
        if noted.at != confirm and not (self._root / ABORT_FILE).exists():  # it was a broker's since
            return None
        return noted.lost_key(self._log, self._index)
