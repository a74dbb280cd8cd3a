"""The queues of each member of a group: by its share, and by the locks of orderly groups.

The share is RocketMQ's AllocateMessageQueueAveragely, which all members compute from the same queues and members. The
locks are RocketMQ's RebalanceLockManager, as rules over the claims of living members. The caller changes claims one at
a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby
from operator import attrgetter

from store.model.log_protocol import Queue


def allocate(queues: Iterable[Queue], members: Sequence[str], member: str) -> list[Queue]:
    """Return the queues of `member`: adjacent queues of each topic, sorted. The first members may have one queue more.

    members: ids, sorted.
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


LOCK_SECONDS = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime

Claims = Mapping[Queue, float]  # by the last request, `time.monotonic()`, which all processes share


def held(claims: Claims, now: float) -> set[Queue]:
    return {queue for queue, asked in claims.items() if now - asked <= LOCK_SECONDS}


def claim(wanted: Iterable[Queue], own: Claims, others: Set[Queue], now: float) -> dict[Queue, float]:
    """Return a member's claims after a request for `wanted`. others: queues claimed by other members.

    The first request after a claim expired is refused. Another member may have had the queue in between, so the reader
    has to notice and ask again.
    """
    kept = {queue: own[queue] for queue in held(own, now) - others}
    lost = own.keys() - kept.keys()
    return kept | {queue: now for queue in wanted if queue not in others and queue not in lost}
