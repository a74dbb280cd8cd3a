"""`config/topics.json`: the topics and their queue counts, in RocketMQ's shape (TopicConfigManager)."""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from store.errors import CorruptStore, InvalidTopic, UnknownQueue, UnknownTopic, UnsupportedStore
from store.files.admin_files import next_version, number, read_json, read_table, table, write_json
from store.files.atomic import status_of
from store.files.kinds import batch_topics
from store.files.opened import Place
from store.format.layout import (
    CONSUME_QUEUE_DIR,
    DELETED_DIR,
    MAX_QUEUES,
    TOPICS_FILE,
)
from store.format.topic_names import check_topic_name, is_folder_name, needs_no_entry, not_a_name
from store.integers import LONG_MAX, integer
from store.system_errors import system_errors

_QUEUE_ID = "0|[1-9][0-9]*"
_TABLE = "topicConfigTable"
_DELETED = "deletedTopics"  # this project's: topic to log offset
_DELETED_CRC = "deletedTopicsCrc"  # this project's: of that table, as `_crc` makes it
_READ_WRITE = 6  # perm bits: 4 read, 2 write


class _Seen(NamedTuple):
    """What the files said when they were in `state`: number of queues, and where it was deleted last, by topic.

    No counts where nobody has asked for one yet: they take a look at every queue's folder.
    """

    state: tuple[int, int] | None
    counts: dict[str, int]
    deletions: dict[str, int]


class Topics:
    """The topic table of one store. Other processes write the file too, so its state is looked at in every call."""

    def __init__(self, root: Path, changed: Callable[[], None] = lambda: None) -> None:
        """changed: called when the files turn out to be others than at the last look."""
        self._root = root
        self._changed = changed
        self._place = Place(root)
        self._path = root / TOPICS_FILE
        self._seen = _Seen(None, {}, {})

    def queue_count(self, topic: str) -> int:
        """Number of queues of one topic, 0 for an unknown one; the files are read only when they changed."""
        return self._look(topic).counts.get(topic, 0)

    def _look(self, topic: str | None = None) -> _Seen:
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
            self._seen = seen = _Seen(state, counts, self._deleted(content))
        return seen

    def deletions(self) -> dict[str, int]:
        """Topic to the log offset where it was deleted last: what lies before does not count any more.

        Those that are there again included; not those that are gone for good, and from the log. One that is made when
        others were deleted may have been one of those: it has the latest of their offsets.
        """
        return self._look().deletions

    def must_not_be_deleted(self, topic: str, queue_id: int = 0) -> None:
        """Raises `UnknownTopic` where a topic was deleted and is not there again, or without this queue; as cheap as
        `queue_count`.
        """
        seen = self._look(topic)
        if seen.counts.get(topic, 0) <= queue_id and topic in seen.deletions:
            what = f"queue {queue_id} of topic {topic!r}" if seen.counts.get(topic) else f"topic {topic!r}"
            raise UnknownTopic(f"{self._root}: no {what} any more: it was deleted; nothing was put into it")

    def born(self, topic: str) -> int | None:
        """Log offset from which on what was put for a topic belongs to it: one that was deleted here, and is there
        again, is another one. None where it is not there; as cheap as `queue_count`. Raises `InvalidTopic`.
        """
        if not isinstance(topic, str):
            raise not_a_name(topic)
        seen = self._look(topic)
        return seen.deletions.get(topic, 0) if seen.counts.get(topic) else None

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
        gone = self._deleted(content).keys() - table(self._path, content, _TABLE).keys()
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
        on_disk, listed, deleted = self._on_disk(content), table(self._path, content, _TABLE), self._deleted(content)

        def is_there(topic: str, at: int) -> bool:
            known = not listed or topic in listed or bool(on_disk.get(topic)) or needs_no_entry(topic)
            return known and at >= deleted.get(topic, 0)

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
        there, deleted = table(self._path, content, _TABLE), self._deleted(content)
        if deleted and not present and topic not in there.keys() | deleted.keys():  # it may be forgotten
            _set_deleted(content, deleted | {topic: max(deleted.values())})
        config = there.setdefault(topic, _new_topic(topic))
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

    def forget(self, topic: str, begin: int, end: int) -> None:
        """Take a topic out of the table: what the log has of it, now in [begin, end), does not count any more.

        Kept in the same file, so that both come at once; RocketMQ passes it over. Call under the store lock.
        """
        content = read_json(self._path)
        there = table(self._path, content, _TABLE)
        there.pop(topic, None)
        known = {name: at for name, at in self._deleted(content).items() if at > begin or name in there}
        self._write_deleted(content, known | {topic: end})

    def deleted_up_to(self, end: int) -> list[str]:
        """The log ends at log offset `end`, and no topic was deleted behind it; those of which the table said so.

        Call under the store lock.
        """
        content = read_json(self._path)
        deleted = self._deleted(content)
        behind = sorted(name for name, at in deleted.items() if at > end)
        if behind:
            self._write_deleted(content, {name: min(at, end) for name, at in deleted.items()})
        return behind

    def _write_deleted(self, content: dict[str, Any], deleted: dict[str, int]) -> None:
        _set_deleted(content, deleted)
        next_version(self._path, content)
        write_json(self._path, content)

    def _deleted(self, content: dict[str, Any]) -> dict[str, int]:
        """Topic to the log offset where it was deleted last. Raises `CorruptStore` for what is damaged."""
        found = content.get(_DELETED) or {}
        if not isinstance(found, dict):
            raise CorruptStore(f"{self._path}: {_DELETED} is no object; correct the file, or restore it from a copy")
        for name in found:
            if not is_folder_name(name):  # the folder of a deleted topic that came back is removed
                raise self._no_name(name, _DELETED)
        deleted = {name: number(self._path, f"{_DELETED} of {name}", at, LONG_MAX) for name, at in found.items()}
        if deleted and content.get(_DELETED_CRC, crc := _crc(deleted)) != crc:  # a version before wrote none
            raise CorruptStore(
                f"{self._path}: {_DELETED} is damaged, for {_DELETED_CRC} does not fit: messages before a wrong offset "
                f"would count as deleted; restore the file from a copy, or correct it and take {_DELETED_CRC} out"
            )
        return deleted

    def _no_name(self, topic: str, table: str) -> CorruptStore:
        return CorruptStore(f"{self._path}: {topic!r} in {table} is no topic's name; correct the file")

    def _table(self) -> dict[str, dict[str, Any]]:
        return read_table(self._path, _TABLE)

    def _configured(self, topic: str, config: dict[str, Any]) -> int:
        if not (is_folder_name(topic) and topic.isprintable()):
            raise self._no_name(topic, _TABLE)
        return number(self._path, f"readQueueNums of {topic}", config.get("readQueueNums") or 0, MAX_QUEUES)


def _set_deleted(content: dict[str, Any], deleted: dict[str, int]) -> None:
    content[_DELETED], content[_DELETED_CRC] = deleted, _crc(deleted)


def _crc(deleted: dict[str, int]) -> int:
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
