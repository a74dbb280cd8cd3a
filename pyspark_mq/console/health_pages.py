"""Pages of a store's health (files, retention, archive, background `verify`) and of delayed messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyspark_mq.console.messages import MessageLine, readable
from pyspark_mq.console.site import Parameters, Site, redirect
from pyspark_mq.stats.measures import LogFiles, log_files
from store import MessageStore, StoreError, message_filter
from store.archive.of_store import ArchiveSettings, remembered
from store.format.delayed import LEVELS
from store.format.layout import PROPERTY_TIMER_OUT, SCHEDULE_DELAYS_MS, SCHEDULE_TOPIC, TIMER_TOPIC
from store.model.log_protocol import Boundary, Log, Queue, QueueRange, ReadSpec
from store.upkeep.findings import Report
from store.upkeep.retention import Cleaned
from store.upkeep.verify import verify

_NEXT = 20  # delayed messages shown for each level
_TIMERS = 10_000  # newest timer messages that are searched


@dataclass(frozen=True)
class StoreHealth:
    """A store's state. retention: what `pyspark-mq clean` would delete now. archive: its `url` is "" without one."""

    files: LogFiles
    retention: Cleaned
    reserved_hours: int
    archive: ArchiveSettings
    oldest: int | None  # ms since 1970


def health_of(directory: str) -> StoreHealth:
    with MessageStore.open(directory, create=False, read_only=True) as store:
        oldest = [
            found.store_timestamp
            for topic, queues in store.topics().items()
            for found in store.fingerprints(
                {
                    queue: first
                    for queue, (first, end) in store.bounds(Queue(topic, number) for number in range(queues)).items()
                    if first < end
                }
            ).values()
        ]
        return StoreHealth(
            log_files(store),
            store.clean(asked=True, dry_run=True),
            store.config.fileReservedTime,
            remembered(Path(store.path)),
            min(oldest, default=None),
        )


class Verification:
    """Runs `verify` in a background thread. During a run, `start` does nothing.

    done, total: bytes of the log, of the current or last run.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.done = self.total = 0
        self.report: Report | None = None
        self.failure: str | None = None
        self.ended: float | None = None  # seconds since 1970
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 0

    def start(self) -> None:
        with self._lock:
            if not self.is_running:
                self.done = self.total = 0
                self._thread = threading.Thread(target=self._run, name="mq-verify", daemon=True)
                self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        self.report = self.failure = None
        try:
            self.report = verify(self.directory, self._progress)
        except (StoreError, OSError) as error:
            self.failure = str(error)
        self.ended = time.time()

    def _progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total


@dataclass(frozen=True)
class DelayedMessages:
    """Delayed messages that are not due yet.

    seconds: the delay of a level, None for messages with an arbitrary time. lines: the messages due first.
    """

    queue: Queue
    seconds: int | None
    waiting: int
    lines: Sequence[tuple[datetime | None, MessageLine]]


def delayed(log: Log) -> list[DelayedMessages]:
    """Return the pending delayed messages by level, without empty levels.

    Of messages with an arbitrary time, only the newest 10,000 are counted.
    """
    topics, now, found = log.topics(), round(time.time() * 1000), list[DelayedMessages]()
    for queue, has in log.bounds(topics.get(SCHEDULE_TOPIC, ())).items():
        if queue.queue_id >= LEVELS:
            continue
        delay = SCHEDULE_DELAYS_MS[queue.queue_id]
        first = log.offsets_by_time([queue], now - delay, Boundary.LOWER).get(queue, has.max_offset)
        if first < has.max_offset:
            wanted = QueueRange(queue, first, min(has.max_offset, first + _NEXT))
            lines = readable(log, wanted, message_filter("*"))
            due = [(line.stored and line.stored + timedelta(milliseconds=delay), line) for line in lines]
            found.append(DelayedMessages(queue, delay // 1000, has.max_offset - first, due))
    for queue, has in log.bounds(topics.get(TIMER_TOPIC, ())).items():
        slots = _timers_after(
            log, QueueRange(queue, max(has.min_offset, has.max_offset - _TIMERS), has.max_offset), now
        )
        due = [
            (datetime.fromtimestamp(slot / 1000, UTC), line)
            for slot, at in slots[:_NEXT]
            for line in readable(log, QueueRange(queue, at, at + 1), message_filter("*"))
        ]
        if slots:
            found.append(DelayedMessages(queue, None, len(slots), due))
    return found


def _timers_after(log: Log, wanted: QueueRange, now: int) -> list[tuple[int, int]]:
    """Return time (ms) and offset of each message due after `now`, sorted."""
    due = list[tuple[int, int]]()
    for batch in log.scan(wanted, ReadSpec(("queueOffset", "properties"), message_filter("*"))):
        for row in batch.to_pylist():
            slot = dict(row["properties"] or ()).get(PROPERTY_TIMER_OUT, "")
            if slot.isdecimal() and int(slot) > now:
                due.append((int(slot), row["queueOffset"]))
    return sorted(due)


def record_of(directory: str, queue: Queue, offset: int) -> bytes:
    """Return the raw record of a message that cannot be decoded, b"" if the record cannot be read."""
    with MessageStore.open(directory, create=False, read_only=True) as store:
        try:
            found = store.get_message("", queue.topic, queue.queue_id, offset, 1, as_records=True)
            size = int(store.sizes(queue.topic, queue.queue_id, offset, offset + 1)[0])
            return b"".join(map(bytes, found.records))[:size]
        except StoreError:
            return b""


class HealthPages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._verification = None if site.address.directory is None else Verification(site.address.directory)
        self.parts: Mapping[str, Callable[[Parameters], str]] = {
            "verification": self._verification_part,
        }
        self.routes = [
            Route("/delayed", self.delayed),
            Route("/health", self.health),
            Route("/health/verify", self.verify, methods=["POST"]),
        ]

    def delayed(self, _request: Request) -> Response:
        return self._site.page("delayed.html", at="delayed", found=delayed(self._site.log))

    def health(self, request: Request) -> Response:
        health = None if self._site.address.directory is None else health_of(self._site.address.directory)
        return self._site.page(
            "health.html", at="health", health=health, part=self._verification_part(request.query_params)
        )

    def _verification_part(self, _parameters: Parameters) -> str:
        return self._site.part("_verification.html", verification=self._verification)

    async def verify(self, request: Request) -> Response:
        await self._site.own_form(request, changes=False)
        if self._verification is not None:
            self._verification.start()
        return redirect("/health")
