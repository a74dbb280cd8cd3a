"""How far the groups of clients have read: in memory, and written to the store's files every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from store.api.group_protocol import MessageModel
from store.api.message_store import MessageStore
from store.broker.members import Roster
from store.files.consumer_offsets import ConsumerOffsets, check_may_commit
from store.files.topics import Topics
from store.model.errors import OffsetOutOfRange, StoreError
from store.model.log_protocol import Queue
from store.publish.locks import among_groups

PERSIST_SECONDS = 5.0  # flushConsumerOffsetInterval
_logger = logging.getLogger("store.remoting")


class ServedOffsets:
    """RocketMQ's ConsumerOffsetManager: the last commit counts, also a smaller offset. Threads may share it.

    Only commits that are not in the files yet are kept. They replace what another process commits meanwhile.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._files = ConsumerOffsets(store.path)
        self._topics = Topics(Path(store.path))
        self._lock = threading.Lock()
        self._persisting = threading.Lock()  # one thread at a time writes, so that the last commit is written last
        self._new: dict[tuple[str, Queue], int] = {}

    def committed(self, group: str, queue: Queue) -> int | None:
        """Return the offset to read next, None if the group has none."""
        with self._lock:
            new = self._new.get((group, queue))
        written = self._store.consumer_offset(group, queue.topic, queue.queue_id)
        return written if new is None else new

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Set what a group has to read next. Raises `InvalidGroup`, `OffsetOutOfRange`."""
        check_may_commit(group)
        if offset < 0:
            raise OffsetOutOfRange(f"group {group}, {queue}: {offset} is no offset; they begin at 0")
        with self._lock:
            self._new[group, queue] = offset

    @contextmanager
    def replacing(self, group: str, queues: Iterable[Queue]) -> Iterator[None]:
        """Set the offsets of these queues in the files inside: commits from before do not count afterwards."""
        with self._persisting:
            yield
            with self._lock:
                for queue in queues:
                    self._new.pop((group, queue), None)

    def persist(self) -> None:
        """Write all new commits; those that cannot be written are tried again the next time."""
        with self._persisting:
            with self._lock:
                new = dict(self._new)
            if not new:
                return
            try:
                self._store.flush()  # first, what clients sent back and take for done
                with among_groups(self._store.path, self._store.config.lockTimeoutMillis / 1000):
                    self._write(new)
            except (StoreError, OSError) as error:
                _logger.warning("how far groups have read is noted later, in %d queues: %s", len(new), error)
                return
            with self._lock:
                for key, offset in new.items():
                    if self._new.get(key) == offset:
                        del self._new[key]

    def _write(self, new: Mapping[tuple[str, Queue], int]) -> None:
        """Skip queues that do not exist, and clients that would set members beside the server back."""
        written = self._files.of_groups(new)
        news = {
            (group, queue): offset
            for (group, queue), offset in new.items()
            if offset != (now := written.get((group, queue)))
            and queue.queue_id < self._topics.queue_count(queue.topic)
            and not (offset < (now or 0) and self._has_members(group))
        }
        if news:
            self._files.set_of_groups(news)

    def _has_members(self, group: str) -> bool:
        """Whether consumers beside the server share its queues."""
        return any(each.model is MessageModel.CLUSTERING for each in Roster(self._store.path, group).present())
