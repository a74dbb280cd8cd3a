"""Delete topics: remove a topic's queues and settings. Its records stay in the log, and the offsets of groups are kept.

A deletion takes effect when the table of topics is replaced. The table keeps a `Tombstone` with the topic's end
offsets, at which a recreated topic continues. If the process is killed, the next writer finishes the deletion.

The published end counts deletions. When the count changes, readers drop their cached queues. Writers do so, too, under
the append lock, so that they never append to a deleted file.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from store.append.published_end import PublishedEnd, published_end_of
from store.disk.atomic import make_directory, status_of, sync_directory
from store.disk.client_progress import check_producer_progress, forget_topic_of_producers
from store.disk.topic_table import Tombstone, TopicTable
from store.disk.topics import Topics
from store.format.layout import CONSUME_QUEUE_DIR, CQ_ENTRY, DELETED_DIR, TOPICS_FILE
from store.model.errors import system_errors
from store.model.integers import LONG_MAX

_logger = logging.getLogger("store")


class Deletion:
    """Deletes topics. The caller must hold the append lock."""

    def __init__(self, root: Path, published: PublishedEnd) -> None:
        self._root = root
        self._published_end = published
        self._topics = Topics(root)

    def delete(self, topic: str, ends: Sequence[int]) -> None:
        """Delete an existing topic. ends: end offset of each queue.

        All published messages must be flushed, and unfinished appends undone. Raises `CorruptStore`.
        """
        with system_errors(self._root):
            check_producer_progress(
                self._root
            )  # fail now: an unreadable file would fail `finish` and all later appends
            self._topics.enter(topic)  # a recreated topic without an entry would count as deleted too early
            self._published_end.begin_deletion()
            make_directory(self._root / DELETED_DIR)
            make_directory(self._root / DELETED_DIR / topic)
            self._topics.delete(topic, Tombstone(self._published_end.confirm_offset, tuple(ends)))
        self.finish()

    def finish(self) -> None:
        finish_deletion(self._root)
        self._published_end.end_deletion()


def finish_deletion(root: Path) -> None:
    """Finish a deletion as `Deletion.finish`, in a directory without a published end, which counts no deletions."""
    deleted, queues = root / DELETED_DIR, root / CONSUME_QUEUE_DIR
    if status_of(deleted) is None:
        return
    with system_errors(root):
        gone = TopicTable(root).deleted
        for topic in sorted(each.name for each in deleted.iterdir() if each.name in gone):
            forget_topic_of_producers(root, topic)
            with suppress(FileNotFoundError):  # the topic had no messages, or the queues were moved already
                (queues / topic).rename(deleted / topic)  # atomic: readers never see a part of the topic
                sync_directory(queues)
        shutil.rmtree(deleted)
        sync_directory(root)


def remove_restored_queues(root: Path) -> None:
    """Remove queues of deleted topics, so that a recreated topic does not show their messages.

    A broker may have rebuilt such queues after a crash, or the table of topics may be newer than the log. A topic with
    messages from after its deletion is added to the table again. Call this as the only writer, with no unfinished
    deletion.
    """
    queues, topics = root / CONSUME_QUEUE_DIR, Topics(root)
    deleted, gone = topics.deletions(), topics.table().deleted
    end = _published(root) if deleted.keys() - gone else LONG_MAX
    back = [queues / topic for topic, at in deleted.items() if topic in gone or at > end]
    back = [folder for folder in back if _is_before(folder, deleted[folder.name])]
    for folder in back:
        with system_errors(folder):
            shutil.rmtree(folder)
    if back:
        sync_directory(queues)
    for topic in sorted(topic for topic in gone if (queues / topic).exists()):
        _logger.warning(
            "%s: topic %s has messages after its deletion, so the file %s is older than the log. The topic is listed "
            "again. Check which other topics are missing",
            *(root, topic, TOPICS_FILE),
        )
        topics.create(topic, 1)
        topics.create(topic, topics.queue_count(topic))


def topics_used_after_deletion(root: Path) -> list[str]:
    """Return deleted topics that have later messages, because the table of topics is older than the log.

    This is correct during writes, because a writer adds a topic to the table before its first message.
    """
    found, table = list[str](), TopicTable(root)
    for topic in sorted(table.deleted):
        folder = root / CONSUME_QUEUE_DIR / topic
        with suppress(FileNotFoundError):
            found += [topic] if folder.exists() and not _is_before(folder, table.tombstones[topic].at) else []
    now = TopicTable(root)
    return [topic for topic in found if topic in now.deleted and now.tombstones[topic] == table.tombstones[topic]]


def _published(root: Path) -> int:
    published = published_end_of(root)
    if published is None:
        return LONG_MAX
    with closing(published):
        return published.confirm_offset


def _is_before(folder: Path, at: int) -> bool:
    """Return whether a topic has queue files, and only entries of records before log offset `at`."""
    for file in folder.glob("*/*"):
        with system_errors(file):
            data = file.read_bytes()
        entries = np.frombuffer(data[: len(data) // CQ_ENTRY.itemsize * CQ_ENTRY.itemsize], CQ_ENTRY)
        if (entries["physical_offset"][entries["size"] > 0] >= at).any():
            return False
    return folder.exists()
