"""Against what RocketMQ 5.3.3's AllocateMessageQueueAveragely gave.

`tests/resources/allocations-5.3.txt`: a number of queues, of members, then the queues of each member, "-" for none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from store.broker.allocation import allocate
from store.model.log_protocol import Queue

GIVEN = (Path(__file__).parents[2] / "resources" / "allocations-5.3.txt").read_text().splitlines()


@pytest.mark.parametrize("line", GIVEN)
def test_as_rocketmq_allocates(line: str) -> None:
    queues, members, *shares = line.split()
    all_queues = [Queue("t", number) for number in reversed(range(int(queues)))]
    ids = [f"m{number}" for number in range(int(members))]
    for id_, share in zip(ids, shares, strict=True):
        numbers = [] if share == "-" else share.split(",")
        assert allocate(all_queues, ids, id_) == [Queue("t", int(number)) for number in numbers]


def test_each_topic_is_allocated_by_itself() -> None:
    queues = [Queue("b", 0), Queue("a", 0), Queue("a", 10), Queue("a", 9)]
    assert allocate(queues, ["x", "y"], "x") == [Queue("a", 0), Queue("a", 9), Queue("b", 0)]
    assert allocate(queues, ["x", "y"], "y") == [Queue("a", 10)]


def test_a_stranger_gets_nothing() -> None:
    assert allocate([Queue("a", 0)], ["x"], "y") == []
    assert allocate([], ["x"], "x") == []
