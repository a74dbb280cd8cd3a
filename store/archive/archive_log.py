"""`ArchiveLog`: an archive as a read-only `Log` without consumer groups. It polls for new messages."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import numpy as np
import pyarrow as pa

from store.archive.archived_queues import ArchivedQueues
from store.archive.comparison import StoreComparison
from store.archive.flat import MAX_STRETCH, FlatQueue
from store.archive.key_search import KeySearch
from store.archive.place import ArchivePlace, SnapshotPlace
from store.archive.served_records import named, records_of
from store.disk.config import StoreConfig
from store.format.columns import check_columns
from store.format.stored_message import StoredMessage, inflated, inflated_or_raw, stored_messages
from store.model.errors import (
    CorruptRecord,
    CorruptSegment,
    NoArchive,
    OffsetLost,
    ReadOnlyStore,
    UnknownTopic,
)
from store.model.log_protocol import (
    BATCH_BYTES,
    Boundary,
    Bounds,
    Fingerprint,
    Fingerprints,
    Int64s,
    LogLook,
    MessageFilter,
    NameFilter,
    Positions,
    Queue,
    QueueRange,
    ReadSpec,
)
from store.objects.urls import storage_options, without_secrets
from store.read.getting import RecordPieces
from store.read.query import KeyQuery, offset_by_time
from store.read.scan import CheckedBlock, Decoding, checked_blocks, scan_queue

POLL_SECONDS = 0.5


class PolledQueues:
    """Queues that are polled until a deadline. Ignores the message filter, so a range may contain no match."""

    def __init__(
        self,
        bounds: Callable[[Iterable[Queue]], dict[Queue, Bounds]],
        begin: Positions,
        deadline: float,
        idle: float,
    ) -> None:
        self._bounds = bounds
        self._held = dict(begin)
        self._deadline = deadline
        self._idle = idle
        self._woken = threading.Event()
        self._ready: list[QueueRange] = []

    def again(self, queue: Queue, position: int) -> None:
        self._ready = [found for found in self._ready if found.queue != queue]
        if time.monotonic() < self._deadline:
            self._held[queue] = position

    def wake(self) -> None:
        self._woken.set()

    def __iter__(self) -> PolledQueues:
        return self

    def __next__(self) -> QueueRange | None:
        quiet = time.monotonic() + self._idle
        while self._held or self._ready:
            if self._woken.is_set():
                self._woken.clear()
                return None
            if self._ready:
                return self._ready.pop(0)
            is_last = time.monotonic() >= self._deadline  # look once more, for messages that arrived before it
            for queue, has in self._bounds(list(self._held)).items():
                if has.max_offset > self._held[queue]:
                    self._ready.append(QueueRange(queue, self._held.pop(queue), has.max_offset))
            if self._ready:
                continue
            now = time.monotonic()
            if is_last:
                break
            if now >= quiet:
                return None
            self._woken.wait(max(0.0, min(quiet, self._deadline, now + POLL_SECONDS) - now))
        raise StopIteration

    def __enter__(self) -> PolledQueues:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.clear()
        self._ready.clear()


Found = TypeVar("Found")

_RECENT_SECONDS = 0.05
_READ_ONLY = "an archive is read-only. To write, create a store from it: pyspark-mq restore"
_NONE = np.empty(0, np.int64)
_MAX_BODY_BYTES = StoreConfig().maxDecompressedMessageSize


@dataclass(frozen=True)
class ArchiveAddress:
    """An archive at an fsspec URL or in a directory.

    options: JSON for the file system. `repr` omits them, because they may have secrets.
    """

    url: str
    options: str = field(default="", repr=False)

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __repr__(self) -> str:
        return f"ArchiveAddress({str(self)!r})"

    @property
    def directory(self) -> None:
        return None

    def open(self) -> ArchiveLog:
        """Open the archive. Raises `NoArchive`, `UnsupportedStore`, `ObjectsUnavailable`."""
        return ArchiveLog(ArchivePlace.at(self.url, storage_options(self.options)))

    def open_snapshot(self) -> ArchiveLog:
        """Open a snapshot of the archive, taken by the first read.

        Reading a message deleted later raises `OffsetLost`, even if a recreated topic has its queue offset.
        """
        return ArchiveLog(SnapshotPlace(ArchivePlace.at(self.url, storage_options(self.options))))

    def open_writer(self) -> NoReturn:
        raise ReadOnlyStore(f"{self}: {_READ_ONLY}")


class ArchiveLog:
    """A log over the archive's current metadata: each call loads them again if they changed."""

    is_ordered = False  # each queue has a log of its own

    def __init__(self, place: ArchivePlace) -> None:
        self._place = place
        self._known: ArchivedQueues | None = None
        self._read_at = -math.inf  # time.monotonic()
        # Successive calls, such as the end of a wait and the next look, share one request to a remote archive.
        self._recent = _RECENT_SECONDS if place.objects.ahead else 0.0

    def topics(self, wanted: NameFilter | None = None, oldest: float = 0.0) -> Mapping[str, tuple[Queue, ...]]:
        found = self._queues(oldest).catalog.of_topics()
        return {topic: found[topic] for topic in filter(wanted, found)}

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        asked = list(queues)
        return self._with_current_catalog(lambda archived: _bounds(archived, asked))

    def look(self, queues: Iterable[Queue]) -> LogLook:
        asked = list(queues)
        return LogLook(self._with_current_catalog(lambda archived: _bounds(archived, asked), self._recent), {})

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        asked = list(queues)
        return self._with_current_catalog(
            lambda queues: {
                it.queue: offset_by_time(it.log, it.entries, it.offsets, timestamp, boundary)
                for it in queues.archived(asked)
            }
        )

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        ranges = list(ranges)
        try:
            return self._with_current_catalog(lambda queues: KeySearch(queues).narrowed(ranges, keys))
        except (OffsetLost, CorruptSegment):
            return ranges

    def query(self, wanted: KeyQuery, before: Positions | None = None) -> list[StoredMessage]:
        """Return matching messages, oldest first. Reads all messages that the index lacks.

        before: the offset in each queue at which to stop. Raises `UnknownTopic`, `CorruptRecord`, `UnreadableBody`,
        `CorruptSegment`, `ObjectsUnavailable`.
        """

        def newest(queues: ArchivedQueues) -> list[StoredMessage]:
            of_topic = queues.catalog.of_topics().get(wanted.topic)
            if of_topic is None:
                names = ", ".join(queues.catalog.of_topics()) or "none"
                raise UnknownTopic(
                    f"{self._place.url}: topic {wanted.topic!r} is not archived. Archived topics: {names}"
                )
            found = KeySearch(queues).newest(of_topic, wanted, before or {})
            return [inflated_or_raw(message, _MAX_BODY_BYTES) for message in found]

        return self._with_current_catalog(newest)

    def with_id(self, topic: str, msg_id: str) -> list[StoredMessage]:
        """Return a topic's messages with this `msgId`. An id that is a log offset may occur in several queues."""
        there = [QueueRange(queue, *bounds) for queue, bounds in self.bounds(self.topics().get(topic, ())).items()]
        pieces = self.with_keys(there, [msg_id])
        found = (message for piece in pieces for message in self.messages(piece, raw=True))
        return [message for message in found if message.msg_id == msg_id]

    def _with_current_catalog(self, look: Callable[[ArchivedQueues], Found], oldest: float = 0.0) -> Found:
        """Return the result of `look` for the current catalog.

        Retries with a newer catalog if an object was deleted after the catalog was read. oldest: allowed age of the
        catalog, in seconds. Raises as `look`.
        """
        queues = self._queues(oldest)
        while True:
            try:
                return look(queues)
            except (OffsetLost, CorruptSegment):  # CorruptSegment: replaced by a shorter object
                self.look_again()
                if self._queues() is queues:
                    raise
                queues = self._queues()

    def look_again(self) -> None:
        self._read_at = -math.inf
        self._place.look_again()

    def reaches(self, queue: Queue, comparison: StoreComparison) -> bool:
        return self._with_current_catalog(lambda queues: any(comparison.reaches(it) for it in queues.archived([queue])))

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        return {}

    def groups(self) -> Mapping[str, Positions]:
        return {}

    def commit(self, group: str, positions: Positions) -> None:
        raise ReadOnlyStore(f"{self._place.url}: {_READ_ONLY}")

    def sizes(self, wanted: QueueRange) -> Int64s:
        def archived(queues: ArchivedQueues) -> Int64s:
            it = queues.queue(wanted.queue)
            first = wanted.end if it is None else min(max(wanted.start, it.min_offset()), wanted.end)
            found = _NONE if it is None or first == wanted.end else it.entries.entries(first, wanted.end)["size"]
            return np.append(np.zeros(first - wanted.start, np.int64), found.astype(np.int64))

        return self._with_current_catalog(archived)

    def fingerprints(self, positions: Positions) -> Fingerprints:
        return self._with_current_catalog(lambda archived: _fingerprints(archived, positions)) if positions else {}

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        asked = {queue: position for queue, position in positions.items() if position > 0 and queue in last}

        def replaced(archived: ArchivedQueues) -> list[Queue]:
            now = _fingerprints(archived, asked)
            return [
                it.queue
                for it in archived.archived(asked)
                if now.get(it.queue) != last[it.queue] and _is_replaced(it, asked[it.queue], last[it.queue])
            ]

        return self._with_current_catalog(replaced, self._recent) if asked else []

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        check_columns(spec.columns)
        return _scan(self._queues().queue_containing(wanted), wanted, spec)

    def checked(self, wanted: QueueRange, max_bytes: int) -> Iterator[CheckedBlock]:
        """Yield the messages of a range as checked raw records, as `scan.checked_blocks`. Raises as `scan`."""
        it = self._queues().queue_containing(wanted)
        if wanted.length > 0:
            with it.ahead(wanted.start, wanted.end) as (log, queue):
                yield from checked_blocks(log, queue, wanted.start, wanted.end, max_bytes)

    def messages(self, wanted: QueueRange, *, raw: bool = False) -> Iterator[StoredMessage]:
        """Yield the messages of a range with decompressed bodies.

        raw: yield bodies that cannot be decompressed as they are stored. Raises as `scan`, after all messages before a
        damaged one.
        """
        rest, where = wanted, self._queues().where(wanted.queue)
        try:
            for checked in self.checked(wanted, BATCH_BYTES):
                for message in stored_messages(checked.block):
                    most = _MAX_BODY_BYTES
                    yield inflated_or_raw(message, most) if raw else inflated(message, where, most)
                    rest = rest._replace(start=rest.start + 1)
        except CorruptRecord:
            if rest.length == 1:
                raise
            middle = (rest.start + rest.end) // 2
            yield from self.messages(rest._replace(end=middle), raw=raw)
            yield from self.messages(rest._replace(start=middle), raw=raw)

    def records(self, wanted: QueueRange, message_filter: MessageFilter, most: int, max_bytes: int) -> RecordPieces:
        """Return the first records of a range that match, as `served_records.records_of`.

        Raises as `scan`, but `CorruptRecord` only if the first record is damaged.
        """

        def first(queues: ArchivedQueues) -> RecordPieces:
            it = queues.queue_containing(wanted)
            number = queues.catalog.topics[wanted.queue.topic]
            return records_of(it, number, wanted, message_filter, most, max_bytes)

        try:
            return self._with_current_catalog(first)
        except CorruptRecord:
            if wanted.length == 1:
                raise
        return self.records(wanted._replace(end=(wanted.start + wanted.end) // 2), message_filter, most, max_bytes)

    def named(self, physical_offset: int) -> QueueRange:
        """Return the range of one message, by its `served_records` name. Raises `OffsetLost`."""
        what = named(physical_offset)
        topics = {number: topic for topic, number in self._queues().catalog.topics.items()}
        if what is None or what.topic_number not in topics:
            why = "the offset is out of range" if what is None else "its topic was deleted from the archive"
            raise OffsetLost(
                f"{self._place.url}: no message is found for commit log offset {physical_offset}, because {why}. Ask "
                "for the message by topic, queue and offset"
            )
        queue = Queue(topics[what.topic_number], what.queue_id)
        return QueueRange(queue, what.queue_offset, what.queue_offset + 1)

    def wait(self, seen: Positions, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while all(bounds.max_offset == seen[queue] for queue, bounds in self.look(seen).bounds.items()):
            left = deadline - time.monotonic()
            time.sleep(max(0.0, min(left, POLL_SECONDS)))
            if left <= POLL_SECONDS:  # the caller looks after the timeout
                return

    def hold(self, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float) -> PolledQueues:
        return PolledQueues(self.bounds, begin, deadline, idle)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _queues(self, oldest: float = 0.0) -> ArchivedQueues:
        """Return the archived queues: the same object until the metadata change.

        oldest: allowed age of the metadata, in seconds.
        """
        known = self._known
        if known is not None and time.monotonic() < self._read_at + oldest:
            return known
        catalog = self._place.load()
        if catalog is None:
            raise NoArchive(
                f"{self._place.url}: the archive's metadata was deleted. Restore {self._place.metadata} from a copy. "
                "Without a copy, begin a new archive: delete the line 'archive' in the store's config/store.conf, then "
                "archive to another URL"
            )
        if known is None or known.catalog is not catalog:
            known = self._known = ArchivedQueues(self._place, catalog)
        self._read_at = time.monotonic()
        return known


def _bounds(archived: ArchivedQueues, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
    return {it.queue: Bounds(it.min_offset(), it.archived.max_offset) for it in archived.archived(queues)}


def _fingerprints(archived: ArchivedQueues, positions: Positions) -> Fingerprints:
    found = {}
    for it in archived.archived(positions):
        last = positions[it.queue] - 1
        if it.min_offset() <= last < it.archived.max_offset:
            found[it.queue] = it.fingerprint(last)
    return found


def _scan(it: FlatQueue, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    if wanted.length <= 0:
        return
    with it.ahead(wanted.start, wanted.end) as (log, queue):
        yield from scan_queue(log, queue, wanted.start, wanted.end, Decoding(spec, _MAX_BODY_BYTES), MAX_STRETCH)


def _is_replaced(it: FlatQueue, position: int, was: Fingerprint) -> bool:
    """Return whether the message before `position` was replaced, given that its fingerprint is not `was`.

    If the archived queue ends before the message, the message was replaced if the queue's log goes beyond it.
    """
    if position <= it.min_offset():
        return False
    if position <= it.archived.max_offset:
        return True
    return bool(it.archived.log) and was.physical_offset < it.archived.log[-1].stop
