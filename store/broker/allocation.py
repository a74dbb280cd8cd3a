"""Which member of a group reads which queues: RocketMQ's AllocateMessageQueueAveragely.

Every member works it out for itself, from the same queues and the same members, and they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from store.model.log_protocol import Queue


def allocate(queues: Iterable[Queue], members: Sequence[str], member: str) -> list[Queue]:
    """The queues of `member`, sorted: of each topic neighbours; the first members have one more than the others.

    members: ids, sorted. Nothing for one that is not among them.
    """
    if member not in members:
        return []
    index = members.index(member)
    return [
        queue
        for _, of_topic in groupby(sorted(queues), key=attrgetter("topic"))
        for queue in _share(list(of_topic), len(members), index)
    ]


def _share(queues: list[Queue], members: int, index: int) -> list[Queue]:
    size, more = divmod(len(queues), members)
    start = index * size + min(index, more)
    return queues[start : start + size + (index < more)]
