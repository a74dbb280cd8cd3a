"""A snapshot of a store's topics: RocketMQ's `config/topics.json`, and the folders of the queues.

This project adds tombstones to the file. RocketMQ ignores them, and drops them when it writes the file.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from store.disk.admin_files import next_version, number, read_json, table, write_json
from store.disk.unsupported import batch_topics
from store.format.layout import CONSUME_QUEUE_DIR, DELETED_DIR, MAX_QUEUES, TOPICS_FILE
from store.format.topic_names import is_folder_name, needs_no_entry
from store.model.errors import CorruptStore, system_errors
from store.model.integers import LONG_MAX

CONFIGS = "topicConfigTable"
_QUEUE_ID = "0|[1-9][0-9]*"
_DELETED = "deletedTopics"  # an earlier version wrote only log offsets
_DELETED_CRC = "deletedTopicsCrc"
_LOG_OFFSET, _QUEUE_ENDS = "logOffset", "queueEnds"


class Tombstone(NamedTuple):
    """The permanent record of a topic's deletion.

    at: log offset of its last deletion.
    ends: by queue, the queue offset after the last message before that.
    """

    at: int
    ends: tuple[int, ...] = ()

    def joined(self, other: Tombstone) -> Tombstone:
        """Return one tombstone for this deletion and a later one, `other`."""
        return Tombstone(other.at, tuple(map(max, zip_longest(self.ends, other.ends, fillvalue=0))))


NEVER_DELETED = Tombstone(0)


class TopicTable:
    def __init__(self, root: Path) -> None:
        """Raises `CorruptStore`."""
        self._root = root
        path = root / TOPICS_FILE
        content = read_json(path)
        configs = table(path, content, CONFIGS)
        self.batches = batch_topics(configs)
        self.listed = {
            name: _configured(path, name, config) for name, config in configs.items() if name not in self.batches
        }
        self.tombstones = tombstones_in(path, content)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of queues of each topic, without batch queues.

        Includes topics that only have a ConsumeQueue folder.
        """
        counts = dict(self.listed)
        for topic, queue_ids in self.on_disk.items():
            counts[topic] = max(counts.get(topic, 0), max(queue_ids, default=-1) + 1)
        return dict(sorted(counts.items()))

    @cached_property
    def on_disk(self) -> dict[str, list[int]]:
        """The ids of queues that have a folder, without deleted topics. Ignores other names, as RocketMQ does."""
        folder = self._root / CONSUME_QUEUE_DIR
        return {topic: sorted(_queue_ids(folder / topic)) for topic in folders_in(folder) if topic not in self.deleted}

    @property
    def queues_on_disk(self) -> list[tuple[str, int]]:
        return [(topic, queue_id) for topic, queue_ids in self.on_disk.items() for queue_id in queue_ids]

    @cached_property
    def deleted(self) -> set[str]:
        """Topics that were deleted and not recreated.

        A system topic needs no entry in the table, so it counts as deleted only until its old folder is removed.
        """
        unlisted = self.tombstones.keys() - self.listed.keys() - self.batches
        return {topic for topic in unlisted if not needs_no_entry(topic) or (self._root / DELETED_DIR / topic).exists()}

    def is_there(self, topic: str, at: int) -> bool:
        """Return whether a record's topic exists, and was not deleted after the record's log offset `at`.

        If the table is empty, every topic exists.
        """
        is_listed = topic in self.listed or topic in self.batches or not (self.listed or self.batches)
        is_known = is_listed or bool(self.on_disk.get(topic)) or needs_no_entry(topic)
        return is_known and at >= self.tombstones.get(topic, NEVER_DELETED).at


def has_queues(root: Path, topic: str) -> bool:
    return bool(folders_in(root / CONSUME_QUEUE_DIR / topic))


def tombstones_in(path: Path, content: dict[str, Any]) -> dict[str, Tombstone]:
    """Return the tombstones in the content of the file. Raises `CorruptStore` if they are damaged."""
    found = content.get(_DELETED) or {}
    if not isinstance(found, dict):
        raise CorruptStore(f"{path}: {_DELETED} is not a JSON object. Correct the file, or restore it from a copy")
    for name in found:
        if not is_folder_name(name):  # a deletion that runs again removes this folder
            raise _no_name(path, name, _DELETED)
    tombstones = {name: _tombstone(path, f"{_DELETED} of {name}", said) for name, said in found.items()}
    if found and content.get(_DELETED_CRC, crc := _crc(found)) != crc:  # an earlier version wrote none
        raise CorruptStore(
            f"{path}: {_DELETED} is damaged: its checksum {_DELETED_CRC} is wrong. With a wrong offset, existing "
            f"messages would count as deleted. Restore the file from a copy; or correct {_DELETED}, and remove "
            f"{_DELETED_CRC}"
        )
    return tombstones


def write_tombstones(path: Path, content: dict[str, Any], tombstones: dict[str, Tombstone]) -> None:
    content[_DELETED] = {
        topic: {_LOG_OFFSET: tombstone.at, _QUEUE_ENDS: list(tombstone.ends)} for topic, tombstone in tombstones.items()
    }
    content[_DELETED_CRC] = _crc(content[_DELETED])
    next_version(path, content)
    write_json(path, content)


def _tombstone(path: Path, name: str, said: object) -> Tombstone:
    at, ends = (said.get(_LOG_OFFSET), said.get(_QUEUE_ENDS)) if isinstance(said, dict) else (said, [])
    if not isinstance(ends, list) or len(ends) > MAX_QUEUES:
        raise CorruptStore(
            f"{path}: {_QUEUE_ENDS} in {name} is not a list. Correct the file, or restore it from a copy"
        )
    at = number(path, name, at, LONG_MAX)
    return Tombstone(at, tuple(number(path, f"{_QUEUE_ENDS} in {name}", end, LONG_MAX) for end in ends))


def _no_name(path: Path, topic: str, table: str) -> CorruptStore:
    return CorruptStore(f"{path}: {topic!r} in {table} is no name of a topic. Correct the file")


def _configured(path: Path, topic: str, config: dict[str, Any]) -> int:
    if not (is_folder_name(topic) and topic.isprintable()):
        raise _no_name(path, topic, CONFIGS)
    return number(path, f"readQueueNums of {topic}", config.get("readQueueNums") or 0, MAX_QUEUES)


def _crc(deleted: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(deleted, sort_keys=True).encode("ascii"))


def folders_in(path: Path) -> list[str]:
    """Return the sorted names of folders, [] if `path` is missing, because a broker may have deleted the topic."""
    with system_errors(path), suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())
    return []


def _queue_ids(path: Path) -> Iterator[int]:
    for name in folders_in(path):
        if re.fullmatch(_QUEUE_ID, name):
            if int(name) < MAX_QUEUES:
                yield int(name)
            else:
                warnings.warn(
                    f"{path / name}: ignored, because no topic has {name} queues. Move the folder out of the store",
                    stacklevel=2,
                )
