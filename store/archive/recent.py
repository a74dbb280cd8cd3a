"""An archive that is read a little at a time, and often: it keeps the metadata and the bytes it read last."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from store.archive.catalog import Catalog
from store.archive.place import ArchivePlace
from store.objects.any_objects import ByteReader

_LOOK_SECONDS = 1.0
_BLOCK_BYTES = 1 << 20  # a request
_BLOCKS = 64  # that are kept


class RecentPlace(ArchivePlace):
    """Looks at the metadata at most once a second, unless `look_again` is called. Threads may share it."""

    def __init__(self, place: ArchivePlace, *, keeps_blocks: bool) -> None:
        super().__init__(place.url, place.objects, place.folder, place.metadata)
        self._blocks = RecentBlocks(place.objects) if keeps_blocks and place.objects.ahead else None
        self._reader = self._blocks or place.objects
        self._lock = threading.Lock()
        self._until = 0.0  # time.monotonic()
        self._asked: Future[Catalog | None] | None = None

    def load(self) -> Catalog | None:
        """One thread asks; the others wait for its answer."""
        with self._lock:
            if (asked := self._asked) is not None and (not asked.done() or time.monotonic() < self._until):
                mine = None
            else:
                mine = asked = self._asked = Future()
        if mine is not None:
            self._load(mine)
        return asked.result()

    def _load(self, asked: Future[Catalog | None]) -> None:
        before, until = self._seen.catalog, time.monotonic() + _LOOK_SECONDS
        try:
            found = super().load()
        except BaseException as error:
            asked.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        if found is not before and self._blocks is not None:
            self._blocks.forget()
        with self._lock:
            if self._asked is asked and found is not None:
                self._until = until
        asked.set_result(found)

    def look_again(self) -> None:
        with self._lock:
            self._asked, self._until = None, 0.0


class RecentBlocks:
    """Reads objects in blocks, and keeps those that were asked for last. Threads may share it."""

    ahead = 0  # a block is requested as a whole

    def __init__(self, objects: ByteReader) -> None:
        self.url = objects.url
        self._objects = objects
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], Future[bytes]] = {}  # in the order in which they were asked for

    def forget(self) -> None:
        """Forget all blocks: other objects may have their names now."""
        with self._lock:
            self._kept = {}

    def read(self, path: str, begin: int, end: int) -> bytes:
        parts = []
        for number in range(begin // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)):
            at = number * _BLOCK_BYTES
            parts.append(self._block(path, number)[max(0, begin - at) : end - at])
        return b"".join(parts)

    def _block(self, path: str, number: int) -> bytes:
        """One thread requests a block; the others wait for it."""
        name, asked = (path, number), Future[bytes]()
        with self._lock:
            kept = self._kept
            known = kept.pop(name, None)
            kept[name] = known or asked
            if len(kept) > _BLOCKS:
                del kept[next(iter(kept))]
        if known is not None:
            return known.result()
        try:
            data = self._objects.read(path, number * _BLOCK_BYTES, (number + 1) * _BLOCK_BYTES)
        except BaseException as error:
            with self._lock:
                if kept.get(name) is asked:
                    del kept[name]
            asked.set_exception(error)
            raise
        asked.set_result(data)
        return data
