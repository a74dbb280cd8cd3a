"""Look up, create and delete the topics of a store (RocketMQ's TopicConfigManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from store.disk.admin_files import next_version, read_json, table, write_json
from store.disk.atomic import status_of
from store.disk.opened import PinnedPath
from store.disk.topic_table import CONFIGS, NEVER_DELETED, Tombstone, TopicTable, tombstones_in, write_tombstones
from store.format.layout import MAX_QUEUES, TOPICS_FILE
from store.format.topic_names import check_topic_name, not_a_name
from store.model.errors import InvalidTopic, UnknownQueue, UnknownTopic, UnsupportedStore
from store.model.integers import integer

_READ_WRITE = 6  # perm bits: 4 read, 2 write


class Topics:
    """The topic table of one store. Every call checks whether another process changed the file.

    Call the methods that write under the store lock.
    """

    def __init__(self, root: Path, changed: Callable[[], None] = lambda: None) -> None:
        """changed: called if the file changed since the last check."""
        self._root = root
        self._changed = changed
        self._place = PinnedPath(root)
        self._path = root / TOPICS_FILE
        self._seen: tuple[tuple[int, int] | None, TopicTable | None] = None, None  # (inode, mtime) and content

    def table(self) -> TopicTable:
        return TopicTable(self._root)

    def queue_count(self, topic: str) -> int:
        """Return a topic's number of queues, 0 if it is unknown. Reads the files only if they changed."""
        return self._seen_table(topic).counts.get(topic, 0)

    def _seen_table(self, topic: str | None = None) -> TopicTable:
        before, found = self._seen
        status = status_of(self._path)
        state = (status.st_ino, status.st_mtime_ns) if status is not None else None
        if found is None or state is None or state != before or (topic is not None and topic not in found.counts):
            if state != before:
                self._changed()
            found = TopicTable(self._root)
            self._seen = state, found
        # `_seen` may be older: a slower thread may have replaced it
        return found

    def deletions(self) -> dict[str, int]:
        """Return the log offset of each topic's last deletion. Earlier records are deleted even if the topic was
        recreated.
        """
        return {topic: tombstone.at for topic, tombstone in self._seen_table().tombstones.items()}

    def begin(self, topic: str, queue_id: int) -> int:
        """Return a queue's first queue offset: 0, or its end at the last deletion of its topic."""
        tombstone = self._seen_table().tombstones.get(topic)
        return 0 if tombstone is None or queue_id >= len(tombstone.ends) else tombstone.ends[queue_id]

    def must_not_be_deleted(self, topic: str, queue_id: int = 0) -> None:
        seen = self._seen_table(topic)
        if seen.counts.get(topic, 0) <= queue_id and topic in seen.tombstones:
            what = f"queue {queue_id} of topic {topic!r}" if seen.counts.get(topic) else f"topic {topic!r}"
            raise UnknownTopic(
                f"{self._root}: {what} was deleted. Nothing was appended. Create the topic again, or use another one"
            )

    def known(self, topic: str) -> int:
        """Return a topic's number of queues. Raises `UnknownTopic`, `InvalidTopic`, `UnsupportedStore`,
        `StoreReplaced`.
        """
        if not isinstance(topic, str):
            raise not_a_name(topic)
        queues = self.queue_count(topic)
        if not queues:
            self._place.check()
            if topic in self.table().batches:
                raise UnsupportedStore(
                    f"{self._root}: topic {topic!r} has batch queues (queue.type=BatchCQ), which this package cannot "
                    "read. Read it with RocketMQ's own client"
                )
            names = ", ".join(self.queue_counts()) or "none"
            raise UnknownTopic(
                f"{self._root}: topic {topic!r} does not exist. Existing topics: {names}. Correct the name, or create "
                "it: pyspark-mq topic create, or create_topic"
            )
        return queues

    def check_queue(self, topic: str, queue_id: int) -> int:
        """Return `queue_id`. Raises `UnknownTopic`, `UnknownQueue`."""
        queue_id, queues = integer("queue_id", queue_id), self.known(topic)
        if not 0 <= queue_id < queues:
            raise UnknownQueue(f"{self._root}: topic {topic!r} has queues 0 to {queues - 1}, not {queue_id}")
        return queue_id

    def queue_counts(self) -> dict[str, int]:
        return self.table().counts

    def create(self, topic: str, queues: int) -> int:
        """Create a topic, or add queues to it. Return its number of queues.

        Raises `InvalidTopic` for a bad name or for fewer queues than it has, which would hide messages;
        `InvalidArgument` for more than 65,536.
        """
        check_topic_name(topic)
        queues = integer("queues", queues, maximum=MAX_QUEUES)
        present = self.queue_counts().get(topic, 0)
        if queues < max(present, 1):
            raise InvalidTopic(
                f"topic {topic!r} has {present} queues, so {queues} is too few. Queues can only be added: give "
                f"{max(present, 1)} or more"
            )
        content = read_json(self._path)
        config = table(self._path, content, CONFIGS).setdefault(topic, _new_topic(topic))
        if config.get("readQueueNums") != queues or config.get("writeQueueNums") != queues:
            config["readQueueNums"] = config["writeQueueNums"] = queues
            next_version(self._path, content)
            write_json(self._path, content)
        return queues

    def enter(self, topic: str) -> None:
        """Add a deleted topic to the table if a broker recreated it without an entry."""
        now = self.table()
        if topic in now.tombstones and topic not in now.listed and topic not in now.batches:
            self.create(topic, self.queue_count(topic))

    def delete(self, topic: str, tombstone: Tombstone) -> None:
        content = read_json(self._path)
        table(self._path, content, CONFIGS).pop(topic, None)
        tombstones = tombstones_in(self._path, content)
        before = tombstones.get(topic, NEVER_DELETED)
        write_tombstones(self._path, content, tombstones | {topic: before.joined(tombstone)})

    def restarted(self, queues: Iterable[tuple[str, int]]) -> None:
        """Record that a broker restarted these queues (topic, queue id) at 0 after their topics' deletion."""
        content = read_json(self._path)
        tombstones = tombstones_in(self._path, content)
        for topic, queue_id in queues:
            at, ends = tombstones[topic]
            tombstones[topic] = Tombstone(at, (*ends[:queue_id], 0, *ends[queue_id + 1 :]))
        write_tombstones(self._path, content, tombstones)

    def lower_tombstones(self, end: int) -> list[str]:
        """Lower tombstones that are after the log's end `end` to `end`. Return their topics."""
        content = read_json(self._path)
        tombstones = tombstones_in(self._path, content)
        behind = sorted(name for name, tombstone in tombstones.items() if tombstone.at > end)
        if behind:
            moved = {name: tombstone._replace(at=min(tombstone.at, end)) for name, tombstone in tombstones.items()}
            write_tombstones(self._path, content, moved)
        return behind


def _new_topic(topic: str) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": _READ_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
    }
