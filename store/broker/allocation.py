"""Which member of a group reads which queues: RocketMQ's AllocateMessageQueueAveragely.

Every member works it out for itself, from the same queues and the same members, and they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
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


LOCK_SECONDS = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime

Claims = Mapping[Queue, float]  # when a member asked for it last: time.monotonic(), which all processes share


def held(claims: Claims, now: float) -> set[Queue]:
    """The queues that a member with these claims has."""
    return {queue for queue, asked in claims.items() if now - asked <= LOCK_SECONDS}


def claim(wanted: Iterable[Queue], own: Claims, others: Set[Queue], now: float) -> dict[Queue, float]:
    """A member's claims after it asked for the queues `wanted`: what it got has the time `now`.

    own: its claims before. others: what other members have. A queue of its own whose claim has expired it does not get
    at once: another may have had it meanwhile, so that its reader has to notice, and ask again.
    """
    kept = {queue: own[queue] for queue in held(own, now) - others}
    lost = own.keys() - kept.keys()
    return kept | {queue: now for queue in wanted if queue not in others and queue not in lost}
