"""`FiledKeys`: whether a directory that is only read has lost keys from its index since somebody noted what it had."""

from __future__ import annotations

from pathlib import Path

from store.errors import CorruptSegment
from store.format.layout import ABORT_FILE
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.queue_ends import QueueEnds
from store.publish.log_end import LogEnd
from store.publish.published_end import PublishedEnd


class FiledKeys:
    """The last key of each file of one store's index, as `QueueEnds` has them; looked for until all are there, once.

    Who writes has looked as it opened. What a broker did with its index is known to nobody.
    """

    def __init__(self, root: Path, log: CommitLog, index: Index, end: PublishedEnd | LogEnd) -> None:
        self._root = root
        self._log = log
        self._index = index
        self._end = end
        self._are_there = not isinstance(end, LogEnd) or not index.is_enabled

    def check(self) -> None:
        """Raises `CorruptSegment` where one is gone that retention did not take, and as `lost`."""
        if (lost := self.lost()) is not None:
            raise CorruptSegment(
                f"{self._index.directory}: file {lost[0]} had a key of the record at log offset {lost[1]}, and no "
                "file has it now, so searches by key would find less; open the store for writing, which makes an index "
                "anew of which files are gone, or run 'pyspark-mq verify --repair'"
            )

    def lost(self) -> tuple[str, int] | None:
        """A file whose last key is gone, and the log offset of its record. Raises `ConfigError` as `Index.file`."""
        while not self._are_there:
            before = self._end.keys_from, self._index.names()
            lost = self._looked_for(before[0])
            if (self._end.keys_from, self._index.names()) != before:  # it rolls, retention is at work, or a recovery
                continue
            if lost is not None:
                return lost
            self._are_there = True
        return None

    def _looked_for(self, keys_from: int | None) -> tuple[str, int] | None:
        """`lost` as the files are now.

        A recovery has `keys_from` behind what it files anew as long as that is not whole.
        """
        noted = QueueEnds.read(self._root)
        if noted is None or keys_from is None or noted.at > (confirm := self._end.confirm_offset):
            return None
        if noted.at != confirm and not (self._root / ABORT_FILE).exists():  # it was a broker's since
            return None
        return noted.lost_key(self._log, self._index, keys_from)
