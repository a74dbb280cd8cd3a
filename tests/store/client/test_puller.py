from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pyarrow as pa
import pytest

from store import Message, MessageStore, TagFilter, message_filter
from store.broker.hold import HeldRequest
from store.client import puller
from store.client.process_queue import ProcessQueue
from store.client.process_queues import ProcessQueues, TakenMessages
from store.client.puller import Puller, PullFigures
from store.directory.directory_log import DirectoryHeld, DirectoryLog
from store.disk.figures import DELIVERED, HELD, Figures
from store.model.log_protocol import MessageFilter, Positions, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from tests.waiting import PATIENCE, until

QUEUE = Queue("t", 0)


class Pulling:
    def __init__(self, path: Path) -> None:
        self.store = MessageStore.open(path)
        self.store.create_topic("t", 1)
        self.positions: Positions = {}
        self.queues = ProcessQueues(self.positions.update)
        self.queues.lease(math.inf)

    def put(self, count: int, size: int = 10) -> None:
        first = self.store.max_offset("t", 0)
        numbers = range(first, first + count)
        self.store.put_many([Message("t", b"x" * size, queue_id=0, tags=("even", "odd")[n % 2]) for n in numbers])

    def pull(self, max_count: int, max_bytes: int, message_filter: MessageFilter = EVERYTHING) -> ProcessQueue:
        figures = Figures()
        told = PullFigures(figures.of(DELIVERED, "t"), figures.of(HELD, "t"))
        self.puller = Puller(DirectoryLog(self.store), message_filter, self.queues, max_bytes, told)
        self.thread = threading.Thread(target=self.puller.run)
        self.thread.start()
        queue = ProcessQueue(QUEUE, 0, max_count, max_bytes)
        self.queues.add(queue, self.puller.pull)
        return queue

    def close(self) -> None:
        self.queues.close()
        self.puller.stop()
        self.thread.join()
        self.store.close()


@pytest.fixture
def pulling(tmp_path: Path) -> Iterator[Pulling]:
    it = Pulling(tmp_path / "mq")
    yield it
    it.close()


@pytest.mark.parametrize(
    ("max_count", "max_bytes", "expected"),
    # The byte limit is checked before a batch is pulled: a batch of 15 may begin just below it.
    [(1, 1 << 20, 1), (10, 1 << 20, 10), (1000, 3000, 29 + 15), (1000, 1, 1)],
)
def test_cache_keeps_its_limits_and_all_messages_arrive(
    pulling: Pulling, max_count: int, max_bytes: int, expected: int
) -> None:
    pulling.put(100, size=100)
    queue = pulling.pull(max_count, max_bytes)
    most, seen = 0, []
    while len(seen) < 100:
        taken = pulling.queues.take(3, PATIENCE)
        assert taken is not None
        seen += [message.queue_offset for message in taken.handful.messages]
        most = max(most, queue.count)
        pulling.queues.done(taken)
        assert pulling.positions == {QUEUE: seen[-1] + 1}
    assert seen == [*range(100)]
    assert most <= expected


def test_hanging_message_stops_its_queue_at_the_limit(pulling: Pulling) -> None:
    pulling.put(100)
    queue = pulling.pull(20, 1 << 20)
    hanging = pulling.queues.take(1, PATIENCE)
    assert hanging is not None
    for _ in range(19):
        taken = pulling.queues.take(1, PATIENCE)
        assert taken is not None
        pulling.queues.done(taken)
    assert pulling.queues.take(1, 0.1) is None
    assert (queue.position, queue.pulled, pulling.positions) == (0, 20, {})
    pulling.queues.done(hanging)
    assert pulling.positions == {QUEUE: 20}
    until(lambda: queue.pulled > 20)


def test_messages_without_a_match_are_skipped(pulling: Pulling) -> None:
    pulling.put(100)
    pulling.pull(10, 1 << 20, TagFilter.parse("odd"))
    seen = []
    while len(seen) < 50:
        taken = pulling.queues.take(4, PATIENCE)
        assert taken is not None
        seen += [message.queue_offset for message in taken.handful.messages]
        pulling.queues.done(taken)
    assert seen == [*range(1, 100, 2)]
    until(lambda: pulling.positions == {QUEUE: 100})


def test_skipped_messages_are_acknowledged_during_a_long_scan(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a consumer closed or killed within a long range without a match would start it over."""
    scanned, looked, goes_on = list[int](), threading.Event(), threading.Event()
    scan = DirectoryLog.scan

    def slow(log: DirectoryLog, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        scanned.append(wanted.length)
        if len(scanned) == 2:
            looked.set()
            goes_on.wait(PATIENCE)
        return scan(log, wanted, spec)

    monkeypatch.setattr(DirectoryLog, "scan", slow)
    monkeypatch.setattr(puller, "_MOST_SCANNED", 30)
    pulling.put(100)
    pulling.pull(10, 1 << 20, message_filter("p = '1'", "SQL92"))
    assert looked.wait(PATIENCE)
    assert pulling.positions == {QUEUE: 30}
    goes_on.set()
    until(lambda: pulling.positions == {QUEUE: 100})
    assert scanned == [30, 30, 30, 10]


def test_queue_restarts_before_the_pulled_messages(pulling: Pulling) -> None:
    pulling.put(10)
    queue = pulling.pull(100, 1 << 20)
    for begin in (0, 5, 0, 9, 2):
        pulling.queues.remove(queue)
        queue = ProcessQueue(QUEUE, begin, 100, 1 << 20)
        pulling.queues.add(queue, pulling.puller.pull)
        for _ in range(2):
            until(lambda: queue.pulled == pulling.store.max_offset("t", 0))  # noqa: B023
            assert queue.count == queue.pulled - begin
            pulling.put(1)
    # The last put ends one request; requests of closed queues do not pile up.
    until(lambda: len(requests(pulling)) == 1)


def requests(pulling: Pulling) -> list[HeldRequest]:
    held = pulling.puller._held
    assert isinstance(held, DirectoryHeld)
    return list(held._service._requests.all())


def test_old_queue_with_space_again_does_not_replace_the_new(pulling: Pulling) -> None:
    pulling.put(10)
    before = pulling.pull(100, 1 << 20)
    until(lambda: before.pulled == 10)
    pulling.queues.remove(before)
    after = ProcessQueue(QUEUE, 0, 100, 1 << 20)
    pulling.queues.add(after, pulling.puller.pull)
    pulling.puller.pull(before)
    until(lambda: after.pulled == 10)
    pulling.put(1)
    until(lambda: after.pulled == 11)


def test_no_message_is_given_out_after_the_lease(pulling: Pulling) -> None:
    pulling.put(10)
    pulling.queues.lease(time.monotonic() - 1)
    queue = pulling.pull(100, 1 << 20)
    until(lambda: queue.count == 10)
    assert pulling.queues.take(1, 0.05) is None
    renewing = threading.Timer(0.1, pulling.queues.lease, [math.inf])
    renewing.start()
    assert pulling.queues.take(1, PATIENCE) is not None
    renewing.join()


def test_caller_is_called_back_once(pulling: Pulling) -> None:
    queue = pulling.pull(100, 1 << 20)
    told: list[int] = []
    assert pulling.queues.take_or_call(1, lambda: told.append(1)) is None
    assert told == []
    pulling.put(1)
    until(lambda: told == [1])
    taken = pulling.queues.take_or_call(1, lambda: told.append(2))
    assert taken is not None
    pulling.queues.give_back(taken, 0.0)
    assert queue.position == 0
    again = pulling.queues.take(1, PATIENCE)
    assert again is not None
    pulling.queues.done(again)
    pulling.queues.close()
    assert told == [1]
    assert pulling.queues.take_or_call(1, lambda: told.append(3)) is None
    assert told == [1, 3]


def test_message_given_back_is_given_out_after_its_delay(pulling: Pulling) -> None:
    pulling.put(1)
    pulling.pull(100, 1 << 20)
    taken = pulling.queues.take(1, PATIENCE)
    assert taken is not None
    begin = time.monotonic()
    pulling.queues.give_back(taken, 0.1)
    assert pulling.queues.take(1, PATIENCE) is not None
    assert time.monotonic() - begin >= 0.1


def test_delayed_message_is_given_to_any_waiting_thread(pulling: Pulling) -> None:
    pulling.put(1)
    pulling.pull(100, 1 << 20)
    taken = pulling.queues.take(1, PATIENCE)
    assert taken is not None
    got: list[TakenMessages | None] = []
    takers = [threading.Thread(target=lambda: got.append(pulling.queues.take(1)), daemon=True) for _ in range(2)]
    for taker in takers:
        taker.start()
    until(lambda: len(pulling.queues._changed._waiters) == 2)
    pulling.queues.give_back(taken, 0.5)
    until(lambda: len(pulling.queues._changed._waiters) == 2)
    pulling.store.create_topic("t", 2)
    pulling.queues.add(ProcessQueue(Queue("t", 1), 0, 100, 1 << 20), pulling.puller.pull)
    pulling.store.put(Message("t", b"x", queue_id=1))
    until(lambda: len(got) == 2)


def test_finished_messages_of_a_removed_queue_do_not_count(pulling: Pulling) -> None:
    pulling.put(10)
    queue = pulling.pull(100, 1 << 20)
    taken = pulling.queues.take(5, PATIENCE)
    assert taken is not None
    assert pulling.queues.in_hand(queue) == [taken.handful]
    assert pulling.queues.forget(lambda: {QUEUE: 3}) == {QUEUE: 3}
    pulling.queues.done(taken)
    assert pulling.queues.in_hand(queue) == []
    assert pulling.positions == {}
    assert pulling.queues.take(5, 0.05) is None


def test_removed_full_queue_is_freed(pulling: Pulling) -> None:
    def removed() -> ref[ProcessQueue]:
        queue = pulling.pull(5, 1 << 20)
        until(lambda: queue.is_full)
        pulling.queues.remove(queue)
        return ref(queue)

    pulling.put(10)
    gone = removed()
    assert pulling.queues.take(1, 0.0) is None  # the queue would be next in turn
    until(lambda: gone() is None)
