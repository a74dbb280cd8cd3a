"""Periodic samples of a log: sizes, rates and lags, with a history of an hour."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from pyspark_mq.stats.measures import GroupLag, group_lags
from store import OffsetLost, StoreClosed, StoreError, StoreReplaced, UnknownTopic
from store.format.layout import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from store.model.log_protocol import Bounds, Log, LogAddress, Queue, QueueRange

HISTORY_SECONDS = 3_600.0
_GROUP_RATE_SECONDS = 10.0  # members and queries commit every 5 s
_SIZES_AT_ONCE = 1_000_000
_PREFIXES = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX)


class QueueSize(NamedTuple):
    """The messages of a queue. size: bytes of their records, or None if the log cannot tell."""

    bounds: Bounds
    size: int | None


class TopicFigures(NamedTuple):
    """A topic in a sample. rate: messages per second. byte_rate: record bytes per second.

    Both are None in the first sample.
    """

    topic: str
    queues: int
    messages: int
    size: int | None
    rate: float | None
    byte_rate: float | None

    @property
    def is_system(self) -> bool:
        """Whether RocketMQ or a group created the topic, not a user."""
        return self.topic in SYSTEM_TOPICS or self.topic.startswith(_PREFIXES)


class GroupFigures(NamedTuple):
    """A consumer group in a sample. lag: unread messages. rate: messages read per second."""

    group: str
    topics: tuple[str, ...]
    lag: int
    rate: float | None


@dataclass(frozen=True)
class Sample:
    """The state of a log. at: seconds since 1970. offsets: committed, by group and queue."""

    at: float
    queues: Mapping[Queue, QueueSize] = field(default_factory=dict)
    topics: Mapping[str, TopicFigures] = field(default_factory=dict)
    groups: Mapping[str, GroupFigures] = field(default_factory=dict)
    offsets: Mapping[tuple[str, Queue], int] = field(default_factory=dict)


class Sampler:
    """Samples a log every `interval` seconds in a background thread, from `start` to `close`.

    It reopens the log if a RocketMQ broker takes its directory over or returns it (`StoreReplaced`).
    """

    def __init__(self, address: LogAddress, interval: float) -> None:
        self.address = address
        self.interval = interval
        self.log: Log = address.open()
        self.last = take_sample(self.log, None)
        self.failure: str | None = None  # the error of the last look
        self.history: deque[Sample] = deque([self.last], maxlen=round(HISTORY_SECONDS / interval))
        self._is_over = threading.Event()
        self._lock = threading.Lock()  # one sample at a time
        self._thread = threading.Thread(target=self._run, name="mq-console", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.log.close()

    def look(self) -> None:
        """Take a sample now. An error of the store is kept in `failure`, which pages show."""
        with self._lock:
            try:
                self.last, self.failure = take_sample(self.log, self.last, self._ten_seconds_ago()), None
                self.history.append(self.last)
            except (StoreReplaced, StoreClosed):
                self._reopen()
            except StoreError as error:
                self.failure = str(error)

    def _ten_seconds_ago(self) -> Sample:
        earliest = time.time() - _GROUP_RATE_SECONDS
        recent = list(takewhile(lambda sample: sample.at >= earliest, reversed(self.history)))
        return recent[-1] if recent else self.last

    def _reopen(self) -> None:
        before = self.log
        try:
            self.log = self.address.open()
            before.close()
        except StoreError as error:
            self.failure = str(error)

    def _run(self) -> None:
        while not self._is_over.wait(self.interval):
            self.look()


def take_sample(log: Log, before: Sample | None, groups_before: Sample | None = None) -> Sample:
    """Take a sample of a log.

    before: the previous sample; only changes since then are read. groups_before: the sample from which the rates of
    groups are computed; default: `before`.
    """
    now, queues, topics = time.time(), dict[Queue, QueueSize](), dict[str, TopicFigures]()
    seconds = None if before is None else max(0.001, now - before.at)
    for topic, names in sorted(log.topics().items()):
        earlier = {} if before is None else before.queues
        try:
            found = {
                queue: _size_of(log, queue, has, earlier.get(queue)) for queue, has in log.look(names).bounds.items()
            }
        except UnknownTopic:  # deleted concurrently
            continue
        queues |= found
        topics[topic] = _figures(topic, found, earlier, seconds)
    positions = list(group_lags(log))
    groups = {name: _of_group(name, positions, groups_before or before, now) for name in log.groups()}
    offsets = {(each.group, each.queue): each.offset for each in positions if each.offset is not None}
    return Sample(now, queues, topics, groups, offsets)


def _size_of(log: Log, queue: Queue, has: Bounds, before: QueueSize | None) -> QueueSize:
    start, size = has.min_offset, 0
    if before is not None and before.size is not None and before.bounds.min_offset == has.min_offset:
        start, size = min(before.bounds.max_offset, has.max_offset), before.size
    for first in range(start, has.max_offset, _SIZES_AT_ONCE):
        try:
            sizes = log.sizes(QueueRange(queue, first, min(first + _SIZES_AT_ONCE, has.max_offset)))
        except OffsetLost:  # deleted concurrently; the next sample has the new bounds
            return QueueSize(has, None)
        if sizes is None:
            return QueueSize(has, None)
        size += int(sizes.sum())
    return QueueSize(has, size)


def _figures(
    topic: str, found: Mapping[Queue, QueueSize], earlier: Mapping[Queue, QueueSize], seconds: float | None
) -> TopicFigures:
    messages = sum(each.bounds.max_offset - each.bounds.min_offset for each in found.values())
    sizes = [each.size for each in found.values()]
    size = None if None in sizes else sum(each or 0 for each in sizes)
    if seconds is None:
        return TopicFigures(topic, len(found), messages, size, None, None)
    both = [(each, earlier.get(queue, QueueSize(Bounds(0, 0), 0))) for queue, each in found.items()]
    rate = sum(max(0, new.bounds.max_offset - old.bounds.max_offset) for new, old in both) / seconds
    grown = sum(max(0, (new.size or 0) - (old.size or 0)) for new, old in both) / seconds
    return TopicFigures(topic, len(found), messages, size, rate, None if size is None else grown)


def _of_group(name: str, positions: list[GroupLag], before: Sample | None, now: float) -> GroupFigures:
    own = [each for each in positions if each.group == name]
    rate = None
    if before is not None and name in before.groups:
        moved = ((each.offset, before.offsets.get((name, each.queue))) for each in own)
        read = sum(max(0, new - old) for new, old in moved if new is not None and old is not None)
        rate = read / max(0.001, now - before.at)
    topics = tuple(dict.fromkeys(each.queue.topic for each in own))
    return GroupFigures(name, topics, sum(each.messages for each in own), rate)
