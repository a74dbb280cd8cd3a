"""`DirectoryLog`: a `Log` of a store's directory."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from store.api.message_store import MessageStore
from store.api.writer import Append
from store.archive.of_store import StoreArchive
from store.broker.hold import HeldRequest, PullRequestHoldService, Wake
from store.directory.directory_group import DirectoryGroup
from store.disk.consumer_offsets import ConsumerOffsets
from store.format.stored_message import StoredMessage
from store.model.errors import (
    CorruptRecord,
    OffsetLost,
    OffsetNotYet,
    StoreClosed,
    UnknownTopic,
    UnreadableBody,
)
from store.model.log_protocol import (
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
from store.objects.urls import storage_options


@dataclass(frozen=True)
class DirectoryAddress:
    """A store in a directory. The path is opened on the host of each reader, so all must see the same directory."""

    path: str

    def __str__(self) -> str:
        return self.path

    @property
    def directory(self) -> str:
        return self.path

    def open(self) -> DirectoryLog:
        return DirectoryLog(MessageStore.open(self.path, create=False, read_only=True))

    def open_writer(self) -> DirectoryWriter:
        return DirectoryWriter(MessageStore.open(self.path, create=False))

    def group(self, name: str) -> DirectoryGroup:
        return DirectoryGroup(self.path, name)


class DirectoryLog:
    """A store's directory as a `Log`, which closes its store."""

    is_ordered = True

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def topics(self, wanted: NameFilter | None = None, oldest: float = 0.0) -> Mapping[str, tuple[Queue, ...]]:
        counts = self._store.topics()
        return {
            topic: tuple(Queue(topic, number) for number in range(counts[topic])) for topic in filter(wanted, counts)
        }

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        return self._store.bounds(queues)

    def look(self, queues: Iterable[Queue]) -> LogLook:
        return LogLook(self.bounds(queues), {})

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        there = self.bounds(queues)
        return {queue: self._store.offset_by_time(queue.topic, queue.queue_id, timestamp, boundary) for queue in there}

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        return self._store.with_keys(ranges, keys)

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        offsets = {queue: self._store.consumer_offset(group, queue.topic, queue.queue_id) for queue in queues}
        return {queue: offset for queue, offset in offsets.items() if offset is not None}

    def groups(self) -> Mapping[str, Positions]:
        return ConsumerOffsets(Path(self._store.path)).all_positions()

    def commit(self, group: str, positions: Positions) -> None:
        by_topic: dict[str, dict[int, int]] = {}
        for queue, offset in positions.items():
            by_topic.setdefault(queue.topic, {})[queue.queue_id] = offset
        for topic, offsets in by_topic.items():
            self._store.commit_offsets(group, topic, offsets)

    def sizes(self, wanted: QueueRange) -> Int64s:
        while bounds := self._bounds(wanted.queue):
            first = min(max(wanted.start, bounds.min_offset), wanted.end)
            try:
                there = self._store.sizes(wanted.queue.topic, wanted.queue.queue_id, first, wanted.end)
                return np.append(np.zeros(first - wanted.start, np.int64), there)
            except (UnknownTopic, OffsetNotYet, OffsetLost):
                if self._bounds(wanted.queue) == bounds:  # not due to a concurrent deletion
                    raise
        return np.zeros(wanted.length, np.int64)

    def fingerprints(self, positions: Positions) -> Fingerprints:
        before = {queue: position - 1 for queue, position in positions.items() if position > 0}
        try:
            return self._store.fingerprints(before)
        except CorruptRecord:  # a damaged record, or a shorter queue: ask for each queue alone
            found = {queue: self._before(queue, positions[queue]) for queue in before}
            return {queue: fingerprint for queue, fingerprint in found.items() if fingerprint is not None}

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        asked = {queue: position for queue, position in positions.items() if queue in last}
        now = self.fingerprints(asked)
        others = [queue for queue, position in asked.items() if position > 0 and now.get(queue) != last[queue]]
        return [queue for queue in others if self._is_replaced(queue, asked[queue], last[queue])]

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        return self._store.read_own(wanted, spec)

    def few(self, wanted: QueueRange) -> list[StoredMessage] | None:
        """Return all messages of a short published range, in a tenth of the time of `scan`.

        Return None if the messages are too large or one is unreadable. Then `scan` returns them or raises the error.
        """
        try:
            found = self._store.get_message("", wanted.queue.topic, wanted.queue.queue_id, wanted.start, wanted.length)
        except UnreadableBody:
            return None
        return found.messages if len(found.messages) == wanted.length else None

    def wait(self, seen: Positions, timeout: float) -> None:
        confirm_offset = self._store.confirm_offset  # before `bounds`, so that no arrival is missed
        now = self.bounds(seen)
        if all(bounds.max_offset == seen[queue] for queue, bounds in now.items()):
            self._store.wait(confirm_offset, timeout)

    def hold(self, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float) -> DirectoryHeld:
        return DirectoryHeld(self._store, begin, deadline, message_filter, idle)

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bounds(self, queue: Queue) -> Bounds | None:
        return self._store.bounds([queue]).get(queue)

    def _before(self, queue: Queue, position: int) -> Fingerprint | None:
        """Return the fingerprint of the message before a position, None if that message cannot be read."""
        while (bounds := self._bounds(queue)) is not None and position <= bounds.max_offset:
            try:
                return self._store.fingerprint(queue.topic, queue.queue_id, position - 1)
            except (UnknownTopic, CorruptRecord):
                if self._bounds(queue) == bounds:  # not deleted or recreated concurrently
                    return None
        return None

    def _is_replaced(self, queue: Queue, position: int, was: Fingerprint) -> bool:
        while (bounds := self._bounds(queue)) is not None:
            try:
                if position <= bounds.max_offset:
                    return not self._store.can_have(queue.topic, queue.queue_id, position - 1, was)
                is_passed = was.physical_offset < self._store.dispatched_offset
                if self._bounds(queue) == bounds:
                    return is_passed
            except (UnknownTopic, CorruptRecord):
                if self._bounds(queue) == bounds:  # not deleted or recreated concurrently
                    raise
        return False


class DirectoryWriter(DirectoryLog):
    """A store's directory as a `LogWriter`, which closes its store."""

    def create_topic(self, topic: str, queues: int) -> int:
        return self._store.create_topic(topic, queues)

    def begin(self) -> Append:
        return self._store.begin()

    def flush(self) -> None:
        self._store.flush()


class DirectoryHeld:
    """A `Held` with one held request for each queue."""

    def __init__(
        self, store: MessageStore, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float
    ) -> None:
        self._store = store
        self._deadline = deadline
        self._filter = message_filter
        self._idle = idle
        self._service = PullRequestHoldService(store)
        self._woken: SimpleQueue[tuple[HeldRequest, Wake] | None] = SimpleQueue()
        self._held: dict[tuple[str, int], HeldRequest] = {}
        for queue, position in begin.items():
            self._hold(queue, position)

    def again(self, queue: Queue, position: int) -> None:
        if time.monotonic() < self._deadline:
            self._hold(queue, position)

    def wake(self) -> None:
        self._woken.put(None)

    def __iter__(self) -> DirectoryHeld:
        return self

    def __next__(self) -> QueueRange | None:
        while self._held:
            try:
                woken = self._woken.get(timeout=self._idle)
            except Empty:
                return None
            if woken is None:
                return None
            request, why = woken
            if self._held.get(request.queue) is not request:  # replaced by a request from another offset
                continue
            del self._held[request.queue]
            if why is Wake.STOPPED:
                closed = StoreClosed(f"{self._store.path}: closed during the wait for messages")
                raise copy.copy(self._service.failure or closed)  # each `raise` adds to its traceback
            # After a timeout, the range lets the reader skip messages that do not match.
            if why is not Wake.TIMEOUT or request.noticed > request.offset:
                end = self._store.max_offset(*request.queue)
                return QueueRange(Queue(*request.queue), request.offset, max(request.offset, end))
        raise StopIteration

    def _hold(self, queue: Queue, position: int) -> None:
        before = self._held.pop((queue.topic, queue.queue_id), None)
        if before is not None:
            self._service.cancel(before)
        left = max(0.0, self._deadline - time.monotonic())
        wake = self._woken.put
        request = self._service.hold(
            queue.topic, queue.queue_id, position, left, lambda *event: wake(event), self._filter
        )
        self._held[request.queue] = request

    def __enter__(self) -> DirectoryHeld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.stop()


@dataclass(frozen=True)
class TieredDirectoryAddress(DirectoryAddress):
    """The store in directory `path` together with its archive.

    url: of the archive; "" for the one in the store's settings. options: fsspec's storage options, as JSON; not in the
    repr, because they may have secrets.
    """

    url: str = ""
    options: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.path

    def open(self) -> TieredDirectoryLog:
        """Open the store as `DirectoryAddress.open`. The archive is opened when it is first read."""
        store = MessageStore.open(self.path, create=False, read_only=True)
        try:
            archive = StoreArchive.remembered(store.path, store.config, storage_options(self.options))
            return TieredDirectoryLog(store, archive.changed(self.url or None, None))
        except BaseException:
            store.close()
            raise


class TieredDirectoryLog(DirectoryLog):
    """A store together with its archive as a `Log`, which closes the store."""

    is_ordered = False  # each archived queue has its own log

    def __init__(self, store: MessageStore, archive: StoreArchive) -> None:
        super().__init__(store)
        self._tiered = store.tiered(archive)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        return self._tiered.bounds(queues)

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        return self._tiered.offsets_by_time(queues, timestamp, boundary)

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        found: list[QueueRange] = []
        for before, behind in map(self._tiered.split, ranges):
            found += self._tiered.older.with_keys([before], keys) if before.length else []
            found += super().with_keys([behind], keys) if behind.length else []
        return found

    def sizes(self, wanted: QueueRange) -> Int64s:
        own = super().sizes(wanted)
        missing = int(np.argmax(own > 0)) if (own > 0).any() else len(own)
        if missing:
            own[:missing] = self._tiered.older.sizes(wanted._replace(end=wanted.start + missing))
        return own

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        return self._tiered.scan(wanted, spec)
