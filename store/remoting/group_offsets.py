"""How far the groups of clients have read: in memory, and brought to the store's files now and then."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from store import MessageModel, MessageStore, OffsetOutOfRange, StoreError, UnknownTopic
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
            now = self._store.consumer_offset(group, *queue), self._topics.born(queue.topic)
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
        now = self._store.consumer_offset(group, *queue)  # what somebody else wrote was before this
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
            self._persist_all()

    def _persist_all(self) -> None:
        with self._lock:
            news = [
                (group, queue)
                for group, queues in self._known.items()
                for queue, known in queues.items()
                if known.offset != known.persisted
            ]
        for group, topic in sorted({(group, queue.topic) for group, queue in news}):
            queues = [queue for name, queue in news if (name, queue.topic) == (group, topic)]
            try:
                self._persist(group, topic, queues)
            except UnknownTopic:  # it was deleted
                for queue in queues:
                    self.drop(group, queue)
            except (StoreError, OSError) as error:
                _logger.warning("offsets of group %s in %s: %s", group, topic, error)

    def _persist(self, group: str, topic: str, queues: list[Queue]) -> None:
        with self._lock:
            of_group = self._known[group]
            said = {queue: (known, known.offset) for queue in queues if (known := of_group.get(queue)) is not None}
        if not said:  # forgotten meanwhile
            return
        self._store.flush()  # first, what clients sent back and take for done

        def commit() -> None:
            """In turn: who resets the group meanwhile is told that it is done."""
            offsets: dict[int, int] = {}
            beside = any(each.model is MessageModel.CLUSTERING for each in Roster(self._store.path, group).present())
            for queue, (known, offset) in said.items():
                now = self._store.consumer_offset(group, *queue), self._topics.born(topic)
                if of_group.get(queue) is not known:  # what was said before counts no more
                    continue
                is_theirs = beside and offset < (now[0] or 0)  # a client is no member then: it does not set them back
                if now == (known.persisted, known.born) and not is_theirs:
                    self._topics.check_queue(*queue)
                    offsets[queue.queue_id] = offset
                else:  # somebody else's word, or of a topic that was deleted
                    self.drop(group, queue)
            if not offsets:
                return
            with self._writing:
                self._files.commit(group, topic, offsets)
                for queue_id, offset in offsets.items():
                    said[Queue(topic, queue_id)][0].persisted = offset

        among_groups(self._store.path, self._store.config.lockTimeoutMillis / 1000, commit)

    def drop(self, group: str, queue: Queue) -> None:
        """What the files say of it counts from now on."""
        with self._lock:
            self._known.get(group, {}).pop(queue, None)
