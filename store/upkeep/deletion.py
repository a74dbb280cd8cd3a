"""Deleting a topic: its queues and its settings go; the log and the offsets of groups stay.

A topic of the same name goes on behind the old one: the table of topics keeps where each queue ended (see `Tombstone`).
The topic is deleted when the table is written without it, in one write. A process killed before has deleted nothing;
the next writer that appends or opens the store finishes a deletion whose process was killed after.

Other processes may have the store open. They drop what they cached of queues when the published end's number of
deletions changes: readers at their next look, writers under the append lock. So no writer puts into a deleted file.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from store.files.atomic import make_directory, status_of, sync_directory
from store.files.client_progress import check_reached, forget_reached
from store.files.topic_table import Tombstone, TopicTable
from store.files.topics import Topics
from store.format.layout import CONSUME_QUEUE_DIR, CQ_ENTRY, DELETED_DIR, TOPICS_FILE
from store.model.errors import system_errors
from store.model.integers import LONG_MAX
from store.publish.published_end import PublishedEnd, published_end_of

_logger = logging.getLogger("store")


class Deletion:
    """Deletes topics of one store. Call its methods under the append lock."""

    def __init__(self, root: Path, published: PublishedEnd) -> None:
        self._root = root
        self._published_end = published
        self._topics = Topics(root)

    def delete(self, topic: str, ends: Sequence[int]) -> None:
        """Delete a topic that exists. ends: queue offset after the last message of each queue.

        Everything that is published must be on the device, and no dead append left. Raises `CorruptStore`.
        """
        with system_errors(self._root):
            check_reached(self._root)  # an unreadable file would stop whoever finishes this, and all appends
            self._topics.enter(topic)  # or one that needs no entry counted as deleted before it is
            self._published_end.begin_deletion()
            make_directory(self._root / DELETED_DIR)
            make_directory(self._root / DELETED_DIR / topic)
            self._topics.delete(topic, Tombstone(self._published_end.confirm_offset, tuple(ends)))
        self.finish()

    def finish(self) -> None:
        """Finish a deletion, also of a process that was killed."""
        finish_deletion(self._root)
        self._published_end.end_deletion()


def finish_deletion(root: Path) -> None:
    """`Deletion.finish`, for a writer without a published end. Others learn of the deletion by its odd number."""
    deleted, queues = root / DELETED_DIR, root / CONSUME_QUEUE_DIR
    if status_of(deleted) is None:
        return
    with system_errors(root):
        gone = TopicTable(root).deleted
        for topic in sorted(each.name for each in deleted.iterdir() if each.name in gone):
            forget_reached(root, topic)
            with suppress(FileNotFoundError):  # it never had a message, or the dead deletion did this
                (queues / topic).rename(deleted / topic)  # all at once: a reader must not meet a part of it
                sync_directory(queues)
        shutil.rmtree(deleted)
        sync_directory(root)


def remove_what_came_back(root: Path) -> None:
    """Remove queues of deleted topics, whose messages would appear in the next topic of that name.

    Call as the only writer, with no deletion left to finish. A broker that starts after a kill rebuilds such queues
    from the log. They are also there if the table of topics is newer than the log, because it came from a copy. A queue
    with a younger message stays: then the table is older than the store, and gets the topic again.
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
            "%s: topic %s was deleted, as %s says, and has messages since: the file is older than the log, and gets "
            "the topic again; see what else it lacks",
            *(root, topic, TOPICS_FILE),
        )
        topics.create(topic, 1)  # from then on its folders count
        topics.create(topic, topics.queue_count(topic))


def with_messages_since(root: Path) -> list[str]:
    """Return topics that are deleted by the table and have messages since: the table is older than the store.

    It is right while others write: they enter a topic into the table before they put messages into it.
    """
    found, table = list[str](), TopicTable(root)
    for topic in sorted(table.deleted):
        folder = root / CONSUME_QUEUE_DIR / topic
        with suppress(FileNotFoundError):  # it is being deleted
            found += [topic] if folder.exists() and not _is_before(folder, table.tombstones[topic].at) else []
    now = TopicTable(root)
    return [topic for topic in found if topic in now.deleted and now.tombstones[topic] == table.tombstones[topic]]


def _published(root: Path) -> int:
    """Return the log offset up to which messages are published, without a limit if that is unknown."""
    published = published_end_of(root)
    if published is None:
        return LONG_MAX
    with closing(published):
        return published.confirm_offset


def _is_before(folder: Path, at: int) -> bool:
    """Return whether a topic has queues, and all their messages are before log offset `at`."""
    for file in folder.glob("*/*"):
        with system_errors(file):
            data = file.read_bytes()
        entries = np.frombuffer(data[: len(data) // CQ_ENTRY.itemsize * CQ_ENTRY.itemsize], CQ_ENTRY)
        if (entries["physical_offset"][entries["size"] > 0] >= at).any():
            return False
    return folder.exists()
