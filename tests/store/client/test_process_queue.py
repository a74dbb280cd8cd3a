"""Compare a queue's messages in hand with a model, for any order of taking, finishing and giving back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.client.process_queue import Handful, OrderlyQueue, ProcessQueue
from store.client.received_messages import Columns
from store.model.log_protocol import Queue

QUEUE = Queue("t", 0)
MAX_COUNT, MAX_BYTES = 20, 60


def columns(offsets: list[int]) -> Columns:
    """Messages whose bodies have offset modulo 5 bytes."""
    bodies = [b"x" * (offset % 5) for offset in offsets]
    return Columns(
        QUEUE,
        pa.record_batch(
            {"queueOffset": pa.array(offsets, pa.int64()), "body": bodies, "reconsumeTimes": [0] * len(offsets)}
        ),
    )


def offsets(handful: Handful) -> list[int]:
    return [message.queue_offset for message in handful.messages]


class Machine(RuleBasedStateMachine):
    """waiting, in_hand, finished: message offsets. The tested object may keep no others."""

    kind: type[ProcessQueue] = ProcessQueue

    @initialize(begin=st.integers(0, 5))
    def begin(self, begin: int) -> None:
        self.queue = self.kind(QUEUE, begin, MAX_COUNT, MAX_BYTES)
        self.now = 0.0
        self.known: list[int] = []
        self.out: list[Handful] = []
        self.back: list[tuple[float, list[int]]] = []
        self.fresh: list[int] = []
        self.finished: set[int] = set()
        self.tries: dict[int, int] = {}

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=12))
    def pull(self, gaps: list[int]) -> None:
        found, at = [], self.queue.pulled
        for gap in gaps:
            found.append(at + gap - 1)
            at += gap
        self.queue.put(columns(found))
        self.known += found
        self.fresh += found

    @rule(more=st.integers(1, 9))
    def pull_what_does_not_match(self, more: int) -> None:
        self.queue.pulled += more

    @rule(most=st.integers(1, 7))
    def take(self, most: int) -> None:
        handful = self.queue.take(most, self.now)
        assert (handful is not None) == self.may_take()
        if handful is None:
            return
        taken = offsets(handful)
        assert len(taken) >= 1
        due = [entry for entry in self.back if entry[0] <= self.now]
        if due:
            assert taken == due[0][1]
            self.back.remove(due[0])
        else:
            assert taken == self.fresh[: len(taken)]
            assert len(taken) <= most
            self.fresh = self.fresh[len(taken) :]
        assert [message.reconsume_times for message in handful.messages] == [self.tries.get(at, 0) for at in taken]
        self.out.append(handful)

    def may_take(self) -> bool:
        return any(at <= self.now for at, _ in self.back) or bool(self.fresh)

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 99), count=st.none() | st.integers(0, 7))
    def done(self, which: int, count: int | None) -> None:
        handful = self.out[which % len(self.out)]
        before = offsets(handful)
        self.queue.done(handful, count)
        self.finished |= set(before[:count])
        if count is None or count >= len(before):
            self.out.remove(handful)
        else:
            assert offsets(handful) == before[count:]

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 99), later=st.integers(0, 3))
    def give_back(self, which: int, later: int) -> None:
        handful = self.out.pop(which % len(self.out))
        self.back.append((self.now + later, offsets(handful)))
        for offset in offsets(handful):
            self.tries[offset] = self.tries.get(offset, 0) + 1
        handful.tried()
        self.queue.give_back(handful, self.now + later)

    @rule()
    def time_passes(self) -> None:
        self.now += 1

    @invariant()
    def the_position_is_the_lowest_not_done(self) -> None:
        left = [offset for offset in self.known if offset not in self.finished]
        assert self.queue.position == min(left, default=self.queue.pulled)

    @invariant()
    def it_is_known_what_is_in_hand(self) -> None:
        assert sorted(map(offsets, self.queue.in_hand)) == sorted(map(offsets, self.out))

    @invariant()
    def what_is_not_acknowledged_is_weighed(self) -> None:
        left = [offset for offset in self.known if offset not in self.finished]
        assert len(left) <= self.queue.count <= sum(offset >= self.queue.position for offset in self.known)
        assert sum(offset % 5 for offset in left) <= self.queue.bytes
        if not left:
            assert self.queue.bytes == 0
        assert self.queue.is_full == (self.queue.count >= MAX_COUNT or self.queue.bytes >= MAX_BYTES)
        assert self.queue.room == max(0, MAX_COUNT - self.queue.count)
        assert not (self.queue.is_full and self.queue.is_half_empty)

    @invariant()
    def it_says_when_there_is_more(self) -> None:
        assert (self.queue.ready_at() <= self.now) == self.may_take()


class OrderlyMachine(Machine):
    kind = OrderlyQueue

    def may_take(self) -> bool:
        if self.back:
            return self.back[0][0] <= self.now
        return bool(self.fresh) and not self.out

    @invariant()
    def one_handful_is_out(self) -> None:
        assert len(self.out) + len(self.back) <= 1


TestProcessQueue = Machine.TestCase
TestOrderlyQueue = OrderlyMachine.TestCase
TestProcessQueue.settings = TestOrderlyQueue.settings = settings(max_examples=30)


@pytest.mark.parametrize("kind", [ProcessQueue, OrderlyQueue])
def test_stopped_queue_gives_nothing_but_takes_finished_ones(kind: type[ProcessQueue]) -> None:
    queue = kind(QUEUE, 0, MAX_COUNT, MAX_BYTES)
    queue.put(columns([0, 1, 2]))
    queue.put(columns([3]))
    first = queue.take(2, 0.0)
    assert first is not None
    queue.stop()
    assert queue.take(1, 1.0) is None
    assert queue.ready_at() == float("inf")
    assert (queue.position, queue.count, queue.bytes) == (0, 2, 1)
    assert queue.in_hand == [first]
    queue.done(first)
    assert (queue.position, queue.count, queue.bytes) == (2, 0, 0)


@pytest.mark.parametrize("kind", [ProcessQueue, OrderlyQueue])
def test_message_given_back_to_a_stopped_queue_is_unfinished(kind: type[ProcessQueue]) -> None:
    queue = kind(QUEUE, 0, MAX_COUNT, MAX_BYTES)
    queue.put(columns([0, 1, 2]))
    first = queue.take(1, 0.0)
    assert first is not None
    queue.give_back(first, 0.0)
    queue.stop()
    assert queue.take(1, 1.0) is None
    assert queue.position == 0
    assert queue.in_hand == []


@given(done=st.permutations(range(8)))
def test_position_is_the_first_unfinished_message(done: list[int]) -> None:
    queue = ProcessQueue(QUEUE, 0, 100, 1000)
    queue.put(columns([*range(8)]))
    handfuls = [queue.take(1, 0.0) for _ in range(8)]
    for number, offset in enumerate(done):
        handful = handfuls[offset]
        assert handful is not None
        queue.done(handful)
        assert queue.position == next(at for at in range(9) if at not in done[: number + 1])
