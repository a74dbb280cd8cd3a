"""Queues that are waited for, while their brokers come and go."""

from __future__ import annotations

import math
import time
from pathlib import Path

from store import Message, MessageStore
from store.any_log import BrokerQueueId, Queue, QueueRange
from store.cluster.address import ClusterAddress
from store.cluster.held import _Pull
from store.read.filters import EVERYTHING
from store.remoting.serving import serve
from tests.waiting import until

QUEUES = 200


def test_each_pull_that_failed_is_begun_again(tmp_path: Path) -> None:
    """However close together they failed: one that is not waits for nothing any more, and nobody is told."""
    with MessageStore.open(tmp_path) as store, serve(store, "127.0.0.1:0", broker="b") as serving:
        store.create_topic("t", QUEUES)
        queues = [Queue("t", BrokerQueueId("b", number)) for number in range(QUEUES)]
        with ClusterAddress((serving.address,)).open() as log, log.hold({}, math.inf, EVERYTHING, 0.0) as held:
            begin = time.monotonic()
            held._failed = [(begin + number * 1e-5, _Pull(queue, 0)) for number, queue in enumerate(queues)]
            while held._failed:
                held._begin_failed()
            until(lambda: serving.held == QUEUES, patience=20)


def test_what_was_held_before_does_not_come(tmp_path: Path) -> None:
    """Neither its answer, which may be late, nor that it is gone."""
    with MessageStore.open(tmp_path) as store, serve(store, "127.0.0.1:0", broker="b") as serving:
        store.create_topic("t", 1)
        store.put(Message("t", b""))
        there, gone = (Queue(topic, BrokerQueueId("b", 0)) for topic in ("t", "gone"))
        with ClusterAddress((serving.address,)).open() as log, log.hold({}, math.inf, EVERYTHING, 0.1) as held:
            for position in (1, 0):
                held.again(there, position)
                held.again(gone, position)
            found = sorted(each for each in held if each is not None)
    assert found == [QueueRange(*gone, 0, 0), QueueRange(*there, 0, 1)]
