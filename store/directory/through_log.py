"""The log at a path: a store, an archive, or a store that is read through to its archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from store.api.message_store import MessageStore
from store.archive.log import ArchiveAddress
from store.archive.of_store import StoreArchive, remembered
from store.archive.place import is_archive
from store.archive.tiered import TieredLog
from store.directory.directory_log import LocalAddress, LocalLog
from store.format.layout import COMMIT_LOG_DIR
from store.model.errors import system_errors
from store.model.log_protocol import Boundary, Bounds, Int64s, LogAddress, Positions, Queue, QueueRange, ReadSpec
from store.objects.urls import local_path, storage_options


def address_at(path: str, archive: str | None = None, options: str = "") -> LogAddress:
    """Return the log at a path or a URL: an archive, a store, or a store together with its archive.

    archive: its URL, "" for the store alone; default: the one that the store's settings name. options: fsspec's
    storage options, as JSON. Raises `ConfigError`.
    """
    local = local_path(path)
    if local is None:
        return ArchiveAddress(path, options)
    with system_errors(local):  # a broker's archive may be in its store; a topic of an archive may have that name
        is_store = any(each.is_file() for each in (Path(local) / COMMIT_LOG_DIR).glob("*"))
    if not is_store and is_archive(local):
        return ArchiveAddress(local, options)
    url = remembered(Path(local)).url if archive is None else archive
    return ThroughAddress(path, url, options) if url else LocalAddress(path)


@dataclass(frozen=True)
class ThroughAddress(LocalAddress):
    """The store in directory `path`, and the archive at `url`; "" for the one that the store's settings name.

    options: fsspec's storage options, as JSON; no error shows them.
    """

    url: str = ""
    options: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.path

    def open(self) -> ThroughLog:
        """Raises as `LocalAddress.open`. The archive is opened when it is first read."""
        store = MessageStore.open(self.path, create=False, read_only=True)
        try:
            archive = StoreArchive.remembered(store.path, store.config, storage_options(self.options))
            return ThroughLog(store, archive.changed(self.url or None, None))
        except BaseException:
            store.close()
            raise


class ThroughLog(LocalLog):
    """A `Log`: a store, which this log closes, and its archive."""

    is_ordered = False  # each archived queue has a log of its own

    def __init__(self, store: MessageStore, archive: StoreArchive) -> None:
        super().__init__(store)
        self._tiered = TieredLog(store, archive)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        return self._tiered.bounds(queues)

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        return self._tiered.offsets_by_time(queues, timestamp, boundary)

    def stored_between(self, ranges: Iterable[QueueRange], begin: int, end: int) -> list[QueueRange]:
        found: list[QueueRange] = []
        for before, behind in map(self._tiered.split, ranges):
            found += self._tiered.older.stored_between([before], begin, end) if before.length else []
            found += super().stored_between([behind], begin, end) if behind.length else []
        return found

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        found: list[QueueRange] = []
        for before, behind in map(self._tiered.split, ranges):
            found += self._tiered.older.with_keys([before], keys) if before.length else []
            found += super().with_keys([behind], keys) if behind.length else []
        return found

    def sizes(self, wanted: QueueRange) -> Int64s:
        own = super().sizes(wanted)
        missing = int(np.argmax(own > 0)) if (own > 0).any() else len(own)
        if missing:
            own[:missing] = self._tiered.older.sizes(wanted._replace(end=wanted.start + missing))
        return own

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        return self._tiered.scan(wanted, spec)
