"""The archive that a store has: by its own settings, which remember it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from store.any_log import Queue
from store.archive.archiving import PIECE_BYTES, Archived, Archiving, Progress, is_archived, stored_at
from store.archive.catalog import Catalog
from store.archive.expiry import expire
from store.archive.layout import DEFAULT_CLUSTER
from store.archive.objects import local_path, without_secrets
from store.archive.place import Place
from store.errors import InvalidArgument, StoreLocked, UnknownTopic
from store.files.atomic import make_directory, open_file, read_file, write_file
from store.files.config import MAX_BYTES, REMEMBERED, StoreConfig, read_settings, with_settings
from store.files.topics import Topics
from store.format.layout import CONF_FILE, CONFIG_DIR, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from store.integers import seconds
from store.log.commit_log import CommitLog
from store.read.published import PublishedQueues

_LOCK_FILE = f"{CONFIG_DIR}/archive.lock"


class StoreArchive:
    """Where one store archives which of its topics.

    url: "" for a store that archives nowhere. names: topics; all but the system's where it is empty.
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
        """By the store's own settings as they are now; other processes may have archived since it was opened."""
        own = _own_settings(root)
        broker, url, names = (own.get(name, getattr(config, name)) for name in REMEMBERED)
        return StoreArchive(root, url, broker, [name for name in names.split(",") if name], options)

    def must_be_there(self, topics: Topics) -> None:
        """Raises `UnknownTopic` for one that is named, and is not there."""
        counts = topics.queue_counts()
        missing = [name for name in self._names if name not in counts]
        if missing:
            known = ", ".join(counts) or "none"
            raise UnknownTopic(f"{self._root}: no topic {', '.join(missing)} to archive (there are: {known})")

    def changed(self, url: str | None, names: Sequence[str] | None) -> StoreArchive:
        """With another URL, or other topics, where they are given."""
        url, names = self.url if url is None else url, self._names if names is None else names
        return StoreArchive(self._root, url, self._broker, names, self._options)

    def place(self) -> Place:
        """Raises `ArchiveUnavailable`."""
        return Place.of_broker(self.url, self._options, DEFAULT_CLUSTER, self._broker)

    def queues(self, topics: Topics) -> list[Queue]:
        """Those that are to be archived, as they stand now; nothing of a topic that was deleted since it was named."""
        counts = topics.queue_counts()
        names = self._names or [name for name in counts if not _is_system(name)]
        return [Queue(name, queue_id) for name in names for queue_id in range(counts.get(name, 0))]

    def run(
        self,
        log: CommitLog,
        published: PublishedQueues,
        ends: Mapping[Queue, int],
        progress: Progress,
        piece_bytes: int = PIECE_BYTES,
        reserved_hours: float | None = None,
    ) -> Archived:
        """Archive each queue up to its end, and remember where; then delete from the archive what was stored more than
        `reserved_hours` ago. Raises as `Archiving.run`, and `StoreLocked`.
        """
        kept_since = None if reserved_hours is None else _ago(3600 * seconds("reserved_hours", reserved_hours))
        if not self.url:
            raise InvalidArgument(f"{self._root}: name the URL to archive to; its settings remember none")
        with alone(self._root):
            place = self.place()
            archived = Archiving(log, published, place, self._broker, piece_bytes).run(ends, progress)
            self._remember()
            return archived if kept_since is None else archived._replace(deleted=expire(place, kept_since))

    def kept_from(self, confirm_offset: int, log: CommitLog, published: PublishedQueues, topics: Topics) -> int | None:
        """Log offset from which on records may be to be archived still; None for a store that archives nowhere.

        Of a topic that was deleted and created again nothing is archived yet, whatever is archived of the first one.
        confirm_offset: as it was before this: what was published since is not looked at. Raises `ArchiveUnavailable`
        where nobody can tell.
        """
        if not self.url:
            return None
        place, offsets = self.place(), [confirm_offset]
        catalog = place.load() or Catalog(self._broker)
        for queue in self.queues(topics):
            minimum, maximum = published.offsets(*queue)
            archived, first = catalog.queue(queue), minimum
            if archived is not None and archived.entries and minimum < archived.max_offset <= maximum:
                last = archived.max_offset - 1
                # The metadata says when it was stored, as a rule; only where that is another time both are read.
                is_ours = archived.entries[-1].end == stored_at(log, published, queue, last)
                if is_ours or is_archived(log, published, place, catalog, queue, last):
                    first = archived.max_offset
            if first < maximum:
                offsets.append(int(published.of(*queue).entries(first, first + 1)[0]["physical_offset"]))
        return min(offsets)

    def _remember(self) -> None:
        """In the store's own settings, which keep whatever else they say; not what is secret in a URL."""
        own = _own_settings(self._root)
        url = self.url if local_path(self.url) is None else str(local_path(self.url))
        values = {"brokerName": self._broker, "archive": without_secrets(url), "archiveTopics": ",".join(self._names)}
        if any(own.get(name, "") != value for name, value in values.items()) and not own.get("archive"):
            _write_settings(self._root, values)


def remembered_url(root: Path) -> str:
    """Where the store in a directory archived; "" where it did not, or is no store. Raises `ConfigError`."""
    return str(_own_settings(root).get("archive", ""))


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Nobody else archives this store meanwhile. Raises `StoreLocked`."""
    make_directory(root / CONFIG_DIR)
    fd = open_file(root / _LOCK_FILE)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(f"{root}: another process archives this store; let it, or stop it") from error
        yield
    finally:
        os.close(fd)


def ends(
    published: PublishedQueues,
    queues: Sequence[Queue],
    older_than: float,
    offset_by_time: Callable[[str, int, int], int],
) -> dict[Queue, int]:
    """Up to where each queue has messages that were stored more than `older_than` seconds ago."""
    if older_than <= 0:
        return {queue: published.max_offset(*queue) for queue in queues}
    until = _ago(older_than)
    return {queue: offset_by_time(*queue, until) for queue in queues}


def _ago(seconds_ago: float) -> int:
    """ms since 1970."""
    return int((time.time() - seconds_ago) * 1000)


def _is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def _own_settings(root: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return read_settings(root / CONF_FILE)
    return {}


def _write_settings(root: Path, values: Mapping[str, str]) -> None:
    """These in the place of what the file says of them; the rest stays as it is."""
    path = root / CONF_FILE
    text = b""
    with suppress(FileNotFoundError):
        text = read_file(path, MAX_BYTES)
    write_file(path, with_settings(text, values))
