"""`config/topics.json`: the topics and their queue counts, in RocketMQ's shape (TopicConfigManager)."""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from store.files.admin_files import next_version, number, read_json, read_table, table, write_json
from store.files.atomic import status_of
from store.files.kinds import batch_topics
from store.files.opened import PinnedPath
from store.format.layout import (
    CONSUME_QUEUE_DIR,
    DELETED_DIR,
    MAX_QUEUES,
    TOPICS_FILE,
)
from store.format.topic_names import check_topic_name, is_folder_name, needs_no_entry, not_a_name
from store.model.errors import CorruptStore, InvalidTopic, UnknownQueue, UnknownTopic, UnsupportedStore, system_errors
from store.model.integers import LONG_MAX, integer

_QUEUE_ID = "0|[1-9][0-9]*"
_TABLE = "topicConfigTable"
_DELETED = "deletedTopics"  # this project's: topic to its tombstone; a version before wrote the log offset alone
_DELETED_CRC = "deletedTopicsCrc"  # this project's: of that table, as `_crc` makes it
_LOG_OFFSET, _QUEUE_ENDS = "logOffset", "queueEnds"
_READ_WRITE = 6  # perm bits: 4 read, 2 write


class Tombstone(NamedTuple):
    """What is kept for ever of a topic that was deleted.

    at: log offset of its last deletion. ends: by queue id, queue offset after the last message that the queue ever had.
    """

    at: int
    ends: tuple[int, ...] = ()

    def joined(self, other: Tombstone) -> Tombstone:
        """The tombstone after a later deletion, of which `other` is the one."""
        return Tombstone(other.at, tuple(map(max, zip_longest(self.ends, other.ends, fillvalue=0))))


_NEVER = Tombstone(0)


class _TopicsSeen(NamedTuple):
    """What the files said when they were in `state`: number of queues, and tombstones, by topic.

    No counts where nobody has asked for one yet: they take a look at every queue's folder.
    """

    state: tuple[int, int] | None
    counts: dict[str, int]
    tombstones: dict[str, Tombstone]


class Topics:
    """The topic table of one store. Other processes write the file too, so its state is looked at in every call."""

    def __init__(self, root: Path, changed: Callable[[], None] = lambda: None) -> None:
        """changed: called when the files turn out to be others than at the last look."""
        self._root = root
        self._changed = changed
        self._place = PinnedPath(root)
        self._path = root / TOPICS_FILE
        self._seen = _TopicsSeen(None, {}, {})

    def queue_count(self, topic: str) -> int:
        """Number of queues of one topic, 0 for an unknown one; the files are read only when they changed."""
        return self._look(topic).counts.get(topic, 0)

    def _look(self, topic: str | None = None) -> _TopicsSeen:
        """What the files say; they are read if they changed, or did not have the topic. Each thread goes by what it saw
        itself: another may come to its end with what it read before.
        """
        seen = self._seen
        status = status_of(self._path)
        state = (status.st_ino, status.st_mtime_ns) if status is not None else None
        if state is None or state != seen.state or (topic is not None and topic not in seen.counts):
            if state != seen.state:
                self._changed()
            content = read_json(self._path)
            counts = {} if topic is None else self._counted(content)
            self._seen = seen = _TopicsSeen(state, counts, self._tombstones(content))
        return seen

    def deletions(self) -> dict[str, int]:
        """Topic to the log offset of its last deletion: earlier records do not count. Includes recreated topics."""
        return {topic: tombstone.at for topic, tombstone in self._look().tombstones.items()}

    def begin(self, topic: str, queue_id: int) -> int:
        """Queue offset of the first message of a queue: 0, or its end when the topic was deleted last."""
        tombstone = self._look().tombstones.get(topic)
        return 0 if tombstone is None or queue_id >= len(tombstone.ends) else tombstone.ends[queue_id]

    def must_not_be_deleted(self, topic: str, queue_id: int = 0) -> None:
        """Raises `UnknownTopic` where a topic was deleted and is not there again, or without this queue; as cheap as
        `queue_count`.
        """
        seen = self._look(topic)
        if seen.counts.get(topic, 0) <= queue_id and topic in seen.tombstones:
            what = f"queue {queue_id} of topic {topic!r}" if seen.counts.get(topic) else f"topic {topic!r}"
            raise UnknownTopic(f"{self._root}: no {what} any more: it was deleted; nothing was put into it")

    def known(self, topic: str) -> int:
        """Number of queues of one topic. Raises `UnknownTopic`, `InvalidTopic`, and `StoreReplaced`."""
        if not isinstance(topic, str):
            raise not_a_name(topic)
        queues = self.queue_count(topic)
        if not queues:
            self._place.check()
            if topic in self.batches():
                raise UnsupportedStore(
                    f"{self._root}: topic {topic!r} has batch queues (queue.type=BatchCQ), which are not read here; "
                    "read it with RocketMQ's own client"
                )
            known = ", ".join(self.queue_counts()) or "none"
            raise UnknownTopic(
                f"{self._root}: no topic {topic!r}; create it first, by create_topic or 'pyspark-mq topic create' "
                f"(there are: {known})"
            )
        return queues

    def check_queue(self, topic: str, queue_id: int) -> int:
        """The queue id, if the topic has it. Raises `UnknownTopic`, `UnknownQueue`."""
        queue_id, queues = integer("queue_id", queue_id), self.known(topic)
        if not 0 <= queue_id < queues:
            raise UnknownQueue(f"{self._root}: topic {topic!r} has queues 0 to {queues - 1}, not {queue_id}")
        return queue_id

    def queue_counts(self) -> dict[str, int]:
        """Topic to number of queues, sorted by topic; topics that have a ConsumeQueue but no entry included.

        Topics with batch queues are left out.
        """
        return self._counted(read_json(self._path))

    def _counted(self, content: dict[str, Any]) -> dict[str, int]:
        configured = table(self._path, content, _TABLE)
        batches = batch_topics(configured)
        counts = {name: self._configured(name, config) for name, config in configured.items() if name not in batches}
        for topic, queue_ids in self._on_disk(content).items():
            counts[topic] = max(counts.get(topic, 0), max(queue_ids, default=-1) + 1)
        return dict(sorted(counts.items()))

    def batches(self) -> set[str]:
        """Topics with batch queues, which are not read here."""
        return batch_topics(self._table())

    def on_disk(self) -> dict[str, list[int]]:
        """Topic to the queue ids that have a ConsumeQueue folder; other names are passed over as RocketMQ does.

        Nor does the folder of a topic count that is being deleted. Warns of a number that no queue has: with it a topic
        had millions of them.
        """
        return self._on_disk(read_json(self._path))

    def _on_disk(self, content: dict[str, Any]) -> dict[str, list[int]]:
        folder, gone = self._root / CONSUME_QUEUE_DIR, self._gone(content)
        return {topic: sorted(_queue_ids(folder / topic)) for topic in _folders(folder) if topic not in gone}

    def gone(self) -> set[str]:
        """Those of `deletions` that are not there again."""
        return self._gone(read_json(self._path))

    def _gone(self, content: dict[str, Any]) -> set[str]:
        """A broker lists what it makes again, but for those that need no entry: of them a folder that is there is new,
        once the deletion has taken the old one away.
        """
        gone = self._tombstones(content).keys() - table(self._path, content, _TABLE).keys()
        return {topic for topic in gone if not needs_no_entry(topic) or (self._root / DELETED_DIR / topic).exists()}

    def has_queues(self, topic: str) -> bool:
        """Whether a topic has the folder of a queue: something was ever put there."""
        return bool(_folders(self._root / CONSUME_QUEUE_DIR / topic))

    def queues_on_disk(self) -> list[tuple[str, int]]:
        """(topic, queue id) of all that `on_disk` has."""
        return [(topic, queue_id) for topic, queue_ids in self.on_disk().items() for queue_id in queue_ids]

    def are_there(self) -> Callable[[str, int], bool]:
        """Tells, as it stands now, whether the record at a log offset is of a topic that is there.

        The log keeps those of deleted ones. Where there is a table, a topic is not there that is neither in it nor has
        a queue's folder; and of one that was deleted here, what came before that does not count. Raises `CorruptStore`.
        """
        content = read_json(self._path)
        on_disk, listed = self._on_disk(content), table(self._path, content, _TABLE)
        tombstones = self._tombstones(content)

        def is_there(topic: str, at: int) -> bool:
            known = not listed or topic in listed or bool(on_disk.get(topic)) or needs_no_entry(topic)
            return known and at >= tombstones.get(topic, _NEVER).at

        return is_there

    def create(self, topic: str, queues: int) -> int:
        """Add a topic, or queues to one; the number it has now. Call under the store lock.

        Raises `InvalidTopic` for a bad name or for fewer queues than there are: messages would be lost sight of;
        `InvalidArgument` for more than 65,536.
        """
        check_topic_name(topic)
        queues = integer("queues", queues, maximum=MAX_QUEUES)
        present = self.queue_counts().get(topic, 0)
        if queues < max(present, 1):
            raise InvalidTopic(
                f"topic {topic!r}: {queues} queues asked for, but it has {present}; queues can only be added"
            )
        content = read_json(self._path)
        config = table(self._path, content, _TABLE).setdefault(topic, _new_topic(topic))
        if config.get("readQueueNums") != queues or config.get("writeQueueNums") != queues:
            config["readQueueNums"] = config["writeQueueNums"] = queues
            next_version(self._path, content)
            write_json(self._path, content)
        return queues

    def enter(self, topic: str) -> None:
        """Add a topic to the table that was deleted once, and that a broker made again without listing it. Call under
        the store lock.
        """
        if topic in self.deletions() and topic not in self._table():
            self.create(topic, self.queue_count(topic))

    def delete(self, topic: str, tombstone: Tombstone) -> None:
        """Take a topic out of the table and keep its tombstone, in one write. Call under the store lock.

        RocketMQ ignores tombstones, and drops them when it writes the file.
        """
        content = read_json(self._path)
        table(self._path, content, _TABLE).pop(topic, None)
        tombstones = self._tombstones(content)
        before = tombstones.get(topic, _NEVER)
        self._write_tombstones(content, tombstones | {topic: before.joined(tombstone)})

    def restarted(self, queues: Iterable[tuple[str, int]]) -> None:
        """A RocketMQ broker restarted these queues (topic, queue id) at 0 after the deletion of their topics."""
        content = read_json(self._path)
        tombstones = self._tombstones(content)
        for topic, queue_id in queues:
            at, ends = tombstones[topic]
            tombstones[topic] = Tombstone(at, (*ends[:queue_id], 0, *ends[queue_id + 1 :]))
        self._write_tombstones(content, tombstones)

    def deleted_up_to(self, end: int) -> list[str]:
        """The log ends at log offset `end`, and no topic was deleted behind it; those of which the table said so.

        Call under the store lock.
        """
        content = read_json(self._path)
        tombstones = self._tombstones(content)
        behind = sorted(name for name, tombstone in tombstones.items() if tombstone.at > end)
        if behind:
            moved = {name: tombstone._replace(at=min(tombstone.at, end)) for name, tombstone in tombstones.items()}
            self._write_tombstones(content, moved)
        return behind

    def _write_tombstones(self, content: dict[str, Any], tombstones: dict[str, Tombstone]) -> None:
        content[_DELETED] = {
            topic: {_LOG_OFFSET: tombstone.at, _QUEUE_ENDS: list(tombstone.ends)}
            for topic, tombstone in tombstones.items()
        }
        content[_DELETED_CRC] = _crc(content[_DELETED])
        next_version(self._path, content)
        write_json(self._path, content)

    def _tombstones(self, content: dict[str, Any]) -> dict[str, Tombstone]:
        """Topic to tombstone. Raises `CorruptStore` for what is damaged."""
        found = content.get(_DELETED) or {}
        if not isinstance(found, dict):
            raise CorruptStore(f"{self._path}: {_DELETED} is no object; correct the file, or restore it from a copy")
        for name in found:
            if not is_folder_name(name):  # the folder of a deleted topic that came back is removed
                raise self._no_name(name, _DELETED)
        tombstones = {name: self._tombstone(f"{_DELETED} of {name}", said) for name, said in found.items()}
        if found and content.get(_DELETED_CRC, crc := _crc(found)) != crc:  # a version before wrote none
            raise CorruptStore(
                f"{self._path}: {_DELETED} is damaged, for {_DELETED_CRC} does not fit: messages before a wrong offset "
                f"would count as deleted; restore the file from a copy, or correct it and take {_DELETED_CRC} out"
            )
        return tombstones

    def _tombstone(self, name: str, said: object) -> Tombstone:
        at, ends = (said.get(_LOG_OFFSET), said.get(_QUEUE_ENDS)) if isinstance(said, dict) else (said, [])
        if not isinstance(ends, list) or len(ends) > MAX_QUEUES:
            raise CorruptStore(f"{self._path}: {_QUEUE_ENDS} in {name} is no list; restore the file from a copy")
        at = number(self._path, name, at, LONG_MAX)
        return Tombstone(at, tuple(number(self._path, f"{_QUEUE_ENDS} in {name}", end, LONG_MAX) for end in ends))

    def _no_name(self, topic: str, table: str) -> CorruptStore:
        return CorruptStore(f"{self._path}: {topic!r} in {table} is no topic's name; correct the file")

    def _table(self) -> dict[str, dict[str, Any]]:
        return read_table(self._path, _TABLE)

    def _configured(self, topic: str, config: dict[str, Any]) -> int:
        if not (is_folder_name(topic) and topic.isprintable()):
            raise self._no_name(topic, _TABLE)
        return number(self._path, f"readQueueNums of {topic}", config.get("readQueueNums") or 0, MAX_QUEUES)


def _crc(deleted: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(deleted, sort_keys=True).encode("ascii"))


def _folders(path: Path) -> list[str]:
    """Names of the folders in `path`, by name; none without it: a broker may delete a topic at any moment."""
    with system_errors(path), suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())
    return []


def _queue_ids(path: Path) -> Iterator[int]:
    """Queue ids of the folders in a topic's one."""
    for name in _folders(path):
        if re.fullmatch(_QUEUE_ID, name):
            if int(name) < MAX_QUEUES:
                yield int(name)
            else:
                warnings.warn(
                    f"{path / name}: passed over: no topic has {name} queues; move the folder out of the store",
                    stacklevel=2,
                )


def _new_topic(topic: str) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": _READ_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
    }
