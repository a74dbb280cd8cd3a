"""`StoreArchive`: the archive that a store's settings name, and the lock of its writer."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from store.append.log_end import is_message
from store.archive.archiving import PIECE_BYTES, Archived, Archiving, Progress
from store.archive.catalog import DEFAULT_CLUSTER, Catalog
from store.archive.comparison import ArchiveState, StoreComparison
from store.archive.place import ArchivePlace
from store.archive.removal import expire, forget
from store.disk.atomic import make_directory, open_file, write_file
from store.disk.config import REMEMBERED, StoreConfig, existing_settings, settings_text, with_settings
from store.disk.opened import Descriptor
from store.disk.queue_ends import QueueEnds
from store.disk.queue_files import MAKE_ANEW
from store.disk.topics import Topics
from store.format.layout import (
    COMMIT_LOG_DIR,
    CONF_FILE,
    CONFIG_DIR,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)
from store.model.errors import (
    ArchiveOfAnother,
    CorruptSegment,
    InvalidArgument,
    NoArchive,
    QueuesPassedOver,
    StoreLocked,
    UnknownTopic,
)
from store.model.integers import seconds
from store.model.log_protocol import Queue
from store.objects.urls import local_path, without_secrets
from store.read.published import PublishedQueues

_LOCK_FILE = f"{CONFIG_DIR}/archive.lock"


@dataclass(frozen=True)
class ArchiveOrder:
    """The messages that one run copies to the archive, and those that it deletes there.

    queues: all queues of each topic.
    end_of: returns the offset up to which a queue is archived, at most its published end.
    may_begin: whether to begin an archive if the URL has none.
    reserved_hours: delete messages stored longer ago; None keeps all.
    forgetting: topics and their queues in the store. Archived messages that these queues do not continue are deleted
    first.
    """

    queues: Sequence[Queue]
    end_of: Callable[[Queue], int]
    may_begin: bool = True
    reserved_hours: float | None = None
    forgetting: Mapping[str, Sequence[Queue]] = field(default_factory=dict)


class StoreArchive:
    """The archive of one store.

    url: "" if the store is not archived. names: the topics to archive; if empty, all except system topics.
    """

    def __init__(
        self, root: Path, url: str, broker: str, names: Sequence[str] = (), options: Mapping[str, Any] | None = None
    ) -> None:
        self._root = root
        self.url = url
        self._broker = broker or root.name
        self._names = tuple(names)
        self._options = options or {}

    @staticmethod
    def remembered(root: Path, config: StoreConfig, options: Mapping[str, Any] | None = None) -> StoreArchive:
        """Return the archive that the settings file names. Another process may have changed this file."""
        own = existing_settings(root / CONF_FILE)
        broker, url, names = (own.get(name, getattr(config, name)) for name in REMEMBERED)
        return StoreArchive(root, url, broker, _listed(names), options)

    def must_be_there(self, topics: Topics) -> None:
        counts = topics.queue_counts()
        missing = [name for name in self._names if name not in counts]
        if missing:
            names = ", ".join(counts) or "none"
            raise UnknownTopic(f"{self._root}: topic {', '.join(missing)} does not exist. Existing topics: {names}")

    @property
    def name(self) -> str:
        """The URL and the broker's name, "" if the store is not archived."""
        return f"{self.url}/{self._broker}" if self.url else ""

    def changed(self, url: str | None, names: Sequence[str] | None) -> StoreArchive:
        """Return a copy with another URL or other topics. None keeps the value."""
        url, names = self.url if url is None else url, self._names if names is None else names
        return StoreArchive(self._root, url, self._broker, names, self._options)

    def place(self) -> ArchivePlace:
        """Return the place of the archive. Raises `ObjectsUnavailable`."""
        return ArchivePlace.of_broker(self.url, self._options, DEFAULT_CLUSTER, self._broker)

    def is_remembered(self) -> bool:
        return is_same_place(self.url, remembered(self._root).url)

    def queues(self, topics: Topics) -> list[Queue]:
        return queues_of(topics, self._names or [name for name in topics.queue_counts() if not _is_system(name)])

    def run(
        self,
        published: PublishedQueues,
        order: ArchiveOrder,
        progress: Progress,
        piece_bytes: int = PIECE_BYTES,
    ) -> Archived:
        """Execute an order, and write the archive into the store's settings.

        Raises as `Archiving.run`, and `NoArchive`, `StoreLocked`, `UnknownTopic`, `InvalidArgument`.
        """
        hours = order.reserved_hours
        kept_since = None if hours is None else _ago(3600 * seconds("reserved_hours", hours))
        if not self.url:
            raise InvalidArgument(f"{self._root}: the store has no archive yet. Name the URL to archive to")
        _must_be_outside_stores(self.url)

        def remembering(done: int, total: int) -> None:
            if done:  # from now on, a concurrent `clean` keeps messages that are not archived
                self._remember()
            progress(done, total)

        with alone(self._root):
            place = self.place()
            if (self.is_remembered() or not order.may_begin) and place.load() is None:
                raise NoArchive(
                    f"{place.url}: the archive of {self._root} is missing here. Mount its file system, or restore "
                    f"{place.metadata} from a copy. To begin a new archive without the archived messages, delete the "
                    f"line 'archive' in {self._root / CONF_FILE}, and name the URL"
                )
            forgotten = self._forget(place, StoreComparison(published), order) if order.forgetting else 0
            archiving, passed = Archiving(published, place, self._broker, piece_bytes), None
            try:
                archived = archiving.run(order.queues, order.end_of, remembering, is_remembered=self.is_remembered())
            except QueuesPassedOver as error:
                passed = error
            if archiving.is_begun:  # false if there were no queues
                self._remember()
            deleted = 0 if kept_since is None else expire(place, kept_since)
            if passed is not None:
                raise passed
            return archived._replace(deleted=deleted, forgotten=forgotten)

    def _forget(self, place: ArchivePlace, comparison: StoreComparison, order: ArchiveOrder) -> int:
        catalog = place.load()
        if catalog is None:
            raise NoArchive(f"{place.url}: there is no archive here, so nothing can be deleted from it")
        named = [queue for of_topic in order.forgetting.values() for queue in of_topic]
        archive_state = ArchiveState.of(comparison, place, catalog, list(dict.fromkeys([*order.queues, *named])))
        if not self.is_remembered() and not archive_state.is_of_store(comparison, place, catalog):
            raise ArchiveOfAnother(
                f"{place.url}: this may be the archive of another store, so nothing was deleted from it. Name the "
                "archive of this store"
            )
        return forget(place, catalog, archive_state, order.forgetting)

    def kept_from(
        self,
        confirm_offset: int,
        published: PublishedQueues,
        topics: Topics,
        *,
        is_brokers: bool = False,
    ) -> int | None:
        """Return the first log offset whose record may not be archived yet, None if the store is not archived.

        A recreated topic counts as not archived. Raises `ObjectsUnavailable`, and `CorruptSegment` if a queue is
        damaged.

        confirm_offset: the published end, read before this call. is_brokers: a broker writes the store, so queues may
        lag behind the log.
        """
        if not self.url:
            return None
        place, queues, offsets, maxima = self.place(), self.queues(topics), [confirm_offset], dict[Queue, int]()
        catalog = place.load() or Catalog(self._broker)
        archive_state, log = ArchiveState.of(StoreComparison(published), place, catalog, queues), published.log
        # Read the ends before the queues, because queues grow.
        ends = QueueEnds(confirm_offset, {}) if is_brokers else QueueEnds.known(self._root, log, confirm_offset)
        for queue in queues:
            with suppress(UnknownTopic):  # deleted concurrently
                minimum, maximum = published.offsets(queue.topic, queue.queue_id)
                maxima[queue] = maximum
                first = max(minimum, archive_state.begins.get(queue, minimum))
                if first < maximum:
                    entries = published.of(queue.topic, queue.queue_id)
                    at, size, _ = entries.entries(first, first + 1)[0].item()
                    is_there = published.log.segments.exists(at) and is_message(
                        published.log, queue.topic, queue.queue_id, first, at, size
                    )
                    # Retention would trust the damaged entry's log offset, and delete records that are not archived.
                    if not is_there and at >= log.min_offset():
                        raise CorruptSegment(f"{entries}: entry {first} is damaged. {MAKE_ANEW}")
                    offsets.append(at)
        ends.forget(topics.deletions())
        for queue, maximum in maxima.items():
            end = ends.of.get((queue.topic, queue.queue_id), 0)
            if maximum < end:  # missing entries are not archived, and cannot be rebuilt once the log is deleted
                raise CorruptSegment(
                    f"{published.of(queue.topic, queue.queue_id)}: entry {end - 1} existed before and is missing. "
                    f"{MAKE_ANEW}"
                )
        return min(offsets)

    def _remember(self) -> None:
        """Write the archive into the store's settings, without the secrets of its URL.

        Settings that name another URL are left unchanged.
        """
        path = self._root / CONF_FILE
        own = existing_settings(path)
        if own.get("archive") and not self.is_remembered():
            return
        values = {"brokerName": self._broker, "archive": _plain(self.url), "archiveTopics": ",".join(self._names)}
        if any(own.get(name, "") != value for name, value in values.items()):
            write_file(path, with_settings(settings_text(path), values))


def _must_be_outside_stores(url: str) -> None:
    """Raise `InvalidArgument` if a URL is inside a store: the archive would be deleted with it."""
    path = local_path(url)
    for folder in () if path is None else (Path(path), *Path(path).parents):
        if (folder / COMMIT_LOG_DIR).is_dir():
            raise InvalidArgument(f"{url}: {folder} has a store. Archive to a directory outside of it")


def _plain(url: str) -> str:
    path = local_path(url) if url else ""
    return re.sub("(?<=[^:/])/+$", "", without_secrets(url)) if path is None else path


def queues_of(topics: Topics, names: Iterable[str]) -> list[Queue]:
    counts = topics.queue_counts()
    return [Queue(name, queue_id) for name in dict.fromkeys(names) for queue_id in range(counts.get(name, 0))]


class ArchiveSettings(NamedTuple):
    """The archive that a store's settings name.

    url: "" if the store is not archived. topics: if empty, all except system topics.
    """

    url: str = ""
    topics: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return without_secrets(self.url)


def remembered(root: Path) -> ArchiveSettings:
    """Return the archive that a store's settings name. Raises `ConfigError`.

    The URL is empty if there is no store, or no archive in its settings.
    """
    own = existing_settings(root / CONF_FILE)
    return ArchiveSettings(str(own.get("archive", "")), _listed(str(own.get("archiveTopics", ""))))


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name for each in names.split(",") if (name := each.strip()))


def is_same_place(url: str, other: str) -> bool:
    """Return whether two URLs are the same apart from their secrets. False for empty URLs."""
    return url != "" and _plain(url) == _plain(other)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the lock of the store's archive, so that one process at a time writes it. Raises `StoreLocked`."""
    make_directory(root / CONFIG_DIR)
    with closing(Descriptor(root / _LOCK_FILE, open_file)) as file:
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(f"{root}: another process is archiving this store. Wait for it, or stop it") from error
        yield


def ends(
    published: PublishedQueues, older_than: float, offset_by_time: Callable[[str, int, int], int]
) -> Callable[[Queue], int]:
    """Return a function from a queue to the offset up to which to archive it.

    This is the offset of the first message stored within the last `older_than` seconds.
    """
    if older_than <= 0:
        return lambda queue: published.max_offset(queue.topic, queue.queue_id)
    until = _ago(older_than)
    return lambda queue: offset_by_time(queue.topic, queue.queue_id, until)


def _ago(seconds_ago: float) -> int:
    return int((time.time() - seconds_ago) * 1000)


def _is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)
