"""Deleting a topic, as RocketMQ's deleteTopic: its queues and its settings go, its groups begin anew, the log stays.

The records stay until retention takes their segments; nobody finds them any more, and a topic of the same name begins
at offset 0 (see `lives`). How others that have the store open learn of it, and what happens when somebody dies on the
way, says `store.upkeep.deletion`.
"""

from __future__ import annotations

import os

from store import MessageStore
from store.any_log import Queue
from store.broker.group_files import GroupFiles


def delete_topic(path: str | os.PathLike[str], topic: str) -> None:
    """Delete a topic of the store in directory `path`, for good; others may have it open, and write and read.

    Whoever uses the topic gets `UnknownTopic`, also who puts into it at the same moment.

    Raises `UnknownTopic`, `InvalidTopic` for a broker's own, and as `MessageStore.open` (`StoreLocked` while a
    RocketMQ broker runs here).
    """
    with MessageStore.open(path, create=False) as store:
        timeout = store.config.lockTimeoutMillis / 1000

        def forget() -> None:
            queues = [Queue(topic, queue_id) for queue_id in range(store.topics().get(topic, 0))]  # none comes any more
            for group in GroupFiles.of_all(store.path, timeout):
                group.forget(queues)

        store.delete_topic(topic, forget)
