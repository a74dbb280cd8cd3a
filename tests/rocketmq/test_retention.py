from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from store import MessageStore
from tests import seen
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.test_theirs_reading_ours import SMALL, by_all_of_them, by_put, filled

pytestmark = pytest.mark.rocketmq

Compare = Callable[[seen.Queues, seen.Queues], None]


@pytest.mark.parametrize("part", ["half", "all but the last"])
def test_rocketmq_reads_a_store_after_retention(
    part: str, rocketmq: RocketMQ, tmp_path: Path, compare: Compare
) -> None:
    directory = tmp_path / "ours"
    with filled(directory, by_all_of_them, SMALL) as store:
        segments = sorted((directory / "commitlog").iterdir())
        for segment in segments[: len(segments) // 2]:
            os.utime(segment, (0, 0))
        while (done := store.clean(asked=True, forced=part != "half")).log:
            assert done.min_offset > 0
        by_put(store, random.Random("afterwards"))
        # Right after loading, RocketMQ takes 0 as the minimum of a queue whose first file is entirely expired, until
        # its own clean-up runs. If that file was the queue's last one, our retention leaves it; the next clean deletes
        # it.
        store.clean()
        store.commit_offsets("group", "orders", {0: store.min_offset("orders", 0)})
    with MessageStore.open(directory, read_only=True) as store:
        ours = seen.by_scan(store)
    assert min(queue.minimum for queue in ours.values()) > 0
    compare(ours, seen.by_rocketmq(rocketmq.read(directory)))
