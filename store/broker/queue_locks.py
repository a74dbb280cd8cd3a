"""Which member of a group has a queue: RocketMQ's RebalanceLockManager, as rules over what each member claims.

A member claims queues for itself, and says when; the claims of one that has left, or died, count no longer. All verbs
are pure: who calls them sees to it that claims change in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from store.model.log_protocol import Queue

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
