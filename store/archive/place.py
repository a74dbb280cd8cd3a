"""`ArchivePlace`: reads and writes the objects of one broker's archive, and the metadata that name them."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from store.archive.catalog import (
    METADATA,
    Catalog,
    cluster_folder,
    index_path,
    is_cluster_folder,
    is_folder,
    queue_path,
)
from store.archive.flat import FlatQueue
from store.archive.key_index import KeyIndex
from store.model.errors import ConfigError, NoArchive, ObjectsUnavailable, UnsupportedStore
from store.model.log_protocol import Queue
from store.objects.any_objects import ByteReader, Objects, objects_at
from store.objects.urls import without_secrets

_COMPARED_AT_ONCE = 8 << 20
_ARCHIVE_THERE = "Correct the URL, or archive a store there ('pyspark-mq archive STORE --to URL')"


class _SeenMetadata(NamedTuple):
    """The metadata object as it was last read. mark: its `Objects.mark`, taken before reading."""

    data: bytes = b""
    catalog: Catalog | None = None
    mark: Hashable = None


class ArchivePlace:
    """One broker's archive.

    url: for error messages, without secrets.
    folder, metadata: paths of the cluster's folder and of the metadata object, relative to the URL.
    """

    def __init__(self, url: str, objects: Objects, folder: str, metadata: str) -> None:
        self.url = url
        self.objects = objects
        self._reader: ByteReader = objects
        self.folder = folder
        self.metadata = metadata
        self._seen = _SeenMetadata()

    @staticmethod
    def of_broker(url: str, options: Mapping[str, Any], cluster: str, broker: str) -> ArchivePlace:
        """Return the place that a broker archives to. Raises `ConfigError`, `ObjectsUnavailable`."""
        if not is_folder(broker):
            raise ConfigError(
                f"brokerName={broker!r} cannot be the name of a folder in an archive. Set another brokerName"
            )
        folder = cluster_folder(cluster)
        return ArchivePlace(without_secrets(url), objects_at(url, options), folder, f"{folder}/{broker}/{METADATA}")

    @staticmethod
    def at(url: str, options: Mapping[str, Any]) -> ArchivePlace:
        """Return the archive in a broker's folder, or the only archive below a folder.

        Raises `NoArchive`, `UnsupportedStore` if there are several archives, `ObjectsUnavailable`.
        """
        url = url.rstrip("/")
        above, _, broker = url.rpartition("/")
        base, _, cluster = above.rpartition("/")
        if is_cluster_folder(cluster) and base:
            return ArchivePlace(
                without_secrets(base), objects_at(base, options), cluster, f"{cluster}/{broker}/{METADATA}"
            )
        objects, shown = objects_at(url, options), without_secrets(url)
        found = list(_places(shown, objects))
        if not found:
            what = (
                "the first archiving into this place was not completed"
                if _clusters(objects)
                else "there is no archive here"
            )
            raise NoArchive(f"{shown}: {what}. {_ARCHIVE_THERE}")
        if len(found) > 1:
            brokers = ", ".join(f"{shown}/{each.metadata.removesuffix(METADATA)[:-1]}" for each in found)
            raise UnsupportedStore(f"{shown}: this place has archives of several stores. Name one of {brokers}")
        return found[0]

    def look_again(self) -> None:
        """Discard cached metadata; this class has none."""

    def load(self) -> Catalog | None:
        """Return the current catalog, None if there are no metadata. It is the same object until they change.

        Raises `CorruptStore`, `ObjectsUnavailable`.
        """
        seen, mark = self._seen, self.objects.mark(self.metadata)
        if mark is None or mark != seen.mark:
            try:
                data = self.objects.read_all(self.metadata)
            except FileNotFoundError:
                seen = _SeenMetadata()
            else:
                is_same = data == seen.data
                parsed = seen.catalog if is_same else Catalog.parse(f"{self.url}/{self.metadata}", data)
                seen = _SeenMetadata(seen.data if is_same else data, parsed, mark)
            self._seen = seen
        return seen.catalog

    def save(self, catalog: Catalog) -> None:
        """Write the metadata.

        Raises `ObjectsUnavailable`, also if another process wrote them after the last `load`.
        """
        seen, text = self._seen.data, catalog.text()
        self.load()
        if self._seen.data != seen:
            raise ObjectsUnavailable(
                f"{self.url}/{self.metadata}: another process changed the metadata. If another store archives here "
                "under the same name, give one of them another brokerName. Otherwise archive again"
            )
        self.objects.write(self.metadata, text)
        self._seen = _SeenMetadata(text, catalog)

    def write(self, path: str, data: bytes) -> None:
        """Write an object below the cluster's folder, read it back and compare. Raises `ObjectsUnavailable`."""
        path = f"{self.folder}/{path}"
        self.objects.write(path, data)
        cuts = range(0, len(data), _COMPARED_AT_ONCE)
        pieces = ((begin, min(begin + _COMPARED_AT_ONCE, len(data))) for begin in cuts)
        try:
            same = self.objects.size(path) == len(data)
            same = same and all(self.objects.read(path, *piece) == data[slice(*piece)] for piece in pieces)
        except FileNotFoundError:
            same = False
        if not same:
            raise ObjectsUnavailable(
                f"{self.url}/{path}: the bytes read back differ from the written ones. Check that no other process "
                "archives here"
            )

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. paths: below the cluster's folder. The metadata must not name them any more."""
        for path in paths:
            self.objects.delete(f"{self.folder}/{path}")

    def index(self, catalog: Catalog) -> KeyIndex:
        return KeyIndex(self._reader, self.folder, index_path(catalog.broker), catalog.index)

    def queue(self, catalog: Catalog, queue: Queue) -> FlatQueue | None:
        archived = catalog.queue(queue)
        if archived is None:
            return None
        return FlatQueue(self._reader, self.folder, queue_path(catalog.broker, queue), queue, archived)


class SnapshotPlace(ArchivePlace):
    """A snapshot of an archive: reads the metadata once."""

    def __init__(self, place: ArchivePlace) -> None:
        super().__init__(place.url, place.objects, place.folder, place.metadata)

    def load(self) -> Catalog | None:
        return self._seen.catalog or super().load()


def is_archive(directory: str) -> bool:
    objects = objects_at(directory, {})
    above, _, _ = directory.rstrip("/").rpartition("/")
    inside = is_cluster_folder(above.rpartition("/")[2]) and bool(objects.names(METADATA.partition("/")[0]))
    return inside or bool(_clusters(objects))


def _clusters(objects: Objects) -> list[str]:
    return [name for name in objects.names("") if is_cluster_folder(name)]


def _places(url: str, objects: Objects) -> Iterator[ArchivePlace]:
    """Yield the archives at a URL. A broker keeps its metadata at the root, this project in the store's folder."""
    folder, _, name = METADATA.rpartition("/")
    clusters = _clusters(objects)
    if len(clusters) == 1 and name in objects.names(folder):
        yield ArchivePlace(url, objects, clusters[0], METADATA)
        return
    for cluster in clusters:
        for broker in objects.names(cluster):
            if name in objects.names(f"{cluster}/{broker}/{folder}"):
                yield ArchivePlace(url, objects, cluster, f"{cluster}/{broker}/{METADATA}")


_LOOK_SECONDS = 1.0
_BLOCK_BYTES = 1 << 20  # per request
_BLOCKS = 64  # in the cache


class RecentPlace(ArchivePlace):
    """An archive with caches, for callers that make many small reads. Thread-safe.

    The metadata are cached for a second, or until `look_again`. keeps_blocks: also cache blocks of remote objects.
    """

    def __init__(self, place: ArchivePlace, *, keeps_blocks: bool) -> None:
        super().__init__(place.url, place.objects, place.folder, place.metadata)
        self._blocks = RecentBlocks(place.objects) if keeps_blocks and place.objects.ahead else None
        self._reader = self._blocks or place.objects
        self._lock = threading.Lock()
        self._until = 0.0  # time.monotonic()
        self._asked: Future[Catalog | None] | None = None

    def load(self) -> Catalog | None:
        """Return the catalog, at most a second old. Concurrent calls share one request."""
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
    """Reads objects in blocks, through an LRU cache. Thread-safe."""

    ahead = 0  # no prefetching: blocks are large

    def __init__(self, objects: ByteReader) -> None:
        self.url = objects.url
        self._objects = objects
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], Future[bytes]] = {}  # least recently used first

    def forget(self) -> None:
        """Drop all blocks, because new metadata may reuse names of objects."""
        with self._lock:
            self._kept = {}

    def read(self, path: str, begin: int, end: int) -> bytes:
        parts = []
        for number in range(begin // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)):
            at = number * _BLOCK_BYTES
            parts.append(self._block(path, number)[max(0, begin - at) : end - at])
        return b"".join(parts)

    def _block(self, path: str, number: int) -> bytes:
        """Return a block, from the cache or by one request that concurrent calls share."""
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
