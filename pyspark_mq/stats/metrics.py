"""Prometheus metrics of a store or a cluster, under RocketMQ's names.

Message counts are derived from the ends of queues and the offsets of groups. Only latencies are measured, by producers
and consumers of a store.

    prometheus_client.REGISTRY.register(StoreCollector(store))
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_mq.stats.measures import (
    Extent,
    Extents,
    GroupLag,
    Look,
    deliverer,
    extents,
    group_lags,
    log_files,
    look_at_cluster,
)
from store import MessageStore, OffsetLost, OffsetNotYet, UnknownTopic
from store.append.locks import Holder
from store.directory.directory_log import DirectoryLog
from store.disk.consumer_offsets import ConsumerOffsets
from store.disk.figures import (
    BUCKETS,
    DELIVERED,
    HELD,
    PROCESS_FAILED,
    PROCESSED,
    PUT,
    PUT_FAILED,
    REFUSED,
    SEND_FAILED,
    SENT,
    Figure,
    figures_in,
)
from store.format.layout import DLQ_TOPIC_PREFIX
from store.model.log_protocol import Fingerprint, Log, MissingBroker, Queue

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class StoreCollector:
    """A collector of `prometheus_client`. The store may be open read-only. Thread-safe.

    A scrape reads only the changes since the last one. The counters of bytes start with the bytes in the log at the
    first scrape.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._turn = threading.Lock()
        self._seen: Extents = {}
        self._bytes: Counter[str] = Counter()  # values of the byte counters, by topic

    def collect(self) -> Iterator[Metric]:
        with self._turn:
            found = extents(self._store, self._seen)
            for key, each in found.items():
                before = self._seen.get(key)
                if before is None:
                    self._bytes[each.topic] += each.size or 0
                else:
                    self._bytes[each.topic] += _new_bytes(self._store, before, each)
            self._seen = found
            delivers = deliverer(self._store)
            bytes_in = Counter(self._bytes)
        yield from _of_topics(found)
        yield _bytes_in(bytes_in)
        lags = _by_topic_and_group(group_lags(DirectoryLog(self._store)))
        yield from _of_groups(lags, len(ConsumerOffsets(Path(self._store.path)).names()))
        yield _of_ages(self._store, lags)
        yield from _of_log(self._store, found)
        yield _of_delivery(delivers)
        yield from _of_clients(figures_in(Path(self._store.path)))


class ClusterCollector:
    """A collector of `prometheus_client` for a cluster. Each scrape asks its brokers; see `ClusterAddress.open`.

    While a broker is missing, its queues count as at the last scrape. Thread-safe.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._turn = threading.Lock()
        self._last: Look | None = None

    def collect(self) -> Iterator[Metric]:
        with self._turn:
            now = self._last = look_at_cluster(self._log, self._last)
        yield from _of_topics(now.queues)
        yield from _of_groups(_by_topic_and_group(now.groups.values()), len({group for group, _ in now.groups}))
        yield _of_brokers(now.missing)


def _of_brokers(missing: Iterable[MissingBroker]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    text = "Seconds since a broker that does not answer was first missed"
    found = GaugeMetricFamily("rocketmq_missing_broker_seconds", text, labels=["broker"])
    for each in missing:
        found.add_metric([each.name], time.time() - each.since)
    return found


def _new_bytes(store: MessageStore, before: Extent, now: Extent) -> int:
    """Return the bytes of records appended between two extents of a queue, without those deleted since."""
    if now.first == before.first and now.end >= before.end:
        return (now.size or 0) - (before.size or 0)
    start = min(max(before.end, now.first), now.end)
    try:
        return int(store.sizes(now.topic, now.queue.queue_id, start, now.end).sum())
    except (UnknownTopic, OffsetLost, OffsetNotYet):  # retention ran again, or the topic was deleted
        return 0


def _of_topics(found: Extents) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    messages: Counter[str] = Counter()
    for each in found.values():
        messages[each.topic] += each.end
    total = CounterMetricFamily("rocketmq_messages_in", "Messages that were ever put", labels=["topic"])
    dead = CounterMetricFamily(
        "rocketmq_send_to_dlq_messages", "Messages that a group gave up", labels=["consumer_group"]
    )
    for topic, count in messages.items():
        total.add_metric([topic], count)
        if topic.startswith(DLQ_TOPIC_PREFIX):
            dead.add_metric([topic.removeprefix(DLQ_TOPIC_PREFIX)], count)
    yield from (total, dead)
    yield GaugeMetricFamily("rocketmq_topic_number", "Topics", value=len(messages))


def _bytes_in(by_topic: Counter[str]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    size = CounterMetricFamily("rocketmq_throughput_in", "Bytes of records that were put", labels=["topic"])
    for topic, count in by_topic.items():
        size.add_metric([topic], count)
    return size


_Lags = dict[tuple[str, str], list[GroupLag]]  # by topic and group
_TOPIC_AND_GROUP = ["topic", "consumer_group"]


def _by_topic_and_group(lags: Iterable[GroupLag]) -> _Lags:
    found: _Lags = {}
    for lag in lags:
        found.setdefault((lag.queue.topic, lag.group), []).append(lag)
    return found


def _of_groups(lags: _Lags, groups: int) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    out = CounterMetricFamily(
        "rocketmq_messages_out", "Offsets that a group has committed, summed up", labels=_TOPIC_AND_GROUP
    )
    behind = GaugeMetricFamily("rocketmq_consumer_lag_messages", "Messages not read yet", labels=_TOPIC_AND_GROUP)
    for key, queues in lags.items():
        out.add_metric(key, sum(lag.offset or 0 for lag in queues))
        behind.add_metric(key, sum(lag.messages for lag in queues))
    yield from (out, behind)
    yield GaugeMetricFamily("rocketmq_consumer_group_number", "Groups", value=groups)


def _of_ages(store: MessageStore, lags: _Lags) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    text = "Milliseconds since the first message not read was stored"
    late = GaugeMetricFamily("rocketmq_consumer_lag_latency", text, labels=_TOPIC_AND_GROUP)
    for key, queues in lags.items():
        late.add_metric(key, max(_milliseconds_behind(store, lag) for lag in queues))
    return late


def _milliseconds_behind(store: MessageStore, lag: GroupLag) -> float:
    if not lag.messages:
        return 0.0
    first = _fingerprint(store, lag.queue, lag.end - lag.messages)
    return 0.0 if first is None else _age(first)


def _of_log(store: MessageStore, found: Extents) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    log = log_files(store)
    oldest = [_fingerprint(store, each.queue, each.first) for each in found.values() if each.messages]
    kept = max((_age(each) for each in oldest if each is not None), default=0.0)
    yield GaugeMetricFamily("rocketmq_storage_size", "Bytes that the log takes on the device", value=log.taken)
    yield GaugeMetricFamily(
        "rocketmq_storage_dispatch_behind_bytes", "Bytes in the log and not in the queues yet", value=log.dispatch_lag
    )
    yield GaugeMetricFamily(
        "rocketmq_storage_message_reserve_time", "Milliseconds since the oldest message was stored", value=kept
    )


def _of_delivery(delivers: Holder | None) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    text = "Whether the process is stopped that delivers delayed messages"
    return GaugeMetricFamily("rocketmq_delivery_stopped", text, value=delivers is not None and delivers.is_stopped)


def _of_clients(figures: Iterable[tuple[str, Figure]]) -> Iterator[Metric]:
    """Yield a series for each client: sums would decrease when a client closes and its counters are deleted."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    client, status = ["topic", "client_id"], ["invocation_status"]
    group = [*client, "consumer_group"]
    putting = HistogramMetricFamily(
        "rocketmq_put_cost_time", "Milliseconds that an append takes until it is seen", labels=client + status
    )
    sending = HistogramMetricFamily(
        "rocketmq_send_cost_time",
        "Milliseconds from sending to being seen",
        labels=client + status,
    )
    delivery = HistogramMetricFamily(
        "rocketmq_delivery_latency", "Milliseconds from being stored to being in a consumer's memory", labels=group
    )
    process = HistogramMetricFamily(
        "rocketmq_process_time", "Milliseconds that a call of a listener takes", labels=group + status
    )
    refused = CounterMetricFamily(
        "rocketmq_refused_connections", "Connections that a server closed, by why", labels=["reason", "client_id"]
    )
    held = GaugeMetricFamily("rocketmq_held_requests", "Requests that wait for messages", labels=group)
    families = {
        PUT: (putting, ["success"]),
        PUT_FAILED: (putting, ["failure"]),
        SENT: (sending, ["success"]),
        SEND_FAILED: (sending, ["failure"]),
        DELIVERED: (delivery, []),
        PROCESSED: (process, ["success"]),
        PROCESS_FAILED: (process, ["failure"]),
    }
    for client_id, each in figures:
        labels = [each.topic, client_id, *filter(None, [each.group])]
        if each.name == HELD:
            held.add_metric(labels, each.counts[0])
        elif each.name in REFUSED:
            refused.add_metric([each.name, client_id], each.counts[0])
        elif each.name in families:
            family, more = families[each.name]
            bounds = [*map(str, map(float, BUCKETS[each.name])), "+Inf"]
            buckets = list(zip(bounds, accumulate(each.counts), strict=True))
            family.add_metric(labels + more, buckets, each.total)
    yield from (putting, sending, delivery, process, held, refused)


def _fingerprint(store: MessageStore, queue: Queue, offset: int) -> Fingerprint | None:
    try:
        return store.fingerprint(queue.topic, queue.queue_id, offset)
    except (UnknownTopic, OffsetLost, OffsetNotYet):
        return None


def _age(message: Fingerprint) -> float:
    return max(0.0, time.time() * 1000 - message.store_timestamp)
