from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store import MessageStore, OffsetLost, UnknownTopic
from store.api.store_tables import record_bytes
from store.append.locks import Holder, process
from store.directory.directory_log import DirectoryLog
from store.disk.figures import BUCKETS, DELIVERS, HELD, READS, REFUSED, Figure, figures_in
from store.disk.segments import BLOCK_BYTES, list_files
from store.format.layout import COMMIT_LOG_DIR
from store.format.topic_names import is_internal_topic
from store.model.log_protocol import Bounds, Int64s, Log, MissingBroker, Positions, Queue


class Extent(NamedTuple):
    """Messages [first, end) of a queue.

    size: bytes of their records; None in a cluster, whose brokers do not report it.
    """

    queue: Queue
    first: int
    end: int
    size: int | None

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def messages(self) -> int:
        return self.end - self.first


class LogFiles(NamedTuple):
    """The files of the commit log.

    published: bytes appended since the log was created.
    length: total bytes of the segment files, which are sparse. taken: bytes that they occupy on disk.
    dispatch_lag: published bytes that have no queue entries yet, as RocketMQ defines it.
    """

    published: int
    segments: int
    length: int
    taken: int
    dispatch_lag: int


Extents = dict[Queue, Extent]


def extents(store: MessageStore, before: Extents) -> Extents:
    """Return the extent of each queue of a store. before: an earlier result; only records after it are read."""
    found: Extents = {}
    for topic, count in sorted(store.topics().items()):
        queues = [Queue(topic, number) for number in range(count)]
        with suppress(UnknownTopic):  # deleted concurrently
            found |= {queue: extent(store, queue, before.get(queue)) for queue in queues}
    return found


def extent(store: MessageStore, queue: Queue, before: Extent | None = None) -> Extent:
    """Return the extent of a queue. before: as in `extents`. Raises `UnknownTopic`."""
    topic, number = queue.topic, queue.queue_id
    while True:
        first, end = store.offsets(topic, number)
        start, size = first, 0
        if before is not None and before.size is not None and before.first == first and before.end <= end:
            start, size = before.end, before.size
        try:
            size += sum(record_bytes(store, topic, number, start, end))
            return Extent(queue, first, end, size)
        except OffsetLost:
            if store.min_offset(topic, number) <= first:  # so retention is not the cause
                raise


def log_files(store: MessageStore) -> LogFiles:
    confirm = store.confirm_offset
    files = [status for _, status in list_files(Path(store.path, COMMIT_LOG_DIR))]
    return LogFiles(
        confirm,
        len(files),
        sum(file.st_size for file in files),
        sum(file.st_blocks * BLOCK_BYTES for file in files),
        max(0, confirm - store.dispatched_offset),
    )


def deliverer(store: MessageStore) -> Holder | None:
    for owner, figure in figures_in(Path(store.path)):
        if figure.name == DELIVERS and figure.counts[0]:
            return process(int(owner.partition("-")[0]))
    return None


class GroupLag(NamedTuple):
    """The lag of a group in a queue.

    offset: the next one to read; None if the group never committed one. end: the queue's max offset. messages: unread.
    """

    group: str
    queue: Queue
    offset: int | None
    end: int
    messages: int


def group_lags(log: Log, group: str | None = None, topic: str | None = None) -> Iterator[GroupLag]:
    topics = log.topics()
    for reader, offsets in sorted(log.groups().items()):
        names = {queue.topic for queue in offsets} if group in (None, reader) else set()
        for name in sorted(name for name in names if name in topics and topic in (None, name)):
            yield from _lags_in(reader, offsets, log.look(topics[name]).bounds)


def _lags_in(group: str, offsets: Positions, bounds: Mapping[Queue, Bounds]) -> Iterator[GroupLag]:
    for queue, has in bounds.items():
        offset = offsets.get(queue)
        yield GroupLag(group, queue, offset, has.max_offset, has.unread(offset))


Clients = dict[tuple[str, str, str, str], Figure]  # by client, name, topic and group
_NOT_YET = (0,) * (1 + max(map(len, BUCKETS.values())))


class Latency(NamedTuple):
    """The latencies that clients measured for one topic.

    name: a key of BUCKETS. group: "" for a producer. times: the number of measurements. p50, p99: percentiles in ms.
    """

    name: str
    topic: str
    group: str
    times: int
    p50: float
    p99: float


def clients(root: Path) -> Clients:
    return {(client, each.name, each.topic, each.group): each for client, each in figures_in(root)}


def latencies(before: Clients, now: Clients) -> list[Latency]:
    """Return the latencies measured between two readings, sorted by name, topic and group."""
    found: dict[tuple[str, str, str], Int64s] = {}
    for key, each in now.items():
        if each.name in BUCKETS:
            counts = np.subtract(each.counts, before[key].counts if key in before else _NOT_YET)
            found[key[1:]] = found.get(key[1:], np.zeros_like(counts)) + counts
    return [
        Latency(*labels, int(counts.sum()), _quantile(labels[0], counts, 0.5), _quantile(labels[0], counts, 0.99))
        for labels, counts in sorted(found.items())
        if counts.any()
    ]


def held(now: Clients) -> Counter[tuple[str, str]]:
    """Count the held requests, by topic and group."""
    found: Counter[tuple[str, str]] = Counter()
    for each in now.values():
        if each.name == HELD:
            found[each.topic, each.group] += each.counts[0]
    return found


def refused(now: Clients) -> Counter[str]:
    """Count the connections that servers closed since their start, by reason."""
    return Counter({name: sum(each.counts[0] for each in now.values() if each.name == name) for name in REFUSED})


class RunningQuery(NamedTuple):
    """A Spark query of a consumer group.

    process: id of the Python process that plans the query's batches. Spark's driver starts it on its host.
    """

    group: str
    topics: tuple[str, ...]
    process: int


def running_queries(root: Path) -> list[RunningQuery]:
    """Return the queries on this host that run with a group of the store in `root`, sorted by group."""
    found: dict[tuple[str, str], set[str]] = {}
    for owner, each in figures_in(root):
        if each.name == READS:
            found.setdefault((each.group, owner), set()).add(each.topic)
    return [
        RunningQuery(group, tuple(sorted(topics)), int(owner.partition("-")[0]))
        for (group, owner), topics in sorted(found.items())
    ]


class Look(NamedTuple):
    """The numbers of a store or a cluster at one time.

    at: `time.monotonic()`. log: None for a cluster. deliverer: the process that delivers delayed messages.
    missing: brokers that do not answer; their queues are as at the last look.
    """

    at: float
    queues: Extents
    groups: dict[tuple[str, Queue], GroupLag]  # by group and queue
    log: LogFiles | None
    clients: Clients
    deliverer: Holder | None
    missing: tuple[MissingBroker, ...] = ()

    def without_internal_topics(self) -> Look:
        return self._replace(
            queues={key: each for key, each in self.queues.items() if not is_internal_topic(key.topic)}
        )


def look(store: MessageStore, before: Look | None) -> Look:
    """Return the current numbers of a store. before: an earlier look; only the changes since then are read."""
    groups = {(each.group, each.queue): each for each in group_lags(DirectoryLog(store))}
    queues = extents(store, before.queues if before else {})
    return Look(time.monotonic(), queues, groups, log_files(store), clients(Path(store.path)), deliverer(store))


def look_at_cluster(log: Log, before: Look | None) -> Look:
    """Return the current numbers of a cluster.

    before: an earlier look, from which queues of missing brokers are taken.
    """
    known = [] if before is None else before.queues  # name servers forget a broker that stops
    listed = chain.from_iterable(log.topics().values())
    bounds, missing = log.look(sorted({*listed, *known}))
    queues = {queue: Extent(queue, *has, None) for queue, has in bounds.items()}
    groups: dict[tuple[str, Queue], GroupLag] = {}
    for name, offsets in sorted(log.groups().items()):
        read = {queue.topic for queue in offsets}
        of_group = {queue: has for queue, has in bounds.items() if queue.topic in read}
        groups |= {(name, lag.queue): lag for lag in _lags_in(name, offsets, of_group)}
    if before is not None:
        queues = {queue: was for queue, was in before.queues.items() if queue.broker in missing} | queues
        groups = {key: was for key, was in before.groups.items() if key[1].broker in missing} | groups
    in_order = dict(sorted(queues.items())), dict(sorted(groups.items()))
    return Look(time.monotonic(), *in_order, None, {}, None, tuple(missing.values()))


def rate_in(before: Look | None, now: Look, queue: Extent) -> float | None:
    """Return messages appended per second between two looks, None if the first look lacks the queue."""
    earlier = None if before is None else before.queues.get(queue.queue)
    if before is None or earlier is None:
        return None
    return max(0, queue.end - earlier.end) / (now.at - before.at)


def rate_out(before: Look | None, now: Look, lag: GroupLag) -> float | None:
    """Return messages that a group read per second between two looks, None if a look lacks the group's offset."""
    earlier = None if before is None else before.groups.get((lag.group, lag.queue))
    if before is None or earlier is None or earlier.offset is None or lag.offset is None:
        return None
    return max(0, lag.offset - earlier.offset) / (now.at - before.at)


def _quantile(name: str, counts: Int64s, share: float) -> float:
    """Return a quantile of a histogram in ms, as if times were spread evenly within each bucket.

    It is at most the last bound.
    """
    bounds = (0, *BUCKETS[name])
    rank = share * counts.sum()
    for count, (low, high) in zip(counts, pairwise(bounds), strict=False):
        if rank <= count:
            return float(low + (high - low) * rank / count)
        rank -= count
    return float(bounds[-1])
