"""A store and its archive as one log: what the store has no longer comes from the archive.

The store says which topics there are and where their queues end; the archive only where they begin. What stands in both
is read from the store.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from store import MessageStore, OffsetLost, UnknownTopic
from store.any_log import Boundary, Bounds, Int64s, LogAddress, Positions, Queue, QueueRange, ReadSpec
from store.archive.log import ArchiveAddress, ArchiveLog
from store.archive.of_store import StoreArchive, remembered
from store.archive.place import is_archive
from store.format.columns import check_columns
from store.format.layout import COMMIT_LOG_DIR, LIGHT_PREFIX
from store.local import LocalAddress, LocalLog
from store.objects.urls import local_path, storage_options
from store.system_errors import explained

_LOOK_SECONDS = 5.0  # an archive grows at its end, which is asked for only once the store's begin has passed it


@explained
def address_at(path: str, archive: str | None = None, options: str = "") -> LogAddress:
    """The log at a path: an archive, there or behind a URL; a store; or a store together with its archive.

    archive: its URL, "" for the store alone; by default the one that the store's settings remember. options: fsspec's
    storage options, as JSON. Raises `ConfigError`.
    """
    local = local_path(path)
    if local is None:
        return ArchiveAddress(path, options)
    if is_archive(local):
        if not any(each.is_file() for each in (Path(local) / COMMIT_LOG_DIR).glob("*")):  # or a topic has that name
            return ArchiveAddress(local, options)
        warnings.warn(
            f"{local}: a store, and an archive, as of a broker with tieredStoreFilePath in it; what is archived is "
            "not read: link its folder, and config, in a directory of their own, and name that one",
            stacklevel=2,
        )
    url = remembered(Path(local)).url if archive is None else archive
    return ThroughAddress(path, url, options) if url else LocalAddress(path)


@dataclass(frozen=True)
class ThroughAddress(LocalAddress):
    """The store in directory `path`, and the archive at `url`; "" for the one that the store's settings remember.

    options: fsspec's storage options, as JSON; they are shown nowhere.
    """

    url: str = ""
    options: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.path

    @explained
    def open(self) -> ThroughLog:
        """Raises as `LocalAddress.open`. Where the archive is not there, or not reached, whoever asks it is told."""
        store = MessageStore.open(self.path, create=False, read_only=True)
        try:
            archive = StoreArchive.remembered(store.path, store.config, storage_options(self.options))
            return ThroughLog(store, archive.changed(self.url or None, None))
        except BaseException:
            store.close()
            raise


class Piece(NamedTuple):
    """What is read from one of the two, up to queue offset `end`."""

    batches: Iterator[pa.RecordBatch]
    end: int
    is_archived: bool


class ThroughLog(LocalLog):
    """A `Log`. The store is this one's from now on. Its archive is asked for what the store has no longer, and for
    nothing while that has all."""

    is_ordered = False  # each archived queue has a log of its own

    def __init__(self, store: MessageStore, archive: StoreArchive) -> None:
        super().__init__(store)
        self._of_store = archive
        self._archived: dict[Queue, Bounds] = {}
        self._looked = 0.0
        self._known: dict[Queue, int] = {}  # that the archive has older messages of, and since when a topic is there

    @cached_property
    def _archive(self) -> ArchiveLog:
        return ArchiveLog(self._of_store.place())

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        found = {}
        for queue, local in super().bounds(queues).items():
            with suppress(UnknownTopic):  # deleted meanwhile
                found[queue] = local._replace(min_offset=self._first(queue, local))
        return found

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        there = self.bounds(queues)
        if boundary is Boundary.LOWER:
            return {queue: self._lower(queue, timestamp, bounds) for queue, bounds in there.items()}
        newer = {queue: self._lower(queue, timestamp + 1, bounds) for queue, bounds in there.items()}
        return {queue: max(bounds.min_offset, newer[queue] - 1) for queue, bounds in there.items()}

    def stored_between(self, ranges: Iterable[QueueRange], begin: int, end: int) -> list[QueueRange]:
        found: list[QueueRange] = []
        for wanted in ranges:
            before, behind = self._split(wanted)
            found += self._archive.stored_between([before], begin, end) if before.length else []
            found += super().stored_between([behind], begin, end) if behind.length else []
        return found

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        found: list[QueueRange] = []
        for wanted in ranges:
            before, behind = self._split(wanted)
            found += self._archive.with_keys([before], keys) if before.length else []
            found += super().with_keys([behind], keys) if behind.length else []
        return found

    def sizes(self, wanted: QueueRange) -> Int64s:
        local = super().sizes(wanted)
        missing = int(np.argmax(local > 0)) if (local > 0).any() else len(local)
        if missing:
            local[:missing] = self._archive.sizes(wanted._replace(end=wanted.start + missing))
        return local

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        born = self._store.kin.born(wanted.queue)
        return self._store.each_of(wanted.queue.topic, born, self._through(wanted, spec, self._piece(wanted, spec)))

    def _through(self, rest: QueueRange, spec: ReadSpec, piece: Piece) -> Iterator[pa.RecordBatch]:
        """piece: the first one. What retention takes from the store before it is read comes from the archive."""
        while True:
            batches, end, is_archived = piece
            try:
                for batch in batches:
                    rest = rest._replace(start=batch["queueOffset"][-1].as_py() + 1)
                    yield batch.select(spec.columns)
                rest = rest._replace(start=end)
            except OffsetLost:
                is_light = rest.queue.topic.startswith(LIGHT_PREFIX)  # its batches have the offsets of other queues
                if is_archived or is_light or not self._split(rest)[0].length:
                    raise
            if not rest.length:
                return
            piece = self._piece(rest, spec)

    def _piece(self, wanted: QueueRange, spec: ReadSpec) -> Piece:
        """As much from its beginning on as one of the two has; each batch says how far it goes."""
        if "queueOffset" not in spec.columns:
            check_columns(spec.columns)
            spec = replace(spec, columns=(*spec.columns, "queueOffset"))
        try:
            return Piece(super().scan(wanted, spec), wanted.end, is_archived=False)
        except OffsetLost:
            before, _ = self._split(wanted)
            if not before.length or not self._is_known(wanted.queue):
                raise
        return Piece(self._archive.scan(before, spec), before.end, is_archived=True)

    def _split(self, wanted: QueueRange) -> tuple[QueueRange, QueueRange]:
        """What the store does not have any more, and the rest."""
        local = super().bounds([wanted.queue]).get(wanted.queue)
        at = wanted.start if local is None else min(max(wanted.start, local.min_offset), wanted.end)
        return wanted._replace(end=at), wanted._replace(start=at)

    def _lower(self, queue: Queue, timestamp: int, bounds: Bounds) -> int:
        found = super().offsets_by_time([queue], timestamp, Boundary.LOWER).get(queue, bounds.max_offset)
        local = super().bounds([queue]).get(queue, bounds)
        if found > local.min_offset or local.min_offset == bounds.min_offset:
            return found
        return min(found, self._archive.offsets_by_time([queue], timestamp, Boundary.LOWER).get(queue, found))

    def _first(self, queue: Queue, local: Bounds) -> int:
        """Where the queue begins in both: the archive goes as far as the store begins, or it does not count.

        Raises `UnknownTopic`, `ArchiveOfAnother`.
        """
        if not local.min_offset:
            return 0
        archived = self._of_archive(queue, local.min_offset)
        if archived is None or not archived.min_offset < local.min_offset <= archived.max_offset:
            return local.min_offset
        return archived.min_offset if self._is_known(queue) else local.min_offset

    def _of_archive(self, queue: Queue, begin: int) -> Bounds | None:
        """What is archived of a queue; begin: of the store, up to which it counts."""
        archived = self._archived.get(queue)
        if archived is None or begin > archived.max_offset or time.monotonic() > self._looked + _LOOK_SECONDS:
            self._archived = self._archive.bounds({queue for each in self._archive.topics().values() for queue in each})
            self._looked = time.monotonic()
            archived = self._archived.get(queue)
        return archived

    def _is_known(self, queue: Queue) -> bool:
        """Whether the archive has older messages of the queue. Raises `UnknownTopic`, `ArchiveOfAnother`."""
        born = self._store.kin.born(queue)
        if self._known.get(queue) != born and self._archive.reaches(queue, self._store.kin):
            self._known[queue] = born
        return self._known.get(queue) == born
