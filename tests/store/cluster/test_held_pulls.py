from __future__ import annotations

import math
import threading
import time
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

from store import Message, MessageStore
from store.cluster.address import ClusterAddress
from store.cluster.held_pulls import _Pull
from store.model.codes import RequestCode
from store.model.log_protocol import Queue, QueueRange
from store.read.filters import EVERYTHING
from store.remoting.request import Request, Response
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.store.cluster.test_pulls import Moody
from tests.store.cluster.test_route_table import said
from tests.waiting import until

QUEUES, TIMES = 200, 10


def test_broker_without_a_route_does_not_delay_other_queues(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stores, brokers = [], []
        for name in "ab":
            stores.append(stack.enter_context(MessageStore.open(tmp_path / name)))
            stores[-1].create_topic("t", 1)
            brokers.append(stack.enter_context(serve(stores[-1], "127.0.0.1:0", config=BrokerConfig(brokerName=name))))
        asked = count()

        def route(request: Request) -> Response:
            """Omit broker b in the first TIMES routes after it stopped; put a message before the first."""
            there = {name: broker.address for name, broker in zip("ab", brokers, strict=True)}
            if gone.is_set() and (number := next(asked)) < TIMES:
                if number == 0:
                    stores[0].put(Message("t", b""))
                del there["b"]
            return said(there)

        gone = threading.Event()
        names = stack.enter_context(closing(Moody(others={RequestCode.GET_ROUTEINFO_BY_TOPIC: route})))
        names.is_listed = False
        log = stack.enter_context(ClusterAddress((names.server.address,)).open())
        queues = [Queue("t", 0, broker=name) for name in "ab"]
        with log.hold(dict.fromkeys(queues, 0), math.inf, EVERYTHING, 600.0) as held:
            until(lambda: [broker.held for broker in brokers] == [1, 1])
            gone.set()
            brokers[1].close()
            assert next(held) == QueueRange(queues[0], 0, 1)
            assert next(asked) < TIMES


def test_failed_pulls_are_repeated(tmp_path: Path) -> None:
    with (
        MessageStore.open(tmp_path) as store,
        serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName="b")) as serving,
    ):
        store.create_topic("t", QUEUES)
        queues = [Queue("t", number, broker="b") for number in range(QUEUES)]
        with ClusterAddress((serving.address,)).open() as log, log.hold({}, math.inf, EVERYTHING, 0.0) as held:
            begin = time.monotonic()
            held._failed = [(begin + number * 1e-5, _Pull(queue, 0)) for number, queue in enumerate(queues)]
            while held._failed:
                held._begin_failed()
            until(lambda: serving.held == QUEUES, patience=20)


def test_replaced_pull_gives_no_result(tmp_path: Path) -> None:
    with (
        MessageStore.open(tmp_path) as store,
        serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName="b")) as serving,
    ):
        store.create_topic("t", 1)
        store.put(Message("t", b""))
        there, gone = (Queue(topic, 0, broker="b") for topic in ("t", "gone"))
        with ClusterAddress((serving.address,)).open() as log, log.hold({}, math.inf, EVERYTHING, 0.1) as held:
            for position in (1, 0):
                held.again(there, position)
                held.again(gone, position)
            found = sorted(each for each in held if each is not None)
    assert found == [QueueRange(gone, 0, 0), QueueRange(there, 0, 1)]
