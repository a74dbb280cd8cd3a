"""`SentSequences`: the last sequences of a named producer, so that no message is appended twice.

Each append of a named producer includes a message to `PRODUCERS_TOPIC`, whose key is the producer's name and whose body
has the highest sequence of each topic. Because retention deletes these messages, a file has the sequences, too. It
covers the messages before offset `since` of PRODUCERS_TOPIC:

    <store>/producers/<name>/reached.json    {"sequences": {"orders": 1041}, "since": 87, "open": true}

The log is flushed before the file is written, so that a crash of the machine cannot remove a message whose sequence is
in the file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path

from store.api.message_store import MessageStore
from store.disk.atomic import make_directory
from store.disk.client_progress import PRODUCERS_FOLDER, ProducerProgress
from store.disk.consumer_offsets import check_group_name
from store.disk.opened import Descriptor
from store.disk.topic_table import TopicTable
from store.disk.topics import Topics
from store.format.arrays import constant, pc
from store.format.message import Message
from store.format.strict_json import decode, encode
from store.format.topic_names import PRODUCERS_TOPIC
from store.model.errors import InvalidGroup, OffsetLost, StoreLocked

_PERSIST_SECONDS = 60.0

Sequences = Mapping[str, int]  # by topic


class SentSequences:
    """The sequences of an open producer, whose folder it keeps locked. Not thread-safe.

    found: the last sequence of each topic in the log on opening.
    """

    def __init__(self, store: MessageStore, name: str) -> None:
        """Lock and read the producer's folder. Raises `InvalidGroup`, `StoreLocked`, `CorruptStore`, `OffsetLost`."""
        try:
            check_group_name(name)
        except InvalidGroup as error:
            raise InvalidGroup(f"a producer's name must be valid as a group's name, too: {error}") from None
        self.path = store.path
        self._store = store
        self._name = name
        folder = Path(store.path, PRODUCERS_FOLDER, name)
        make_directory(folder.parent)
        make_directory(folder)
        self._folder = folder
        self._lock = Descriptor(folder, lambda path: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            fcntl.flock(self._lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise StoreLocked(
                f"{folder}: another producer with this name is open. Close it, or choose another name"
            ) from error
        try:
            if PRODUCERS_TOPIC not in store.topics():
                store.create_topic(PRODUCERS_TOPIC, 1)
            self._topics = Topics(Path(store.path))
            self._opened_at = store.confirm_offset - 1  # at or after all messages found below
            self.found: Sequences = self._find()
            self._reached = {topic: (last, self._opened_at) for topic, last in self.found.items()}
            self._persist(is_open=True)
        except BaseException:
            self._lock.close()
            raise

    def record(self, sequences: Sequences) -> Message:
        """Return the message that records `sequences`. Add it to the append of their messages."""
        # queue 0 is the only queue that `_find` reads
        return Message(PRODUCERS_TOPIC, encode(dict(sequences)), keys=self._name, queue_id=0)

    def has(self, topic: str, sequence: int) -> bool:
        """Return whether the log had this sequence or a higher one on opening, and the topic still exists."""
        return sequence <= self.found.get(topic, sequence - 1) and self._exists(topic, self._opened_at)

    def reach(self, sequences: Sequences, at: int) -> None:
        """Record that these sequences are appended. at: commit log offset (bytes) of the append."""
        self._reached.update({topic: (last, at) for topic, last in sequences.items()})

    def _existing(self) -> dict[str, int]:
        return {topic: last for topic, (last, at) in self._reached.items() if self._exists(topic, at)}

    def _exists(self, topic: str, at: int) -> bool:
        return bool(self._topics.queue_count(topic)) and self._topics.deletions().get(topic, 0) <= at

    def persist_if_due(self) -> None:
        if time.monotonic() - self._persisted_at > _PERSIST_SECONDS:
            self._persist(is_open=True)

    def close(self) -> None:
        try:
            self._persist(is_open=False)
        finally:
            self._lock.close()

    def _find(self) -> dict[str, int]:
        sequences, since, was_open = ProducerProgress.read(self._folder)
        first, end = self._store.offsets(PRODUCERS_TOPIC, 0)
        if was_open and first > since:
            raise OffsetLost(
                f"{self._folder}: producer {self._name!r} was not closed, or its file reached.json is newer than the "
                "log. Its last messages may have been deleted, so its last sequence in each topic is unknown. Find "
                "the last sequence that was sent to each topic. Write these into reached.json, such as "
                '"sequences": {"orders": 1041}, and set "open" to false there. Then open the producer again'
            )
        is_there, columns = TopicTable(self._store.path).is_there, ("keys", "body", "physicalOffset")
        for batch in self._store.scan(PRODUCERS_TOPIC, 0, min(max(first, since), end), end, columns):
            own = batch.filter(pc.equal(batch["keys"], constant(self._name)))
            for body, at in zip(own["body"].to_pylist(), own["physicalOffset"].to_pylist(), strict=True):
                sequences |= {topic: last for topic, last in decode(body).items() if is_there(topic, at)}
        return sequences

    def _persist(self, *, is_open: bool) -> None:
        since = self._store.offsets(PRODUCERS_TOPIC, 0)[1]
        self._store.flush()
        written: dict[str, int] | None = None
        # repeat if a topic was deleted concurrently, because the file may list it again
        while written != (written := self._existing()):
            ProducerProgress(written, since, is_open).write(self._folder)
        self._persisted_at = time.monotonic()
