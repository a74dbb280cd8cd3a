"""What files beside the log say of more log than there is, after a crash of the machine, steps back to its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from store.any_log import Queue
from store.errors import CorruptStore
from store.files.consumer_offsets import ConsumerOffsets
from store.files.topics import Topics
from store.publish.locks import among_groups

_TURN_SECONDS = 30.0  # until those who change offsets let others do that
_logger = logging.getLogger("store")


def step_back(root: Path, end: int, max_offsets: Mapping[Queue, int]) -> None:
    """The log ends at log offset `end`, its queues at `max_offsets`. Call under the store lock.

    Where messages are gone that groups had read, they read those that come in their place; and where a topic was
    deleted behind the end, what comes before that offset is not of the topic that was deleted.
    """
    topics = Topics(root)
    ends = {
        (queue := Queue(topic, queue_id)): max_offsets.get(queue, 0)
        for topic, count in topics.queue_counts().items()
        for queue_id in range(count)
    }
    for offsets in (ConsumerOffsets(root), *ConsumerOffsets.of_instances(root)):
        with suppress(CorruptStore):  # whoever needs it is told
            for group, positions in offsets.beyond(ends).items():
                among_groups(root, _TURN_SECONDS, partial(offsets.set_positions, group, positions))
                _logger.warning("group %s stood behind what the log has now, and goes on at %s", group, positions)
    topics.deleted_up_to(end)
