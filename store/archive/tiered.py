"""`TieredLog`: a store and its archive as one log.

The store defines which topics exist and where their queues end. Its archive is read only for messages that the store
has deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from store.archive.archive_log import ArchiveLog
from store.archive.comparison import StoreComparison
from store.archive.of_store import StoreArchive
from store.archive.place import RecentPlace
from store.disk.config import StoreConfig
from store.format.columns import check_columns
from store.format.layout import LIGHT_PREFIX
from store.format.stored_message import StoredMessage
from store.model.errors import CorruptRecord, OffsetLost, UnknownTopic, UnreadableBody
from store.model.log_protocol import (
    Boundary,
    Bounds,
    MessageFilter,
    Positions,
    Queue,
    QueueRange,
    ReadSpec,
)
from store.read.getting import GetRequest, GetResult, GetStatus, status_of
from store.read.published import PublishedQueues
from store.read.query import KeyQuery


class _Part(NamedTuple):
    batches: Iterator[pa.RecordBatch]
    end: int
    is_archived: bool


class TieredLog:
    """A store and its archive, read as one log. Thread-safe.

    Every method that reads the archive raises `ArchiveError` and `ObjectsUnavailable`.
    """

    def __init__(
        self, newer: PublishedQueues, config: StoreConfig, archive: StoreArchive, *, keeps_blocks: bool = False
    ) -> None:
        """Read a store and its archive. keeps_blocks: cache blocks of the archive, for small reads."""
        self._newer = newer
        self._config = config
        self._comparison = StoreComparison(newer)
        self._archive = archive
        self._keeps_blocks = keeps_blocks
        self._joined: set[Queue] = set()  # queues whose older messages are archived

    @cached_property
    def older(self) -> ArchiveLog:
        return ArchiveLog(RecentPlace(self._archive.place(), keeps_blocks=self._keeps_blocks))

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Return the bounds of store and archive together. As `Log.bounds`."""
        found = {}
        for queue, own in self._newer.bounds(queues).items():
            with suppress(UnknownTopic):
                found[queue] = own._replace(min_offset=self.first(queue, own))
        return found

    def first(self, queue: Queue, own: Bounds) -> int:
        """Return the first offset of a queue in the store or the archive.

        The archive counts only if it reaches the store's first message. own: the store's bounds. Raises `UnknownTopic`,
        `ArchiveOfAnother`.
        """
        first = self._first(queue, own)
        if first == own.min_offset > self._comparison.begin(queue):  # the archive may have grown
            self.older.look_again()
            first = self._first(queue, own)
        return first

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        """Search store and archive. As `Log.offsets_by_time`."""
        found = self.bounds(queues)
        if boundary is Boundary.LOWER:
            return {queue: self._lower(queue, timestamp, bounds) for queue, bounds in found.items()}
        newer = {queue: self._lower(queue, timestamp + 1, bounds) for queue, bounds in found.items()}
        return {queue: max(bounds.min_offset, newer[queue] - 1) for queue, bounds in found.items()}

    def stored_at(self, queue: Queue, offset: int) -> int | None:
        """Return the store time (ms) of a message, None if neither store nor archive has it."""
        own = self._newer.bounds([queue])[queue]
        found = self._newer.fingerprint(queue.topic, queue.queue_id, offset) if offset >= own.min_offset else None
        if found is None and self.first(queue, own) <= offset:
            found = self.older.fingerprints({queue: offset + 1}).get(queue)
        return None if found is None else found.store_timestamp

    def split(self, wanted: QueueRange) -> tuple[QueueRange, QueueRange]:
        """Split a range into the part that the store has deleted, and the part that it has."""
        own = self._newer.bounds([wanted.queue]).get(wanted.queue)
        at = wanted.start if own is None else min(max(wanted.start, own.min_offset), wanted.end)
        return wanted._replace(end=at), wanted._replace(start=at)

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield messages of the archive, then of the store. As `Log.scan`."""
        return self._batches(wanted, spec, self._part(wanted, spec))

    def get_message(self, queue: Queue, own: Bounds, request: GetRequest) -> GetResult:
        """Return archived messages before the store's first one, as `MessageStore.get_message`.

        own: the store's bounds; the requested offset must be before them. The physical offsets of records are names,
        see `archive.served_records`.
        """
        config, first, accept = self._config, self.first(queue, own), request.message_filter
        if request.offset < first:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, first, first, own.max_offset)
        end, most = min(own.min_offset, request.offset + request.most_entries(config)), request.most_messages(config)
        wanted, max_bytes = QueueRange(queue, request.offset, end), config.maxTransferBytesOnMessageInMemory
        if request.as_records:
            records, next_begin = self.older.records(wanted, accept, most, max_bytes)
            return GetResult(status_of(records), next_begin, first, own.max_offset, records=records)
        messages, next_begin = _matching(self.older, wanted, accept, most, max_bytes)
        return GetResult(status_of(messages), next_begin, first, own.max_offset, messages)

    def query(self, wanted: KeyQuery, found: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Return archived messages with a key before the store's first messages, except those in `found`."""
        queues = self.older.topics().get(wanted.topic, ())
        before, begins = dict.fromkeys(queues, 0), dict[int, int]()
        for queue, own in self._newer.bounds(queues).items():
            begins[queue.queue_id] = begin = self._comparison.begin(queue)
            if own.min_offset > begin and self._joins(queue):
                before[queue] = own.min_offset
        if not any(before.values()):
            return []
        known = {(message.queue_id, message.queue_offset) for message in found}
        older = self.older.query(replace(wanted, max_messages=wanted.max_messages + len(known)), before)
        older = [each for each in older if each.queue_offset >= begins[each.queue_id]]
        return [each for each in older if (each.queue_id, each.queue_offset) not in known][-wanted.max_messages :]

    def _first(self, queue: Queue, own: Bounds) -> int:
        begin = self._comparison.begin(queue)
        if own.min_offset <= begin:
            return own.min_offset
        archived = self.older.bounds([queue]).get(queue)
        if archived is None or not archived.min_offset < own.min_offset <= archived.max_offset:
            return own.min_offset
        return max(archived.min_offset, begin) if self._joins(queue) else own.min_offset

    def _joins(self, queue: Queue) -> bool:
        if queue not in self._joined and self.older.reaches(queue, self._comparison):
            self._joined.add(queue)
        return queue in self._joined

    def _lower(self, queue: Queue, timestamp: int, bounds: Bounds) -> int:
        found = self._newer.offset_by_time(queue.topic, queue.queue_id, timestamp, Boundary.LOWER)
        own = self._newer.bounds([queue]).get(queue, bounds)
        if found > own.min_offset or own.min_offset == bounds.min_offset:
            return found
        archived = self.older.offsets_by_time([queue], timestamp, Boundary.LOWER).get(queue, found)
        return max(bounds.min_offset, min(found, archived))

    def _batches(self, rest: QueueRange, spec: ReadSpec, part: _Part) -> Iterator[pa.RecordBatch]:
        """Yield the messages of `part` and those after it.

        If retention deletes messages of the store before they are read, continue with the archive.
        """
        while True:
            batches, end, is_archived = part
            try:
                for batch in batches:
                    rest = rest._replace(start=batch["queueOffset"][-1].as_py() + 1)
                    yield batch.select(spec.columns)
                rest = rest._replace(start=end)
            except OffsetLost:
                # Records of a light queue have the offsets of other queues, so `rest` is unknown.
                is_light = rest.queue.topic.startswith(LIGHT_PREFIX)
                if is_archived or is_light or not self.split(rest)[0].length:
                    raise
            if not rest.length:
                return
            part = self._part(rest, spec)

    def _part(self, wanted: QueueRange, spec: ReadSpec) -> _Part:
        """Return the first part of a range. Its batches have the column `queueOffset`, even if `spec` does not."""
        if "queueOffset" not in spec.columns:
            check_columns(spec.columns)
            spec = replace(spec, columns=(*spec.columns, "queueOffset"))
        try:
            return _Part(
                self._newer.scan(wanted, spec, self._config.maxDecompressedMessageSize), wanted.end, is_archived=False
            )
        except OffsetLost:
            own = self._newer.bounds([wanted.queue]).get(wanted.queue)
            if own is None or not self.first(wanted.queue, own) <= wanted.start < own.min_offset:
                raise
        before = wanted._replace(end=min(wanted.end, own.min_offset))
        return _Part(self.older.scan(before, spec), before.end, is_archived=True)


def _matching(
    archive: ArchiveLog, wanted: QueueRange, message_filter: MessageFilter, most: int, max_bytes: int
) -> tuple[list[StoredMessage], int]:
    found: list[StoredMessage] = []
    taken, next_begin = 0, wanted.start
    try:
        for message in archive.messages(wanted):
            taken += len(message.body)
            if found and (len(found) >= most or taken > max_bytes):
                break
            next_begin += 1
            if message_filter.match(message.tags, message.properties):
                found.append(message)
    except (CorruptRecord, UnreadableBody):
        if next_begin == wanted.start:  # otherwise return the messages before it, and raise in the next call
            raise
    return found, next_begin
