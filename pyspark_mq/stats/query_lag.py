"""The lag of streaming queries behind their log, as log lines and Prometheus metrics.

The lag in messages comes from the progress that Spark reports. Bytes and seconds need access to the log.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_mq.errors import CheckpointError
from pyspark_mq.offsets.stream_offsets import EpochOffset, StreamOffset, positions_from_json
from store import OffsetLost, OffsetNotYet, StoreError, UnknownTopic
from store.model.log_protocol import Log, LogAddress, LogLook, Positions, Queue, QueueRange, ReadSpec
from store.read.filters import TagFilter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_logger = logging.getLogger("pyspark_mq")
_SIZES_AT_ONCE = 1 << 16  # in longer ranges, the sizes of these messages give the average

Labels = tuple[str, ...]  # query, topic and queue; or query and broker
_FARTHEST = 3  # queues named in a log line


class QueryLag(NamedTuple):
    """The messages of one queue that a query has not read.

    bytes: of their records, estimated if there are many. seconds: since the first of them was stored.

    Both are None if unknown, for example while the queue's broker is missing. Then `messages` is the number after the
    last batch.
    """

    messages: int
    bytes: int | None = None
    seconds: float | None = None


def positions(source: Mapping[str, Any]) -> tuple[Positions, Positions] | None:
    """Return the read positions and the ends of queues. source: an entry of `sources` in Spark's progress of a query.

    Returns None for a source of another format, or before the first batch.
    """
    try:
        reached, ends = (json.loads(source[name]) for name in ("endOffset", "latestOffset"))
        epoch = EpochOffset.from_json(reached)  # a real-time batch, whose tasks are still reading
        begin = StreamOffset.from_json(reached).next if epoch is None else epoch.begin
        return begin, positions_from_json(ends)
    except (KeyError, TypeError, ValueError, CheckpointError):
        return None


def query_lags(source: Mapping[str, Any], log: Log | None = None) -> dict[Queue, QueryLag]:
    """Return the lag in each queue that a source reads; {} for a source of another format.

    source: as in `positions`. log: for bytes, seconds, and the first offsets. Without it, the lag of a queue that was
    never read starts at offset 0.
    """
    found = positions(source)
    if found is None:
        return {}
    reached, ends = found
    bounds, missing = LogLook({}, {}) if log is None else log.look(ends)
    first = {queue: there.min_offset for queue, there in bounds.items()}
    left = {
        queue: QueueRange(queue, min(max(reached.get(queue, 0), first.get(queue, 0)), end), end)
        for queue, end in ends.items()
    }
    return {queue: _lag(wanted, None if queue.broker in missing else log) for queue, wanted in left.items()}


def of_query(of_sources: Iterable[Mapping[Queue, QueryLag]]) -> dict[Queue, QueryLag]:
    """Return the lag of a query in each queue: the longest if several of its sources read the queue."""
    found: dict[Queue, QueryLag] = {}
    for by_queue in of_sources:
        for queue, lag in by_queue.items():
            found[queue] = max(found.get(queue, lag), lag, key=lambda each: each.messages)
    return found


def total(by_queue: Mapping[Queue, QueryLag]) -> QueryLag:
    """Return the sums of messages and bytes, and the longest time. A field is None if it is unknown for any queue."""
    sizes = [lag.bytes for lag in by_queue.values()]
    times = [lag.seconds for lag in by_queue.values() if lag.seconds is not None]
    return QueryLag(
        sum(lag.messages for lag in by_queue.values()),
        sum(size for size in sizes if size is not None) if None not in sizes else None,
        max(times, default=None) if len(times) == len(by_queue) else None,
    )


def described(by_queue: Mapping[Queue, QueryLag]) -> str:
    whole = total(by_queue)
    size = "" if whole.bytes is None else f", {whole.bytes:,} bytes"
    age = "" if whole.seconds is None else f", {whole.seconds:.1f} s"
    farthest = sorted(by_queue, key=lambda queue: -by_queue[queue].messages)[:_FARTHEST]
    queues = ", ".join(f"{queue} {by_queue[queue].messages:,}" for queue in farthest if by_queue[queue].messages)
    return f"{whole.messages:,} messages{size}{age}" + (f" ({queues})" if queues else "")


def _lag(left: QueueRange, log: Log | None) -> QueryLag:
    if not left.length:
        return QueryLag(0, 0, 0.0)
    if log is None:
        return QueryLag(left.length)
    try:
        return QueryLag(left.length, record_bytes(left, log), _seconds(left, log))
    except (UnknownTopic, OffsetLost, OffsetNotYet):  # the query itself reports this
        return QueryLag(left.length)


def record_bytes(left: QueueRange, log: Log) -> int | None:
    """Return the bytes of a range's records, estimated if the range is long; None if the log cannot tell."""
    sizes = log.sizes(left._replace(end=min(left.end, left.start + _SIZES_AT_ONCE)))
    return None if sizes is None else int(sizes.sum()) * left.length // len(sizes)


def _seconds(left: QueueRange, log: Log) -> float | None:
    first = left._replace(end=left.start + 1)
    for batch in log.scan(first, ReadSpec(("storeTimestamp",), TagFilter(None), check_crc=False)):
        stored: float = batch.column(0)[0].as_py().timestamp()
        return max(0.0, time.time() - stored)
    return None


class LagListener(StreamingQueryListener):
    """Reports the lag of each query of format "mq": `spark.streams.addListener(LagListener())`.

    It logs a line to `pyspark_mq` (INFO), at most every `every` seconds for each query. With `registry` (such as
    `prometheus_client.REGISTRY`) it also sets the gauges `mq_lag_messages`, `mq_lag_bytes` and `mq_lag_seconds`,
    labelled by query, topic and queue, and `mq_missing_broker`, 1 for each query and missing broker. They need
    `pip install 'pyspark-mq[prometheus]'`. The gauges of an ended query are removed.
    """

    def __init__(
        self, log: LogAddress | None = None, *, every: float = 10.0, registry: CollectorRegistry | None = None
    ) -> None:
        """Create a listener. It opens the log for the first progress, and closes it when the last query ends.

        log: the address of the log that the queries read. Without it, bytes, seconds and missing brokers are not
        reported.
        """
        self._address = log
        self._log: Log | None = None
        self._every = every
        self._told: dict[str, float] = {}  # `time.monotonic()` of the last log line, by query
        self._gauges = _gauges(registry) if registry is not None else []
        self._missing = _gauge_of_brokers(registry) if registry is not None else None
        self._series: dict[str, set[tuple[Gauge, Labels]]] = {}  # of each running query, by its id

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query = progress.name or str(progress.id)
        series: set[tuple[Gauge, Labels]] = set()
        by_queue, missing = self._looked(progress.sources)
        if self._missing is not None:
            for broker in missing:
                self._missing.labels(query, broker).set(1)
                series.add((self._missing, (query, broker)))
        if by_queue:
            for queue, lag in by_queue.items():
                labels = query, queue.topic, queue.name
                for gauge, value in zip(self._gauges, lag, strict=False):
                    if value is not None:
                        gauge.labels(*labels).set(value)
                        series.add((gauge, labels))
            now = time.monotonic()
            if now - self._told.get(query, -self._every) >= self._every:
                self._told[query] = now
                without = f"; missing brokers: {', '.join(missing)}" if missing else ""
                _logger.info("Query %s is behind by %s%s", query, described(by_queue), without)
        self._remove(self._series.get(str(progress.id), set()) - series)
        self._series[str(progress.id)] = series

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._told.clear()
        self._remove(self._series.pop(str(event.id), set()))
        if not self._series:
            self._close()

    def _remove(self, series: set[tuple[Gauge, Labels]]) -> None:
        for gauge, labels in series:
            gauge.remove(*labels)

    def _looked(self, sources: Sequence[Mapping[str, Any]]) -> tuple[dict[Queue, QueryLag], list[str]]:
        """Return the lags, and the names of the missing brokers."""
        if self._address is None:
            return of_query(map(query_lags, sources)), []
        if self._log is None:
            self._log = self._address.open()  # it stays open, because it warns of a missing broker once
        log = self._log
        try:
            by_queue = of_query(query_lags(source, log) for source in sources)
            return by_queue, [*log.look(by_queue).missing]
        except StoreError:  # such as `StoreReplaced`: the next progress opens the log again
            self._close()
            raise

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _gauges(registry: CollectorRegistry) -> list[Gauge]:
    """Return a gauge for each field of `QueryLag`, in the same order."""
    from prometheus_client import Gauge

    labels = ("query", "topic", "queue")
    return [
        Gauge("mq_lag_messages", "Messages that the query has not read yet", labels, registry=registry),
        Gauge("mq_lag_bytes", "Bytes of records that the query has not read yet", labels, registry=registry),
        Gauge("mq_lag_seconds", "Seconds since the first of these was stored", labels, registry=registry),
    ]


def _gauge_of_brokers(registry: CollectorRegistry) -> Gauge:
    from prometheus_client import Gauge

    return Gauge("mq_missing_broker", "1 for a broker that does not answer", ("query", "broker"), registry=registry)
