"""`ClusterHeld`: waits for messages by a held pull for each queue."""

from __future__ import annotations

import logging
import math
import threading
import time
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple

from store.cluster.address import REQUEST_SECONDS
from store.cluster.broker_refusals import is_temporary
from store.cluster.brokers import Ask, Brokers
from store.cluster.pulls import PULLED, PulledRecords, pull_header
from store.cluster.route_table import Broker
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RemotingError, StoreClosed
from store.model.log_protocol import Positions, Queue, QueueRange
from store.remoting.command import Command
from store.remoting.headers import Pulled

HOLD_SECONDS = 15.0  # brokerSuspendMaxTimeMillis


def held_pull(group: str, queue: Queue, position: int, count: int, seconds: float) -> Ask:
    header = pull_header(group, QueueRange(queue, position, position + count), seconds)
    return Ask(queue, RequestCode.PULL_MESSAGE, header, PULLED, seconds + REQUEST_SECONDS)


class _EndPull(NamedTuple):
    """A pull held at the end of a queue. begun: the `time.monotonic()` of its request."""

    position: int
    broker: Broker
    answer: Future[Command]
    begun: float

    @property
    def is_quiet(self) -> bool:
        if not self.answer.done():
            return True
        if self.answer.cancelled() or self.answer.exception() is not None:
            return False
        return self.answer.result().code == ResponseCode.PULL_NOT_FOUND

    @property
    def has_failed(self) -> bool:
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is not None


class EndPulls:
    """Held pulls that outlast one `wait`, so that an idle query sends a pull to each queue only every 15 s."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lock = threading.Lock()
        self._end_pulls: dict[Queue, _EndPull] = {}

    def wait(self, seen: Positions, timeout: float) -> None:
        """Wait up to `timeout` seconds until a queue's end differs from `seen`. May return earlier."""
        where = self._brokers.routes.readable(seen)
        with self._lock:
            end_pulls = [self._end_pull(queue, broker, seen[queue]) for queue, broker in where.items()]
        answers = [end_pull.answer for end_pull in end_pulls if not end_pull.has_failed]
        if len(answers) < len(end_pulls):
            timeout = min(timeout, _AGAIN_SECONDS)
        if answers:
            wait(answers, timeout, FIRST_COMPLETED)
        else:
            time.sleep(timeout)

    def is_held(self, queue: Queue, position: int) -> bool:
        """Return whether a pull is held at `position` and no message has arrived. Repeats a pull that has ended."""
        with self._lock:
            end_pull = self._end_pulls.get(queue)
            if end_pull is None or end_pull.position != position or not end_pull.is_quiet:
                return False
            self._end_pull(queue, end_pull.broker, position)
            return True

    def _end_pull(self, queue: Queue, broker: Broker, position: int) -> _EndPull:
        end_pull = self._end_pulls.get(queue)
        if end_pull is not None and end_pull.position == position:
            is_resting = end_pull.has_failed and time.monotonic() - end_pull.begun < _AGAIN_SECONDS
            if is_resting or not end_pull.answer.done():
                return end_pull
        if end_pull is not None:
            end_pull.answer.cancel()
        asked = held_pull(self._brokers.address.consumer_group, queue, position, 1, HOLD_SECONDS)
        end_pull = self._end_pulls[queue] = _EndPull(
            position, broker, self._brokers.begin(broker, asked), time.monotonic()
        )
        return end_pull


_logger = logging.getLogger("store")
_AGAIN_SECONDS = 1.0
_MOST_AT_ONCE = 32  # messages in an answer to a held pull; further ones are pulled by `pulls`


class _Pull(NamedTuple):
    """A pull to send. failing: since when pulls of this queue fail (`time.monotonic()`), None if they do not."""

    queue: Queue
    position: int
    failing: float | None = None


def _empty_range(pull: _Pull) -> QueueRange:
    """Return a range whose reader raises the error of a missing queue, so that other queues are not affected."""
    return QueueRange(pull.queue, pull.position, pull.position)


class _Answered(NamedTuple):
    pull: _Pull
    broker: Broker
    ask: Ask
    answer: Future[Command]


class ClusterHeld:
    """The `Held` of a cluster: one held pull for each queue.

    A failed pull is repeated after a second. If no broker answers for `ClusterAddress.broker_timeout` seconds, the
    error is raised.
    """

    def __init__(
        self, brokers: Brokers, begin: Positions, deadline: float, idle: float, brought: dict[Queue, PulledRecords]
    ) -> None:
        """brought: gets the records of each queue's last answer, for the next `scan`."""
        self._brokers = brokers
        self._brought = brought
        self._deadline = deadline
        self._idle = idle
        self._woken: SimpleQueue[_Answered | None] = SimpleQueue()
        self._under_way: dict[Queue, Future[Command]] = {}
        self._failed: list[tuple[float, _Pull]] = []  # with the time of the retry
        self._failing: set[Queue] = set()
        self._heard = -math.inf  # `time.monotonic()` of the last answer
        self._without_broker: list[_Pull] = []
        for queue, position in begin.items():
            self._begin(_Pull(queue, position))

    def again(self, queue: Queue, position: int) -> None:
        self._failed = [(when, pull) for when, pull in self._failed if pull.queue != queue]
        self._without_broker = [pull for pull in self._without_broker if pull.queue != queue]
        if time.monotonic() < self._deadline:
            self._begin(_Pull(queue, position))

    def wake(self) -> None:
        self._woken.put(None)

    def __iter__(self) -> ClusterHeld:
        return self

    def __next__(self) -> QueueRange | None:
        quiet = time.monotonic() + self._idle
        while self._under_way or self._is_retried() or self._without_broker:
            if self._without_broker:
                return _empty_range(self._without_broker.pop())
            try:
                answered = self._woken.get(timeout=max(0.0, self._next_look(quiet) - time.monotonic()))
            except Empty:
                if time.monotonic() >= quiet:
                    return None
                self._begin_failed()
                continue
            if answered is None:
                return None
            there = self._arrived(answered)
            if there is not None:
                return there
        raise StopIteration

    def _is_retried(self) -> bool:
        if time.monotonic() >= self._deadline:
            self._failed.clear()  # their brokers may stay missing
        return bool(self._failed)

    def _next_look(self, quiet: float) -> float:
        return min([quiet, *(min(due, self._deadline) for due, _ in self._failed)])

    def _begin_failed(self) -> None:
        now = time.monotonic()
        due = [pull for when, pull in self._failed if when <= now]
        self._failed = [(when, pull) for when, pull in self._failed if when > now]
        self._brokers.routes.refresh({pull.queue.topic for pull in due})
        for pull in due:
            self._begin(pull)

    def _begin(self, pull: _Pull) -> None:
        queue, position, _ = pull
        broker = self._brokers.routes.readable([queue]).get(queue)
        if broker is None:
            self._without_broker.append(pull)
            return
        seconds = min(HOLD_SECONDS, max(0.0, self._deadline - time.monotonic()))
        ask = held_pull(self._brokers.address.consumer_group, queue, position, _MOST_AT_ONCE, seconds)
        broker = broker.next(0 if pull.failing is None else int(time.monotonic() - pull.failing))
        self._under_way[queue] = answer = self._brokers.begin(broker, ask)
        answer.add_done_callback(lambda done: self._woken.put(_Answered(pull, broker, ask, done)))

    def _arrived(self, answered: _Answered) -> QueueRange | None:
        pull, broker, ask, answer = answered
        if self._under_way.get(pull.queue) is not answer:
            return None
        del self._under_way[pull.queue]
        try:
            command = self._brokers.take(answer, broker, ask)
        except CancelledError as error:
            raise StoreClosed(f"{self._brokers.address}: closed during the wait for messages") from error
        except RemotingError as error:
            self._fail(pull, error)
            return None
        self._failing.discard(pull.queue)
        self._heard = time.monotonic()
        if command is None:  # the topic was deleted
            return _empty_range(pull)
        if command.code == ResponseCode.PULL_NOT_FOUND:
            if time.monotonic() < self._deadline:
                self._begin(_Pull(pull.queue, pull.position))
            return None
        header = Pulled.of(command.fields)
        if command.code == ResponseCode.PULL_OFFSET_MOVED and header.min_offset <= pull.position <= header.max_offset:
            # An admin tool has reset the group, or the topic was recreated.
            there = min(max(header.min_offset, header.next_begin_offset), header.max_offset)
            return QueueRange(pull.queue, there, there)
        if broker.is_slave and not header.min_offset <= pull.position <= header.max_offset:
            # The slave may lag. Only its master knows whether the queue was reset or recreated.
            if time.monotonic() < self._deadline:
                self._failed.append((time.monotonic() + _AGAIN_SECONDS, _Pull(pull.queue, pull.position)))
            return None
        if command.code == ResponseCode.SUCCESS:
            self._brought[pull.queue] = PulledRecords(pull.position, header.next_begin_offset, bytes(command.body))
        return QueueRange(pull.queue, pull.position, max(pull.position, header.max_offset))

    def _fail(self, pull: _Pull, error: RemotingError) -> None:
        """Plan to repeat a pull. Raise `error` if it is permanent, or if no broker has answered for too long."""
        now, timeout = time.monotonic(), self._brokers.address.broker_timeout
        since = now if pull.failing is None else pull.failing
        self._failing.add(pull.queue)
        others_are_well = self._under_way.keys() - self._failing or now - self._heard <= timeout
        if not is_temporary(error) or (now - since > timeout and not others_are_well):
            raise error
        if pull.failing is None:
            _logger.warning("%s: %s is pulled again: %s", self._brokers.address, pull.queue, error)
        self._failed.append((now + _AGAIN_SECONDS, pull._replace(failing=since)))

    def __enter__(self) -> ClusterHeld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        under_way, self._under_way = self._under_way, {}
        for answer in under_way.values():
            answer.cancel()
