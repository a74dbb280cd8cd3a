"""`ServedOffsets`: the committed offsets of clients' groups, written to the store's files every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from store.api.group_protocol import MessageModel
from store.api.message_store import MessageStore
from store.append.locks import among_groups
from store.broker.members import Roster
from store.disk.consumer_offsets import ConsumerOffsets, check_may_commit
from store.disk.topics import Topics
from store.model.errors import OffsetOutOfRange, StoreBusy, StoreError
from store.model.log_protocol import Queue

PERSIST_SECONDS = 5.0  # flushConsumerOffsetInterval
_MAX_MADE_UP = 4096  # most groups with offsets but without settings, because a client can make up names
_MAX_NEW = 1 << 18  # most unwritten commits; each takes 300 bytes
_logger = logging.getLogger("store.remoting")


class ServedOffsets:
    """The offsets of clients' groups, as RocketMQ's ConsumerOffsetManager: a later commit may lower an offset.
    Thread-safe.

    Only commits that are not written yet are kept in memory. When written, they replace concurrent commits of other
    processes.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._files = ConsumerOffsets(store.path)
        self._topics = Topics(Path(store.path))
        self._lock = threading.Lock()
        self._persisting = threading.Lock()  # so that the last commit is written last
        self._new: dict[tuple[str, Queue], int] = {}
        self._writer = ThreadPoolExecutor(1, "mq-offsets")
        self._next: Future[None] | None = None

    def committed(self, group: str, queue: Queue) -> int | None:
        """Return the offset to read next, None if the group has none."""
        with self._lock:
            new = self._new.get((group, queue))
        written = self._store.consumer_offset(group, queue.topic, queue.queue_id)
        return written if new is None else new

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Commit an offset in memory. Raises `InvalidGroup`, `OffsetOutOfRange`, `StoreBusy`."""
        check_may_commit(group)
        if offset < 0:
            raise OffsetOutOfRange(f"group {group}, {queue}: {offset} is no offset; they begin at 0")
        with self._lock:
            if len(self._new) >= _MAX_NEW and (group, queue) not in self._new:
                raise StoreBusy(f"{_MAX_NEW:,} commits are not written yet; try again later")
            self._new[group, queue] = offset

    @contextmanager
    def replacing(self, group: str, queues: Iterable[Queue]) -> Iterator[None]:
        """Write no commits while the caller sets offsets in the files. Then drop earlier commits of the queues."""
        with self._persisting:
            yield
            with self._lock:
                for queue in queues:
                    self._new.pop((group, queue), None)

    def persist_soon(self) -> Future[None]:
        """Return a future that is done when all current commits are written, or when writing failed and will be
        retried.
        """
        with self._lock:
            if self._next is None:
                self._next = self._writer.submit(self._persist_next)
            return self._next

    def _persist_next(self) -> None:
        with self._lock:
            self._next = None
        self.persist()

    def stop(self) -> None:
        self._writer.shutdown()
        self.persist()

    def persist(self) -> None:
        """Write the commits. A failure is logged, and the next call retries."""
        with self._persisting:
            with self._lock:
                new = dict(self._new)
            if not new:
                return
            try:
                self._store.flush()  # store the messages that clients sent back before offsets pass them
                with among_groups(self._store.path, self._store.config.lockTimeoutMillis / 1000):
                    self._write(new)
            except (StoreError, OSError) as error:
                _logger.warning(
                    "the offsets of groups in %d queues cannot be written, and are tried again: %s", len(new), error
                )
                return
            with self._lock:
                for key, offset in new.items():
                    if self._new.get(key) == offset:
                        del self._new[key]

    def _write(self, new: Mapping[tuple[str, Queue], int]) -> None:
        """Skip missing queues, and offsets that would set back consumers of this host."""
        written = self._files.of_groups(new)
        news = {
            (group, queue): offset
            for (group, queue), offset in new.items()
            if offset != (now := written.get((group, queue)))
            and queue.queue_id < self._topics.queue_count(queue.topic)
            and not (offset < (now or 0) and self._has_members(group))
        }
        dropped = self._over_limit({group for group, _ in news} - {group for group, _ in written})
        if dropped:
            _logger.warning(
                "offsets of %d groups are not kept, because already %d groups have offsets and no settings. To keep "
                "the offsets of a group, create the group",
                *(len(dropped), _MAX_MADE_UP),
            )
            news = {key: offset for key, offset in news.items() if key[0] not in dropped}
        if news:
            self._files.set_of_groups(news)

    def _over_limit(self, new: set[str]) -> set[str]:
        if not new:
            return new
        settings, names = self._files.settings.all().keys(), set(self._files.names())
        made_up = new - names
        return set(sorted(made_up)[max(0, _MAX_MADE_UP - len(names - settings)) :])

    def _has_members(self, group: str) -> bool:
        return any(each.model is MessageModel.CLUSTERING for each in Roster(self._store.path, group).present())
