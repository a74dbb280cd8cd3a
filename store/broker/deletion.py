"""Deleting a topic, as RocketMQ's deleteTopic: its queues and its settings go, the log stays.

The records stay until retention takes their segments; no reader finds them. A topic of the same name goes on at the
offsets at which the old one ended. So offsets of groups and queries stay: they are expired, or where the topic begins.
How other processes learn of a deletion, and what happens after a kill in the middle, says `store.upkeep.deletion`.
"""

from __future__ import annotations

import os

from store.api.message_store import MessageStore


def delete_topic(path: str | os.PathLike[str], topic: str) -> None:
    """Delete a topic of the store in directory `path`, for good; others may have it open, and write and read.

    Whoever uses the topic gets `UnknownTopic`, also who puts into it at the same moment.

    Raises `UnknownTopic`, `InvalidTopic` for a broker's own, and as `MessageStore.open` (`StoreLocked` while a
    RocketMQ broker runs here).
    """
    with MessageStore.open(path, create=False) as store:
        store.delete_topic(topic)
