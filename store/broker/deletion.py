"""Deleting a topic, as RocketMQ's deleteTopic: its queues, its groups' offsets and its settings go, the log stays.

The records stay until retention takes their segments; nobody finds them any more, and a topic of the same name begins
at offset 0 (see `lives`). A deletion counts when the table of topics is written without it: who dies before leaves a
topic whose queues the next opening for writing makes anew from the log.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from store.any_log import Queue
from store.broker.group_files import GroupFiles
from store.errors import InvalidTopic, UnknownTopic
from store.files.atomic import sync_directory
from store.files.consumer_offsets import ConsumerOffsets
from store.files.reached import forget_reached
from store.files.topics import Topics
from store.format.entering import NOT_FOR_PUTTING
from store.format.layout import CONSUME_QUEUE_DIR, DELETED_DIR
from store.log.commit_log import CommitLog
from store.publish.locks import alone, among_groups
from store.publish.log_end import LogEnd
from store.system_errors import explained
from store.upkeep.directory import Directory


@explained
def delete_topic(path: str | os.PathLike[str], topic: str) -> None:
    """Delete a topic of the store in directory `path`, for good. Readers that have it open get `UnknownTopic`.

    Writers remember where queues end, so the directory must not be open for writing, here or elsewhere.

    Raises `UnknownTopic`, `InvalidTopic` for a broker's own, `StoreLocked` while anybody writes here, a RocketMQ broker
    too; `NotAStore`, `UnsupportedStore`.
    """
    directory = Directory.at(path)
    directory.must_be_store(writing=True)
    if topic in NOT_FOR_PUTTING:
        raise InvalidTopic(f"{directory.root}: topic {topic!r} is a broker's own; it cannot be deleted")
    root, config = directory.root, directory.configuration(None)
    log = CommitLog(root, config.mappedFileSizeCommitLog, writable=False)
    alone(root, lambda: _delete(root, topic, log, config.lockTimeoutMillis / 1000), "a topic is deleted")


def _delete(root: Path, topic: str, log: CommitLog, timeout: float) -> None:
    topics = Topics(root)
    gone = topics.queue_counts().get(topic)
    if gone is None:
        topics.known(topic)
        raise UnknownTopic(f"{root}: no topic {topic!r}")
    queues, deleted = root / CONSUME_QUEUE_DIR, root / DELETED_DIR
    shutil.rmtree(deleted, ignore_errors=True)  # of a deletion that was killed
    with suppress(FileNotFoundError):  # nothing was ever put
        (queues / topic).rename(deleted)  # all at once: a reader must not meet a part of it
        sync_directory(queues)
    _forget_offsets(root, topic, gone, timeout)
    forget_reached(root, topic)
    topics.forget(topic, log.min_offset(), LogEnd(root, log).confirm_offset)
    shutil.rmtree(deleted, ignore_errors=True)


def _forget_offsets(root: Path, topic: str, queues: int, timeout: float) -> None:
    """Of all groups, and of their members: in a topic of the same name they mean other messages."""

    def forget() -> None:
        for offsets in (ConsumerOffsets(root), *ConsumerOffsets.of_instances(root)):
            offsets.forget(topic)

    for group in GroupFiles.of_all(root, timeout):  # what the dead had done comes to the offsets before those go
        group.in_turn(lambda: group.forget(Queue(topic, queue_id) for queue_id in range(queues)))  # noqa: B023
    among_groups(root, timeout, forget)
