"""Waiting at the ends of queues: one pull at each, which its broker holds until something comes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

from store.cluster.brokers import Ask, Brokers
from store.cluster.name_servers import REQUEST_SECONDS
from store.cluster.pulls import PULLED, pull_header
from store.cluster.routes import Broker
from store.model.codes import RequestCode
from store.model.log_protocol import Positions, Queue, QueueRange
from store.remoting.command import Command

HOLD_SECONDS = 15.0  # brokerSuspendMaxTimeMillis


def held_pull(group: str, queue: Queue, position: int, count: int, seconds: float) -> Ask:
    """A pull that a broker may hold for so many seconds."""
    header = pull_header(group, QueueRange(queue, position, position + count), seconds)
    return Ask(queue, RequestCode.PULL_MESSAGE, header, PULLED, seconds + REQUEST_SECONDS)


class _Tail(NamedTuple):
    position: int
    answer: Future[Command]


class Tails:
    """Pulls that outlast one `wait`: so an idle query asks each queue every 15 s, however often it looks."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lock = threading.Lock()
        self._tails: dict[Queue, _Tail] = {}

    def wait(self, seen: Positions, timeout: float) -> None:
        """Until one of the queues has messages behind `seen`, or less; it may come back before."""
        where = self._brokers.routes.readable(seen, waits=False)
        with self._lock:
            answers = [self._tail(queue, broker, seen[queue]) for queue, broker in where.items()]
        if answers:
            wait(answers, timeout, FIRST_COMPLETED)
        else:
            time.sleep(timeout)

    def _tail(self, queue: Queue, broker: Broker, position: int) -> Future[Command]:
        tail = self._tails.get(queue)
        if tail is None or tail.position != position or tail.answer.done():
            if tail is not None:
                tail.answer.cancel()
            asked = held_pull(self._brokers.address.consumer_group, queue, position, 1, HOLD_SECONDS)
            tail = self._tails[queue] = _Tail(position, self._brokers.begin(broker, asked))
        return tail.answer
