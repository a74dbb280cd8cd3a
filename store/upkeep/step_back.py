"""Roll back offsets and topics that are ahead of the log's end, before the next append.

Causes: a machine crash lost unflushed records; a backup's files are newer than its log; a broker served a dead writer's
append and then dropped it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from store.append.locks import among_groups
from store.disk.client_progress import reset_producers_ahead_of_log, step_back_members
from store.disk.consume_queues import ConsumeQueues
from store.disk.consumer_offsets import ConsumerOffsets
from store.disk.topic_table import TopicTable
from store.disk.topics import Topics
from store.format.layout import HALF_TOPIC, OP_TOPIC, TRANSACTIONS_GROUP
from store.format.topic_names import PRODUCERS_TOPIC
from store.model.errors import CorruptSegment, CorruptStore
from store.model.log_protocol import Positions, Queue

WHY = "after a machine crash or a restored backup, these files may be newer than the log"
_TURN_SECONDS = 30.0  # to wait for the lock of consumer groups
_logger = logging.getLogger("store")


def step_back(root: Path, queues: ConsumeQueues, end: int) -> None:
    """Roll back group offsets, topic deletions and producer progress to log offset `end`.

    Groups that consumed lost messages will consume the messages that get their offsets. A topic deleted after `end`
    counts as deleted at `end`, so that new records do not count as deleted. An unreadable file stays unchanged; its
    readers raise an error.

    Call this as the only writer, under the store lock. queues: may have entries up to `end`, or fewer.
    """
    topics = Topics(root)
    at_most = partial(_at_most, topics, TopicTable(root).batches, queues, end)
    for topic in topics.lower_tombstones(end):
        _logger.warning("%s: topic %s was deleted after the present end of the log, %d: %s", root, topic, end, WHY)
    for offsets in (ConsumerOffsets(root), *ConsumerOffsets.of_instances(root)):
        with suppress(CorruptStore):
            for group, positions in _beyond(offsets, at_most):
                with among_groups(root, _TURN_SECONDS):
                    offsets.set_positions(group, positions)
                _logger.warning(
                    "%s: the offsets of group %s were after the end of the log, and are set back to %s: %s",
                    *(root, group, positions, WHY),
                )
    for member, positions in step_back_members(root, at_most).items():
        _logger.warning(
            "%s: the offsets of member %s of group %s were after the end of the log, and the group continues at %s: %s",
            *(root, member.stem, member.parent.name, positions, WHY),
        )
    for name, reached in reset_producers_ahead_of_log(root, partial(queues.at_most, PRODUCERS_TOPIC, 0, end)).items():
        _logger.warning(
            "%s: producer %s recorded the sequences %s, which are newer than the log. Its sequences are found in the "
            "log instead: %s",
            *(root, name, reached.sequences, WHY),
        )


def _at_most(topics: Topics, batches: set[str], queues: ConsumeQueues, end: int, queue: Queue, offset: int) -> int:
    """Return `offset`, or the queue's end if that is lower. The end of a deleted queue is its end at the deletion.

    batches: topics whose ends cannot be read. Their offsets are returned unchanged.
    """
    if offset <= queues.expected.get((queue.topic, queue.queue_id), 0) or queue.topic in batches:
        return offset
    is_there = 0 <= queue.queue_id < topics.queue_count(queue.topic)
    try:
        if not is_there:
            return min(offset, topics.begin(queue.topic, queue.queue_id))
        return queues.at_most(queue.topic, queue.queue_id, end, offset)
    except CorruptSegment:  # keep this offset, roll back the others
        return offset


def _beyond(offsets: ConsumerOffsets, at_most: Callable[[Queue, int], int]) -> Iterator[tuple[str, Positions]]:
    for group, positions in offsets.all_positions().items():
        ends = {queue: end for queue, at in positions.items() if (end := at_most(queue, at)) < at}
        # Op messages may be lost: read all half messages and remaining op messages again.
        if ends and group == TRANSACTIONS_GROUP:
            ends = dict.fromkeys((Queue(HALF_TOPIC, 0), Queue(OP_TOPIC, 0)), 0)
        if ends:
            yield group, ends
