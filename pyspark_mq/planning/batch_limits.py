"""The size of a micro-batch within the limits of its query, and the split of its ranges into input partitions.

Every queue with messages gets at least one message, if the limit allows that. Otherwise the queues take turns. `turn`
counts the limited batches. It may start at any number, but must increase by one.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.stream_offsets import BatchStart
from pyspark_mq.options.source import SourceOptions
from store.model.log_protocol import Bounds, Int64s, Log, Positions, Queue, QueueRange

_SIZES_AT_ONCE = 1 << 14
_PACKED_MESSAGES = 1 << 16  # approximate size of a partition of several queues


class BatchLimits:
    """When the next micro-batch is due, and at which offsets it ends."""

    def __init__(self, log: Log, options: SourceOptions) -> None:
        self.target: Positions | None = None
        """The end of Trigger.AvailableNow."""
        self._log = log
        self._options = options
        self._turn: int | None = None  # of the last batch that was cut by a limit
        self._triggered = -math.inf  # time.monotonic() of the last batch; the first batch is due at once

    def least_messages(self) -> int:
        """Return how many messages the next batch must have at least.

        As in Kafka's source, a new `maxTriggerDelay` begins when one is over, even if no message has arrived.
        """
        if time.monotonic() - self._triggered >= self._options.max_trigger_delay_seconds:
            self.note_batch()
            return 1
        return self._options.min_offsets_per_trigger or 1

    def note_batch(self) -> None:
        self._triggered = time.monotonic()

    def end_of(self, batch: BatchStart, seen: Positions, bounds: Mapping[Queue, Bounds], *, once: bool) -> Positions:
        """Return the end of a batch, or `seen`, the end of the previous batch, if nothing is new.

        once: ignore limits.
        """
        ranges = self._available(batch, seen, bounds)
        if not batch.losses and {r.queue: r.end for r in ranges} == seen:
            return seen
        return {r.queue: r.end for r in (ranges if once else self._limited(ranges))}

    def _available(self, batch: BatchStart, seen: Positions, bounds: Mapping[Queue, Bounds]) -> list[QueueRange]:
        if self.target is None:
            return [QueueRange(queue, begin, bounds[queue].max_offset) for queue, begin in batch.begin.items()]
        return [
            QueueRange(queue, begin, max(begin, min(bounds[queue].max_offset, self.target.get(queue, 0))))
            for queue, begin in batch.begin.items()
            if queue in self.target or queue in seen
        ]

    def _limited(self, ranges: list[QueueRange]) -> list[QueueRange]:
        # The first turn depends on positions, so that a query that restarts after every batch serves all queues.
        self._turn = hash(tuple(r.start for r in ranges)) if self._turn is None else self._turn + 1
        options = self._options
        return limit_ranges(
            ranges, options.max_offsets_per_trigger, options.max_bytes_per_trigger, self._sizes, self._turn
        )

    def _sizes(self, r: QueueRange) -> Int64s:
        """Return record sizes in bytes, 0 for messages that were deleted after planning.

        The task reports their loss.
        """
        sizes = self._log.sizes(r)
        if sizes is None:
            raise OptionError(
                f"maxBytesPerTrigger: {self._options.address} does not tell the sizes of messages before they are "
                "read. Use maxOffsetsPerTrigger"
            )
        return sizes


def limit_ranges(
    ranges: Sequence[QueueRange],
    max_messages: int | None,
    max_bytes: int | None,
    sizes: Callable[[QueueRange], Int64s],
    turn: int = 0,
) -> list[QueueRange]:
    """Cut `ranges` so that both limits hold. Each range keeps its start, and may become empty.

    max_bytes: of records. sizes: returns sizes in bytes, int64, shape (messages,), for little more than fits into
    `max_bytes`.
    """
    limited = list(ranges)
    if max_messages is not None:
        limited = _first_messages(limited, share(max_messages, [r.length for r in limited], turn))
    if max_bytes is not None:
        known = [_first_sizes(r, max_bytes, sizes) for r in limited]
        # Estimate further messages by the average of the known sizes.
        backlog = [int(s.sum()) * r.length // max(len(s), 1) for r, s in zip(limited, known, strict=True)]
        limited = _first_messages(limited, fit(max_bytes, known, backlog, turn))
    return limited


def share(limit: int, backlog: Sequence[int], turn: int = 0) -> list[int]:
    """Share `limit` among queues, in proportion to their `backlog`. The shares add up to min(limit, sum(backlog)).

    A queue with a backlog gets at least 1, at most its backlog, and at most 1 off the exact proportion. If `limit` is
    below the number of these queues, `turn` decides which get 1 and which 0.
    """
    if sum(backlog) <= limit:
        return list(backlog)
    waiting = [i for i, size in enumerate(backlog) if size > 0]
    shares = [0] * len(backlog)
    if limit < len(waiting):
        for k in range(limit):
            shares[waiting[(turn * limit + k) % len(waiting)]] = 1
        return shares
    spare, rest = limit - len(waiting), sum(backlog) - len(waiting)
    remainders = []
    for i in waiting:
        more, remainder = divmod(spare * (backlog[i] - 1), rest)
        shares[i] = 1 + more
        remainders.append((-remainder, i))
    for _, i in sorted(remainders)[: limit - sum(shares)]:
        shares[i] += 1
    return shares


def fit(limit: int, sizes: Sequence[Int64s], backlog: Sequence[int], turn: int = 0) -> list[int]:
    """Return how many messages of each queue fit into `limit` bytes in total.

    sizes: of the first messages of each queue, in bytes. backlog: all waiting bytes of each queue. Each queue gets its
    first message if it fits, then the longest prefix that fits into its share. The rest of the limit goes to the queues
    in turn. If the first message of the first queue in turn exceeds `limit`, the batch has only this message, because
    it would otherwise wait forever.
    """
    counts = [0] * len(sizes)
    ends = [np.cumsum(s) for s in sizes]
    waiting = [i for i, s in enumerate(sizes) if len(s)]
    if not waiting:
        return counts
    first = turn % len(waiting)
    in_turn = waiting[first:] + waiting[:first]
    if sizes[in_turn[0]][0] > limit:
        counts[in_turn[0]] = 1
        return counts
    left, rest = limit, list(backlog)
    for i in in_turn:
        if (size := int(sizes[i][0])) <= left:
            counts[i] = 1
            left -= size
            rest[i] -= size
    for i, room in enumerate(share(left, rest, turn)):
        left -= _extend(counts, i, ends[i], room)
    for i in in_turn:
        left -= _extend(counts, i, ends[i], left)
    return counts


def split(ranges: Sequence[QueueRange], min_partitions: int | None, max_records: int | None) -> list[QueueRange]:
    """Cut ranges into pieces of at most `max_records` messages, and at least `min_partitions` pieces if possible.

    Pieces of a range differ by at most one message.
    """
    ranges = [r for r in ranges if r.length > 0]
    pieces = [-(-r.length // max_records) if max_records else 1 for r in ranges]
    missing = (min_partitions or 0) - sum(pieces)
    largest = [(-r.length / n, i) for i, (r, n) in enumerate(zip(ranges, pieces, strict=True)) if n < r.length]
    heapq.heapify(largest)
    while missing > 0 and largest:
        _, i = largest[0]
        pieces[i] += 1
        missing -= 1
        if pieces[i] < ranges[i].length:
            heapq.heapreplace(largest, (-ranges[i].length / pieces[i], i))
        else:
            heapq.heappop(largest)
    return [piece for r, n in zip(ranges, pieces, strict=True) for piece in _pieces(r, n)]


def pack(pieces: Sequence[QueueRange], least: int, max_records: int | None) -> list[tuple[QueueRange, ...]]:
    """Combine small pieces into partitions of at most `max_records` messages: each task has a high fixed cost.

    least: the lowest number of partitions, unless there are fewer pieces.
    """
    count = max(least, -(-sum(piece.length for piece in pieces) // _PACKED_MESSAGES))
    if len(pieces) <= count:
        return [(piece,) for piece in pieces]
    partitions: list[list[QueueRange]] = [[] for _ in range(count)]
    lightest = [(0, number) for number in range(count)]  # a heap
    for piece in sorted(pieces, key=lambda piece: -piece.length):
        messages, number = lightest[0]
        if messages and max_records is not None and messages + piece.length > max_records:
            partitions.append([piece])
        else:
            partitions[number].append(piece)
            heapq.heapreplace(lightest, (messages + piece.length, number))
    return [tuple(sorted(partition)) for partition in partitions if partition]


def _first_sizes(r: QueueRange, max_bytes: int, sizes: Callable[[QueueRange], Int64s]) -> Int64s:
    known = sizes(r._replace(end=min(r.end, r.start + _SIZES_AT_ONCE)))
    while len(known) < r.length and known.sum() < max_bytes:
        begin = r.start + len(known)
        known = np.concatenate([known, sizes(r._replace(start=begin, end=min(r.end, begin + len(known))))])
    return known


def _pieces(r: QueueRange, n: int) -> list[QueueRange]:
    cuts = [r.start + r.length * k // n for k in range(n + 1)]
    return [r._replace(start=cuts[k], end=cuts[k + 1]) for k in range(n)]


def _first_messages(ranges: Sequence[QueueRange], counts: Sequence[int]) -> list[QueueRange]:
    return [r._replace(end=r.start + n) for r, n in zip(ranges, counts, strict=True)]


def _extend(counts: list[int], i: int, ends: Int64s, room: int) -> int:
    """Add messages of queue `i` that fit into `room` bytes to `counts`. Return the bytes added."""
    used = int(ends[counts[i] - 1]) if counts[i] else 0
    counts[i] = int(np.searchsorted(ends, used + room, side="right"))
    return (int(ends[counts[i] - 1]) if counts[i] else 0) - used
