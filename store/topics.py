"""`config/topics.json`: the topics and their queue counts, in RocketMQ's shape (TopicConfigManager)."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from store.errors import CorruptStore, InvalidTopic
from store.layout import (
    CONSUME_QUEUE_DIR,
    DLQ_TOPIC_PREFIX,
    MAX_RETRY_TOPIC_BYTES,
    MAX_TOPIC_BYTES,
    RETRY_TOPIC_PREFIX,
    TOPIC_CHARACTERS,
    TOPICS_FILE,
)

_TABLE = "topicConfigTable"
_VERSION = "dataVersion"
_READ_WRITE = 6  # perm bits: 4 read, 2 write
# A string, or an integer key as fastjson writes it, without quotes: {0:5}
_STRING_OR_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(\d+)(?=\s*:)')


def check_topic_name(topic: str) -> None:
    """Raises `InvalidTopic` for a name RocketMQ refuses (TopicValidator and the broker's put hook)."""
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)) else MAX_TOPIC_BYTES
    if not re.fullmatch(TOPIC_CHARACTERS, topic):
        raise InvalidTopic(f"topic {topic!r}: only letters, digits, '%', '|', '_' and '-' are allowed")
    if len(topic) > limit:
        raise InvalidTopic(f"topic {topic[:20]!r}...: {len(topic)} characters, at most {limit}")


class Topics:
    """The topic table of one store. Other processes write the file too, so its state is looked at in every call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / TOPICS_FILE
        self._seen: tuple[int, int] | None = None
        self._counts: dict[str, int] = {}

    def queue_count(self, topic: str) -> int:
        """Number of queues of one topic, 0 for an unknown one; the files are read only when they changed."""
        try:
            status = self._path.stat()
            state = (status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            state = None
        if state is None or state != self._seen or topic not in self._counts:
            self._counts, self._seen = self.queue_counts(), state
        return self._counts.get(topic, 0)

    def queue_counts(self) -> dict[str, int]:
        """Topic to number of queues, sorted by topic; topics that have a ConsumeQueue but no entry included."""
        counts = {topic: int(config.get("readQueueNums", 0)) for topic, config in self._load().get(_TABLE, {}).items()}
        for topic, queue_ids in self.on_disk().items():
            counts[topic] = max(counts.get(topic, 0), max(queue_ids, default=-1) + 1)
        return dict(sorted(counts.items()))

    def on_disk(self) -> dict[str, list[int]]:
        """Topic to the queue ids that have a ConsumeQueue folder; other names are passed over as RocketMQ does."""
        folder = self._root / CONSUME_QUEUE_DIR
        if not folder.is_dir():
            return {}
        return {
            topic.name: sorted(int(queue.name) for queue in topic.iterdir() if queue.name.isdecimal())
            for topic in folder.iterdir()
            if topic.is_dir()
        }

    def create(self, topic: str, queues: int) -> int:
        """Add a topic, or queues to one; the number it has now. Call under the store lock.

        Raises `InvalidTopic` for a bad name or for fewer queues than there are: messages would be lost sight of.
        """
        check_topic_name(topic)
        present = self.queue_counts().get(topic, 0)
        if queues < max(present, 1):
            raise InvalidTopic(
                f"topic {topic!r}: {queues} queues asked for, but it has {present}; queues can only be added"
            )
        content = self._load()
        table = content.setdefault(_TABLE, {})
        config = table.setdefault(topic, _new_topic(topic))
        if config.get("readQueueNums") != queues or config.get("writeQueueNums") != queues:
            config["readQueueNums"] = config["writeQueueNums"] = queues
            version = content.setdefault(_VERSION, {"counter": 0, "stateVersion": 0})
            version["counter"] = int(version.get("counter", 0)) + 1
            version["timestamp"] = int(time.time() * 1000)
            write_json(self._path, content)
        return queues

    def _load(self) -> dict[str, Any]:
        return read_json(self._path)


def _new_topic(topic: str) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": _READ_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
    }


def read_json(path: Path) -> dict[str, Any]:
    """One of RocketMQ's config files, or its `.bak` when it is missing or empty; {} when there is neither.

    Raises `CorruptStore` when both cannot be parsed.
    """
    backup = path.with_name(f"{path.name}.bak")
    failure: ValueError | None = None
    for candidate in (path, backup):
        try:
            text = candidate.read_text("utf-8")
            if text.strip():
                content: dict[str, Any] = json.loads(_quote_keys(text))
                return content
        except FileNotFoundError:
            continue
        except ValueError as error:
            failure = failure or error
    if failure is not None:
        raise CorruptStore(
            f"{path}: not JSON ({failure}), and no usable {backup.name}; restore it from a copy"
        ) from failure
    return {}


def _quote_keys(text: str) -> str:
    return _STRING_OR_BARE_KEY.sub(lambda found: found[1] or f'"{found[2]}"', text)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write as RocketMQ does: the old file becomes `.bak`, the new one is complete when it appears."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent="\t", sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(f"{path.name}.bak"))
    temporary.replace(path)
