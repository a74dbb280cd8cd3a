"""Compare allocations with RocketMQ 5.3.3's AllocateMessageQueueAveragely.

A line of `tests/resources/allocations-5.3.txt`: number of queues, number of members, then the queues of each member,
"-" for none.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.broker.allocation import LOCK_SECONDS, allocate, claim, held
from store.model.log_protocol import Queue

GIVEN = (Path(__file__).parents[2] / "resources" / "allocations-5.3.txt").read_text().splitlines()


@pytest.mark.parametrize("line", GIVEN)
def test_allocations_equal_rocketmqs(line: str) -> None:
    queues, members, *shares = line.split()
    all_queues = [Queue("t", number) for number in reversed(range(int(queues)))]
    ids = [f"m{number}" for number in range(int(members))]
    for id_, share in zip(ids, shares, strict=True):
        numbers = [] if share == "-" else share.split(",")
        assert allocate(all_queues, ids, id_) == [Queue("t", int(number)) for number in numbers]


def test_topics_are_allocated_separately() -> None:
    queues = [Queue("b", 0), Queue("a", 0), Queue("a", 10), Queue("a", 9)]
    assert allocate(queues, ["x", "y"], "x") == [Queue("a", 0), Queue("a", 9), Queue("b", 0)]
    assert allocate(queues, ["x", "y"], "y") == [Queue("a", 10)]


def test_stranger_gets_no_queue() -> None:
    assert allocate([Queue("a", 0)], ["x"], "y") == []
    assert allocate([], ["x"], "x") == []


A, B = Queue("a", 0), Queue("a", 1)
QUEUES = st.sets(st.sampled_from([Queue("a", number) for number in range(4)]))


def test_claim_of_a_free_queue_lasts_a_minute() -> None:
    claims = claim([A, B], {}, set(), 100.0)
    assert held(claims, 100.0 + LOCK_SECONDS) == {A, B}
    assert held(claims, 100.1 + LOCK_SECONDS) == set()


def test_claim_of_an_owned_queue_is_refused() -> None:
    assert claim([A, B], {}, {A}, 1.0) == {B: 1.0}
    assert claim([B], {A: 0.5, B: 0.5}, {A}, 1.0) == {B: 1.0}


def test_only_requested_claims_are_renewed() -> None:
    assert claim([B], {A: 1.0, B: 1.0}, set(), 2.0) == {A: 1.0, B: 2.0}


def test_expired_claim_is_not_renewed_at_once() -> None:
    claims = claim([A], {}, set(), 0.0)
    claims = claim([A, B], claims, set(), LOCK_SECONDS + 1)
    assert claims == {B: LOCK_SECONDS + 1}
    assert claim([A], claims, set(), LOCK_SECONDS + 2).keys() == {A, B}


class LockManager:
    """RocketMQ's RebalanceLockManager for one group. It maps a queue to its owner and the time of the owner's last
    request."""

    def __init__(self) -> None:
        self.table: dict[Queue, tuple[int, float]] = {}

    def lock(self, member: int, queues: set[Queue], now: float) -> set[Queue]:
        granted = set()
        for queue in queues:
            owner, asked = self.table.get(queue, (member, now))
            if owner == member or now - asked > LOCK_SECONDS:
                self.table[queue] = (member, now)
                granted.add(queue)
        return granted

    def unlock(self, member: int, queues: set[Queue]) -> None:
        for queue in queues:
            if self.table.get(queue, (None, 0.0))[0] == member:
                del self.table[queue]


STEPS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), QUEUES, st.floats(0, 40)), max_size=40)


@given(STEPS)
def test_claims_equal_rocketmqs_except_own_expired_ones(steps: list[tuple[int, bool, set[Queue], float]]) -> None:
    manager, now = LockManager(), 0.0
    claims: list[dict[Queue, float]] = [{}, {}, {}]
    for member, locks, queues, later in steps:
        now += later
        if locks:
            expired = claims[member].keys() - held(claims[member], now)
            others = set().union(*(held(each, now) for other, each in enumerate(claims) if other != member))
            claims[member] = claim(queues, claims[member], others, now)
            granted = manager.lock(member, queues, now)
            assert queues & claims[member].keys() == granted - expired
            manager.unlock(member, granted & expired)
        else:
            for queue in queues:
                claims[member].pop(queue, None)
            manager.unlock(member, queues)
        everybodys = [held(each, now) for each in claims]
        assert sum(map(len, everybodys)) == len(set().union(*everybodys))
