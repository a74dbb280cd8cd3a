"""Group commit: one thread appends for all, and each thread gets its own result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from store import Message, MessageRefused, MessageStore, PutStatus, StoreBusy, StoreConfig, StoreFull, StoreLocked
from store.append.appender import GroupCommit, WaitingAppend
from store.append.locks import StoreLock
from store.append.placing import Where
from store.disk.queues_in_log import Ranges, UnflushedEntries
from store.format.message import encode_messages
from store.format.records import EncodedRecord, Encoding
from tests.waiting import until

THREADS = 6
ENCODING = Encoding((bytes([127, 0, 0, 1]), 10911), max_message_size=1000)
FULL = StoreFull("no space")


def records(number: int) -> list[EncodedRecord]:
    return encode_messages([Message("t", str(number).encode())], [number], ENCODING, 0)


def number_of(each: WaitingAppend) -> int:
    return each.records[0].queue[1]


def tell(each: WaitingAppend) -> None:
    number = number_of(each)
    each.result = [Where(number, number, number)]


class Log:
    """Record appends; `fail` may raise for some, and `turns` lists the numbers that each turn appended."""

    def __init__(self, root: Path, timeout: float = 30.0) -> None:
        self.turns: list[list[int]] = []
        self.fail: Callable[[list[int]], Exception | None] = lambda numbers: None
        self.lock = StoreLock(root, timeout)
        self.group_commit = GroupCommit(self.lock, self.append)

    def append(self, waiting: list[WaitingAppend]) -> None:
        numbers = [number_of(each) for each in waiting]
        if error := self.fail(numbers):
            raise error
        self.turns.append(numbers)
        for each in waiting:
            tell(each)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    it = Log(tmp_path)
    yield it
    it.lock.close()


def at_once(log: Log, root: Path) -> list[Future[list[Where]]]:
    """Return the futures of THREADS appends that all waited before the first turn began."""
    other = StoreLock(root)
    with ThreadPoolExecutor(THREADS) as pool, other.held():
        begun = [pool.submit(log.group_commit.append, records(number)) for number in range(THREADS)]
        until(lambda: len(log.group_commit._waiting) == THREADS)
    other.close()
    return begun


def test_waiting_appends_are_appended_together(log: Log, tmp_path: Path) -> None:
    outcomes = at_once(log, tmp_path)
    (turn,) = log.turns
    assert sorted(turn) == [*range(THREADS)]
    assert [outcome.result() for outcome in outcomes] == [[Where(number, number, number)] for number in range(THREADS)]
    assert not log.group_commit._waiting


def test_error_is_raised_in_all_affected_threads(log: Log, tmp_path: Path) -> None:
    log.fail = lambda numbers: FULL
    assert {type(outcome.exception()) for outcome in at_once(log, tmp_path)} == {StoreFull}
    assert not log.group_commit._waiting


def test_transient_error_is_raised_in_one_thread(log: Log, tmp_path: Path) -> None:
    failures = [FULL]
    log.fail = lambda numbers: failures.pop() if failures else None
    outcomes = at_once(log, tmp_path)
    failed = [number for number, outcome in enumerate(outcomes) if outcome.exception() is FULL]
    assert len(failed) == 1
    assert sorted(number for turn in log.turns for number in turn) == [n for n in range(THREADS) if n not in failed]


def test_busy_resource_fails_the_append_at_once(log: Log) -> None:
    failures = [StoreBusy("no turn among groups")]
    log.fail = lambda numbers: failures.pop() if failures else None
    with pytest.raises(StoreBusy, match="among groups"):
        log.group_commit.append(records(1))
    assert log.turns == []


def test_refused_append_fails_alone(log: Log, tmp_path: Path) -> None:
    refusal = MessageRefused(PutStatus.MESSAGE_ILLEGAL, "too large for the log")
    log.fail = lambda numbers: refusal if 3 in numbers else None
    outcomes = at_once(log, tmp_path)
    assert [outcome.exception() for outcome in outcomes] == [refusal if n == 3 else None for n in range(THREADS)]
    assert sorted(number for turn in log.turns for number in turn) == [n for n in range(THREADS) if n != 3]


def test_append_that_timed_out_is_not_appended_later(tmp_path: Path) -> None:
    log, other = Log(tmp_path, timeout=0.05), StoreLock(tmp_path)
    with (
        other.held(),
        pytest.raises(
            StoreBusy,
            match=r"the store's lock was not free within 0.05 s .* This call changed nothing",
        ),
    ):
        log.group_commit.append(records(1))
    log.group_commit.append(records(2))
    assert log.turns == [[2]]
    log.lock.close()
    other.close()


def test_thread_gets_the_result_of_the_turn_that_appended_it(tmp_path: Path) -> None:
    """Even if the turn exceeds the thread's own timeout, or the store is closed during the turn."""
    log, is_at_work, go_on = Log(tmp_path, timeout=0.05), threading.Event(), threading.Event()

    def slow(numbers: list[int]) -> None:
        is_at_work.set()
        assert go_on.wait(30)
        time.sleep(0.1)

    log.fail = slow
    with ThreadPoolExecutor(3) as pool:
        with log.lock.held():
            begun = [pool.submit(log.group_commit.append, records(number)) for number in range(2)]
            until(lambda: len(log.group_commit._waiting) == 2)
        assert is_at_work.wait(30)
        closed = pool.submit(log.lock.close)
        go_on.set()
        assert [outcome.result() for outcome in begun] == [[Where(number, number, number)] for number in range(2)]
        closed.result()
    assert [sorted(turn) for turn in log.turns] == [[0, 1]]


def test_reentrant_append_is_never_appended(log: Log) -> None:
    def put_again(numbers: list[int]) -> None:
        with pytest.raises(StoreLocked, match="MessageStore is not re-entrant"):
            log.group_commit.append(records(2))

    log.fail = put_again
    log.group_commit.append(records(1))
    assert log.turns == [[1]]
    assert not log.group_commit._waiting


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_many_threads_put(tmp_path: Path, mode: str) -> None:
    config = StoreConfig(flushDiskType=mode, mappedFileSizeCommitLog=16 << 10)

    def put(store: MessageStore, thread: int) -> None:
        for number in range(10):
            some = [
                Message("ab"[(thread + each) % 2], f"{thread} {number} {each}".encode(), keys=(f"{thread}-{number}",))
                for each in range(thread % 3 + 1)
            ]
            for message, put in zip(some, store.put_many(some), strict=True):
                (stored,) = store.get_message("g", message.topic, put.queue_id, put.queue_offset, 1).messages
                assert (stored.body, stored.msg_id) == (message.body, put.msg_id)
            assert [found.body for found in store.query("a", f"{thread}-{number}")] == [
                message.body for message in some if message.topic == "a"
            ]

    with MessageStore.open(tmp_path / "mq", config=config) as store, ThreadPoolExecutor(THREADS) as pool:
        for topic in "ab":
            store.create_topic(topic, 2)
        for outcome in [pool.submit(put, store, thread) for thread in range(THREADS)]:
            outcome.result()


class InterruptedOnce(UnflushedEntries):
    """Interrupt the first publishing thread right after it published."""

    interrupts = 1

    def note(self, begin: int, end: int, ranges: Ranges) -> None:
        if self.interrupts:
            self.interrupts = 0
            raise KeyboardInterrupt
        super().note(begin, end, ranges)


def test_interrupted_thread_gives_the_others_their_results(tmp_path: Path) -> None:
    """Otherwise the other threads would append their messages twice."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        appender = store._writing()._appender
        appender._tail._unflushed = InterruptedOnce(store._log, store._queues)
        other = StoreLock(tmp_path)
        with ThreadPoolExecutor(THREADS) as pool, other.held():
            outcomes = [pool.submit(store.put, Message("t", str(number).encode())) for number in range(THREADS)]
            until(lambda: len(appender._group_commit._waiting) == THREADS)
        other.close()
        assert sum(isinstance(outcome.exception(), KeyboardInterrupt) for outcome in outcomes) == 1
        put = {outcome.result().queue_offset for outcome in outcomes if outcome.exception() is None}
        assert len(put) == THREADS - 1
        messages = store.get_message("g", "t", 0, 0).messages
        assert sorted(int(message.body) for message in messages) == [*range(THREADS)]
