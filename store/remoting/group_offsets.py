"""How far the groups of clients have read: in memory, and brought to the store's files now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from store import MessageModel, MessageStore, OffsetOutOfRange, StoreError
from store.any_log import Queue
from store.broker.members import Roster
from store.files.consumer_offsets import ConsumerOffsets, check_may_commit
from store.files.topics import Topics
from store.publish.locks import among_groups

PERSIST_SECONDS = 5.0  # flushConsumerOffsetInterval
_logger = logging.getLogger("store.remoting")


@dataclass(slots=True)
class _Known:
    """offset: as a client said last. persisted: as the files say since this last looked, None without. born: of its
    topic, see `Topics.born`: in another of that name all this means nothing. state: of the files, before that look."""

    offset: int
    persisted: int | None
    born: int | None
    state: tuple[int, int] | None


class ServedOffsets:
    """RocketMQ's ConsumerOffsetManager: what a client says last counts, also a smaller offset. Any thread may ask.

    What somebody else writes to the files, such as `pyspark-mq groups reset`, counts more than what was said here
    before.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._files = ConsumerOffsets(store.path)
        self._topics = Topics(Path(store.path))
        self._lock = threading.Lock()
        self._persisting = threading.Lock()  # or what was said before could be written last
        self._writing = threading.Lock()  # while the files may say what is not noted as `persisted` yet
        self._known: dict[str, dict[Queue, _Known]] = {}

    def committed(self, group: str, queue: Queue) -> int | None:
        """The offset to read next, None where the group has none. Raises `UnknownTopic`."""
        with self._writing:
            now = self._store.consumer_offset(group, queue.topic, queue.queue_id), self._topics.born(queue.topic)
            with self._lock:
                known = self._known.get(group, {}).get(queue)
                return now[0] if known is None or (known.persisted, known.born) != now else known.offset

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Set what a group has to read next.

        Raises `InvalidGroup`, `OffsetOutOfRange`: what the files cannot have would keep the group's others from them.
        """
        check_may_commit(group)
        if offset < 0:
            raise OffsetOutOfRange(f"group {group}, {queue}: {offset} is no offset; they begin at 0")
        born, state = self._topics.born(queue.topic), self._files.state()
        with self._lock:
            known = self._known.setdefault(group, {}).get(queue)
            if known is not None and (known.born, known.state) == (born, state):
                known.offset = offset
                return
            seen = None if known is None else known.persisted
        # Anything that another process wrote was before this.
        now = self._store.consumer_offset(group, queue.topic, queue.queue_id)
        with self._lock:
            known = self._known[group].get(queue)
            if known is not None and known.born == born and (now == seen or known.persisted != seen):
                known.offset, known.state = offset, state
            else:
                self._known[group][queue] = _Known(offset, now, born, state)

    def forget(self, topic: str) -> None:
        """It was deleted: in one of the same name these offsets mean other messages."""
        with self._lock:
            for known in self._known.values():
                for queue in [queue for queue in known if queue.topic == topic]:
                    del known[queue]

    def persist(self) -> None:
        """Bring everything new to the files; what cannot be is tried again the next time."""
        with self._persisting:
            with self._lock:
                said = {
                    (group, queue): (known, known.offset)
                    for group, queues in self._known.items()
                    for queue, known in queues.items()
                    if known.offset != known.persisted
                }
            if not said:
                return
            try:
                self._store.flush()  # first, what clients sent back and take for done
                timeout = self._store.config.lockTimeoutMillis / 1000
                with among_groups(self._store.path, timeout):
                    self._persist(said)
            except (StoreError, OSError) as error:
                _logger.warning("how far groups have read is noted later, in %d queues: %s", len(said), error)

    def _persist(self, said: Mapping[tuple[str, Queue], tuple[_Known, int]]) -> None:
        """In turn: who resets a group meanwhile is told that it is done."""
        before, there = self._files.state(), self._files.of_groups(said)
        news: dict[tuple[str, Queue], int] = {}
        for (group, queue), (known, offset) in said.items():
            if self._known[group].get(queue) is not known:  # what was said before counts no more
                continue
            now = there.get((group, queue))
            if (
                (now, self._topics.born(queue.topic)) == (known.persisted, known.born)
                and queue.queue_id < self._topics.queue_count(queue.topic)
                and not (offset < (now or 0) and self._has_members(group))  # a client is none then, and sets none back
            ):
                news[group, queue] = offset
            else:  # somebody else's word, or of a topic that was deleted
                self.drop(group, queue)
        if not news:
            return
        with self._writing:
            self._files.set_of_groups(news)
            for each, offset in news.items():
                said[each][0].persisted = offset
        self._seen(before)

    def _has_members(self, group: str) -> bool:
        """Whether consumers beside the server share its queues."""
        return any(each.model is MessageModel.CLUSTERING for each in Roster(self._store.path, group).present())

    def _seen(self, before: tuple[int, int] | None) -> None:
        """What the files said before this wrote, they say now of all else, for whoever writes does so in turn."""
        now = self._files.state()
        with self._lock:
            for queues in self._known.values():
                for known in queues.values():
                    if known.state == before:
                        known.state = now

    def drop(self, group: str, queue: Queue) -> None:
        """What the files say of it counts from now on."""
        with self._lock:
            self._known.get(group, {}).pop(queue, None)
