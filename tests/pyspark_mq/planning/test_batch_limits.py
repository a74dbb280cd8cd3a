from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.planning.batch_limits import fit, limit_ranges, pack, share, split
from store.model.log_protocol import Queue, QueueRange

backlogs = st.lists(st.integers(0, 2**62), max_size=12)
turns = st.integers(0, 1000)
queue_sizes = st.lists(st.lists(st.integers(91, 5000), max_size=30), max_size=6)


def arrays(sizes: list[list[int]]) -> list[np.ndarray]:
    return [np.array(s, np.int64) for s in sizes]


@pytest.mark.parametrize(
    ("limit", "backlog", "turn", "shares"),
    [
        (10, [], 0, []),
        (10, [3, 4], 0, [3, 4]),
        (10, [100, 100], 0, [5, 5]),
        (100, [300, 100], 0, [75, 25]),
        (100, [1, 1_000_000], 0, [1, 99]),
        (7, [10, 10, 10], 0, [3, 2, 2]),
        (2, [5, 0, 5, 5], 0, [1, 0, 1, 0]),
        (2, [5, 0, 5, 5], 1, [1, 0, 0, 1]),
        (2, [5, 0, 5, 5], 2, [0, 0, 1, 1]),
    ],
)
def test_share_of_each_queue(limit: int, backlog: list[int], turn: int, shares: list[int]) -> None:
    assert share(limit, backlog, turn) == shares


@given(st.integers(1, 2**62), backlogs, turns)
def test_shares_use_the_limit_and_never_exceed_it(limit: int, backlog: list[int], turn: int) -> None:
    shares = share(limit, backlog, turn)
    assert sum(shares) == min(limit, sum(backlog))
    assert all(0 <= s <= b for s, b in zip(shares, backlog, strict=True))
    waiting = sum(b > 0 for b in backlog)
    if limit >= waiting:
        assert all(s > 0 for s, b in zip(shares, backlog, strict=True) if b > 0)


@given(st.integers(1, 2**40), st.lists(st.integers(1, 2**40), min_size=1, max_size=12))
def test_shares_are_in_proportion(limit: int, backlog: list[int]) -> None:
    if not len(backlog) <= limit < sum(backlog):
        return
    for mine, size in zip(share(limit, backlog), backlog, strict=True):
        proportional = 1 + (limit - len(backlog)) * (size - 1) / (sum(backlog) - len(backlog))
        assert abs(mine - proportional) <= 1 + proportional * 1e-9


@given(st.integers(1, 5), st.lists(st.integers(1, 10), min_size=1, max_size=12))
def test_every_queue_is_served_in_turn(limit: int, backlog: list[int]) -> None:
    served = np.sum([share(limit, backlog, turn) for turn in range(len(backlog))], axis=0)
    assert all(served > 0)


@pytest.mark.parametrize(
    ("limit", "sizes", "turn", "counts"),
    [
        (1000, [[], []], 0, [0, 0]),
        (1000, [[100] * 3, [200] * 2], 0, [3, 2]),
        (1000, [[100] * 9, [100] * 9], 0, [5, 5]),
        (1000, [[400, 400, 400], [90]], 0, [2, 1]),
        (1000, [[5000, 100], [100] * 3], 0, [1, 0]),
        (1000, [[5000, 100], [100] * 3], 1, [0, 3]),
        (1000, [[1000], [1000]], 0, [1, 0]),
    ],
)
def test_messages_that_fit_a_limit_of_bytes(limit: int, sizes: list[list[int]], turn: int, counts: list[int]) -> None:
    assert fit(limit, arrays(sizes), [sum(s) for s in sizes], turn) == counts


@given(st.integers(1, 20_000), queue_sizes, turns)
def test_bytes_never_exceed_the_limit(limit: int, sizes: list[list[int]], turn: int) -> None:
    counts = fit(limit, arrays(sizes), [sum(s) for s in sizes], turn)
    taken = [s[:n] for s, n in zip(sizes, counts, strict=True)]
    used = sum(map(sum, taken))
    assert used <= limit or sum(counts) == 1
    assert sum(counts) > 0 or not any(sizes)
    if used <= limit:
        assert all(used + s[n] > limit for s, n in zip(sizes, counts, strict=True) if n < len(s))


@given(st.integers(1, 5000), st.lists(st.lists(st.integers(91, 9000), min_size=1), min_size=1, max_size=6))
def test_first_message_of_every_queue_is_served_in_turn(limit: int, sizes: list[list[int]]) -> None:
    backlog = [sum(s) for s in sizes]
    served = np.sum([fit(limit, arrays(sizes), backlog, turn) for turn in range(len(sizes))], axis=0)
    assert all(served > 0)


@given(
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 20_000),
    st.lists(st.lists(st.integers(91, 5000), max_size=40), max_size=5),
    turns,
)
def test_both_limits_hold(messages: int | None, limit_bytes: int | None, sizes: list[list[int]], turn: int) -> None:
    ranges = [QueueRange(Queue("t", i), 10, 10 + len(s)) for i, s in enumerate(sizes)]

    def sizes_of(r: QueueRange) -> np.ndarray:
        return np.array(sizes[r.queue.queue_id][r.start - 10 : r.end - 10], np.int64)

    limited = limit_ranges(ranges, messages, limit_bytes, sizes_of, turn)
    assert [r._replace(end=0) for r in limited] == [r._replace(end=0) for r in ranges]
    count = sum(r.length for r in limited)
    used = sum(sum(sizes[r.queue.queue_id][: r.length]) for r in limited)
    assert count <= (messages or 1000)
    assert limit_bytes is None or used <= limit_bytes or count == 1
    assert count > 0 or not any(sizes)


def test_sizes_of_a_long_backlog_are_not_all_read() -> None:
    asked: list[QueueRange] = []

    def sizes_of(r: QueueRange) -> np.ndarray:
        asked.append(r)
        return np.full(r.length, 100, np.int64)

    backlog = [QueueRange(Queue("t", 0), 7, 10**12), QueueRange(Queue("t", 1), 0, 5)]
    limited = limit_ranges(backlog, None, 10_000_000, sizes_of)
    assert limited == [QueueRange(Queue("t", 0), 7, 7 + 99_999), QueueRange(Queue("t", 1), 0, 1)]
    assert sum(r.length for r in asked) < 3 * 100_000
    sized = [r for r in asked if r.queue.queue_id == 0]
    assert [r.start for r in sized[1:]] == [r.end for r in sized[:-1]]


@pytest.mark.parametrize(
    ("lengths", "min_partitions", "max_records", "pieces"),
    [
        ([], 4, None, []),
        ([0, 5], None, None, [(1, 0, 5)]),
        ([10, 5], None, None, [(0, 0, 10), (1, 0, 5)]),
        ([10, 5], None, 4, [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 2), (1, 2, 5)]),
        ([9, 3], 4, None, [(0, 0, 3), (0, 3, 6), (0, 6, 9), (1, 0, 3)]),
        ([2, 1], 9, None, [(0, 0, 1), (0, 1, 2), (1, 0, 1)]),
        ([10], 3, 2, [(0, 0, 2), (0, 2, 4), (0, 4, 6), (0, 6, 8), (0, 8, 10)]),
    ],
)
def test_ranges_are_split_into_partitions(
    lengths: list[int],
    min_partitions: int | None,
    max_records: int | None,
    pieces: list[tuple[int, int, int]],
) -> None:
    ranges = [QueueRange(Queue("t", i), 0, n) for i, n in enumerate(lengths)]
    assert split(ranges, min_partitions, max_records) == [
        QueueRange(Queue("t", queue_id), start, end) for queue_id, start, end in pieces
    ]


@given(
    st.lists(st.integers(0, 1000), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 300),
)
def test_pieces_cover_every_message_once(
    lengths: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [QueueRange(Queue("t", i), 7, 7 + n) for i, n in enumerate(lengths)]
    pieces = split(ranges, min_partitions, max_records)
    messages = [(p.queue.queue_id, offset) for p in pieces for offset in range(p.start, p.end)]
    assert messages == [(r.queue.queue_id, offset) for r in ranges for offset in range(r.start, r.end)]
    assert all(0 < p.length <= (max_records or 1000) for p in pieces)
    assert len(pieces) >= min(min_partitions or 0, sum(lengths))


def queues(*lengths: int) -> list[QueueRange]:
    return [QueueRange(Queue("t", queue_id), 5, 5 + length) for queue_id, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("lengths", "least", "most", "partitions"),
    [
        ((20,) * 6, 2, None, [[20, 20, 20], [20, 20, 20]]),
        ((90, 20, 30, 40), 2, None, [[90], [20, 30, 40]]),
        ((20, 30), 2, None, [[20], [30]]),
        ((20, 30), 8, None, [[20], [30]]),
        ((20,) * 6, 2, 50, [[20, 20], [20, 20], [20], [20]]),
        ((40_000,) * 5, 2, None, [[40_000, 40_000], [40_000], [40_000], [40_000]]),
        ((1_000_000,) * 3, 2, None, [[1_000_000]] * 3),
        ((), 2, None, []),
    ],
)
def test_small_pieces_share_partitions(
    lengths: tuple[int, ...], least: int, most: int | None, partitions: list[list[int]]
) -> None:
    packed = pack(queues(*lengths), least, most)
    assert sorted(sorted(r.length for r in partition) for partition in packed) == sorted(map(sorted, partitions))


@given(st.lists(st.integers(1, 100_000), max_size=40), st.integers(1, 10), st.none() | st.integers(100_000, 300_000))
def test_every_piece_is_in_one_partition(lengths: list[int], least: int, most: int | None) -> None:
    pieces = queues(*lengths)
    packed = pack(pieces, least, most)
    assert sorted(r for partition in packed for r in partition) == sorted(pieces)
    assert len(packed) >= min(least, len(pieces))
    assert most is None or all(sum(r.length for r in partition) <= most for partition in packed)
    assert packed == pack(pieces, least, most)
