from __future__ import annotations

import math
import threading
import time

import pytest

from store import TagFilter, message_filter
from store.model.log_protocol import (
    Log,
    MessageFilter,
    QueueRange,
)
from store.read.filters import EVERYTHING
from tests.logs.made import A0, A1, B0, LONG, LogKind, Making, messages, numbers


class HoldingTests(LogKind):
    def test_wait_returns_at_once_if_messages_exist(self, log: Log) -> None:
        begin = time.monotonic()
        log.wait({A0: 9, B0: 3}, LONG)
        assert time.monotonic() - begin < LONG / 2

    def test_wait_returns_when_a_message_arrives(self, making: Making, log: Log) -> None:
        arrival = threading.Timer(0.1, making.append, (messages(A1, range(1)),))
        arrival.start()
        begin = time.monotonic()
        while log.bounds([A1])[A1].max_offset == 0:
            log.wait({A0: 10, A1: 0}, LONG)
        assert time.monotonic() - begin < LONG / 2
        arrival.join()

    def test_wait_returns_at_its_timeout(self, log: Log) -> None:
        log.wait({A0: 10, self.queue("nowhere", 0): 0}, 0.05)
        log.wait({}, 0.05)

    @pytest.mark.parametrize("seconds", [-1.0, 0.3])
    def test_hold_gives_existing_messages_even_after_the_deadline(self, log: Log, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with log.hold({A0: 4, A1: 0, B0: 3}, deadline, EVERYTHING, LONG) as held:
            assert list(held) == [QueueRange(A0, 4, 10)]

    def test_hold_gives_arrivals_until_its_deadline(self, making: Making, log: Log) -> None:
        reached = {A0: 8, A1: 0}
        seen = {A0: [], A1: []}

        def arrive() -> None:
            for n in range(3):
                making.append(messages(A1, range(n, n + 1)))
                time.sleep(0.1)

        arrival = threading.Thread(target=arrive)
        arrival.start()
        with log.hold(dict(reached), time.monotonic() + LONG, EVERYTHING, LONG) as held:
            while reached != {A0: 10, A1: 3}:
                there = next(held)
                assert there is not None
                assert there.start == reached[there.queue] < there.end
                seen[there.queue] += numbers(log, there)
                reached[there.queue] = there.end
                held.again(there.queue, there.end)
        arrival.join()
        assert seen == {A0: [8, 9], A1: [0, 1, 2]}

    def test_again_replaces_the_position_of_a_held_queue(self, making: Making, log: Log) -> None:
        with log.hold({A0: 10}, time.monotonic() + LONG, EVERYTHING, LONG) as held:
            held.again(A0, 4)
            assert next(held) == QueueRange(A0, 4, 10)
            making.append(messages(A0, range(10, 12)))
            assert list(held) == []

    def test_returned_queue_is_no_longer_held(self, making: Making, log: Log) -> None:
        with log.hold({A0: 9}, time.monotonic() + LONG, EVERYTHING, LONG) as held:
            assert next(held) == QueueRange(A0, 9, 10)
            making.append(messages(A0, range(10, 12)))
            assert list(held) == []

    def test_no_queue_is_held_again_after_the_deadline(self, making: Making, log: Log) -> None:
        with log.hold({A0: 9}, time.monotonic() - 1, EVERYTHING, LONG) as held:
            assert next(held) == QueueRange(A0, 9, 10)
            making.append(messages(A0, range(10, 12)))
            held.again(A0, 10)
            assert list(held) == []

    def test_hold_gives_none_after_a_quiet_period(self, log: Log) -> None:
        with log.hold({A0: 10}, time.monotonic() + LONG, EVERYTHING, 0.05) as held:
            assert [next(held), next(held)] == [None, None]

    def test_another_thread_wakes_a_hold(self, log: Log) -> None:
        with log.hold({A0: 10}, math.inf, EVERYTHING, LONG) as held:
            waker = threading.Timer(0.1, held.wake)
            waker.start()
            begin = time.monotonic()
            assert next(held) is None
            held.wake()
            assert next(held) is None
            assert time.monotonic() - begin < LONG / 2
            waker.join()

    def test_new_queue_can_be_held(self, making: Making, log: Log) -> None:
        with log.hold({}, math.inf, EVERYTHING, LONG) as held:
            held.again(A0, 9)
            held.again(A1, 0)
            assert next(held) == QueueRange(A0, 9, 10)
            making.append(messages(A1, range(1)))
            assert next(held) == QueueRange(A1, 0, 1)

    @pytest.mark.parametrize("only_b", [TagFilter.parse("B"), message_filter("TAGS = 'B'", "SQL92")])
    def test_held_queue_gives_matching_messages(self, making: Making, log: Log, only_b: MessageFilter) -> None:
        with log.hold({A0: 10}, time.monotonic() + LONG, only_b, LONG) as held:
            making.append(messages(A0, range(10, 11)))
            making.append(messages(A0, range(11, 12)))
            reached, found = 10, []
            while not found:
                there = next(held)
                assert there is not None
                assert there.start == reached
                found, reached = numbers(log, there, message_filter=only_b), there.end
                held.again(A0, reached)
        assert found == [11]
