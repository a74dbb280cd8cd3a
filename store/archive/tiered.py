"""`TieredLog`: a store and its archive as one log. Messages that the store has deleted come from the archive.

The store says which topics exist and where their queues end. A message that both have is read from the store, and the
archive is not asked while the store has all messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from store.archive.archive_log import ArchiveLog
from store.archive.kin import Kin
from store.archive.of_store import StoreArchive
from store.archive.place import RecentPlace
from store.files.config import StoreConfig
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
    """Batches of one of the two, up to queue offset `end`."""

    batches: Iterator[pa.RecordBatch]
    end: int
    is_archived: bool


class TieredLog:
    """Every method that asks the archive raises `ArchiveError` and `ObjectsUnavailable`. Threads may share it."""

    def __init__(
        self, newer: PublishedQueues, config: StoreConfig, archive: StoreArchive, *, keeps_blocks: bool = False
    ) -> None:
        """newer, config: of the store. keeps_blocks: keep the bytes last read from the archive, for callers that read a
        few messages at a time.
        """
        self._newer = newer
        self._config = config
        self._kin = Kin(newer)
        self._archive = archive
        self._keeps_blocks = keeps_blocks
        self._joined: set[Queue] = set()  # of which the archive has the older messages

    @cached_property
    def older(self) -> ArchiveLog:
        return ArchiveLog(RecentPlace(self._archive.place(), keeps_blocks=self._keeps_blocks))

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """As `Log.bounds`."""
        found = {}
        for queue, own in self._newer.bounds(queues).items():
            with suppress(UnknownTopic):  # deleted since
                found[queue] = own._replace(min_offset=self.first(queue, own))
        return found

    def first(self, queue: Queue, own: Bounds) -> int:
        """Return where a queue begins in both. The archive counts if it goes as far as `own`, what the store has.

        Raises `UnknownTopic`, `ArchiveOfAnother`.
        """
        first = self._first(queue, own)
        if first == own.min_offset > self._kin.begin(queue):  # the archive may have grown since the last look
            self.older.look_again()
            first = self._first(queue, own)
        return first

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        """As `Log.offsets_by_time`."""
        found = self.bounds(queues)
        if boundary is Boundary.LOWER:
            return {queue: self._lower(queue, timestamp, bounds) for queue, bounds in found.items()}
        newer = {queue: self._lower(queue, timestamp + 1, bounds) for queue, bounds in found.items()}
        return {queue: max(bounds.min_offset, newer[queue] - 1) for queue, bounds in found.items()}

    def stored_at(self, queue: Queue, offset: int) -> int | None:
        """Return the store time of a message (ms), None if neither has it."""
        own = self._newer.bounds([queue])[queue]
        found = self._newer.fingerprint(queue.topic, queue.queue_id, offset) if offset >= own.min_offset else None
        if found is None and self.first(queue, own) <= offset:
            found = self.older.fingerprints({queue: offset + 1}).get(queue)
        return None if found is None else found.store_timestamp

    def split(self, wanted: QueueRange) -> tuple[QueueRange, QueueRange]:
        """Return what the store has deleted of a range, and the rest."""
        own = self._newer.bounds([wanted.queue]).get(wanted.queue)
        at = wanted.start if own is None else min(max(wanted.start, own.min_offset), wanted.end)
        return wanted._replace(end=at), wanted._replace(start=at)

    # --- messages --------------------------------------------------------------------------------------

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """As `Log.scan`."""
        return self._batches(wanted, spec, self._part(wanted, spec))

    def get_message(self, queue: Queue, own: Bounds, request: GetRequest) -> GetResult:
        """As `MessageStore.get_message`, from an offset before `own`, what the store has; none of that is in it.

        Records have the names that clients of a server get, see `archive.served_records`.
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
        """As `MessageStore.query`, from before what the store has in each queue of the topic.

        found: the messages that the store has found, some of which it may have deleted since.
        """
        queues = self.older.topics().get(wanted.topic, ())
        before, begins = dict.fromkeys(queues, 0), dict[int, int]()
        for queue, own in self._newer.bounds(queues).items():
            begins[queue.queue_id] = begin = self._kin.begin(queue)
            if own.min_offset > begin and self._joins(queue):
                before[queue] = own.min_offset
        if not any(before.values()):
            return []
        known = {(message.queue_id, message.queue_offset) for message in found}
        older = self.older.query(replace(wanted, max_messages=wanted.max_messages + len(known)), before)
        older = [each for each in older if each.queue_offset >= begins[each.queue_id]]
        return [each for each in older if (each.queue_id, each.queue_offset) not in known][-wanted.max_messages :]

    # --- inside ----------------------------------------------------------------------------------------

    def _first(self, queue: Queue, own: Bounds) -> int:
        begin = self._kin.begin(queue)
        if own.min_offset <= begin:
            return own.min_offset
        archived = self.older.bounds([queue]).get(queue)
        if archived is None or not archived.min_offset < own.min_offset <= archived.max_offset:
            return own.min_offset
        return max(archived.min_offset, begin) if self._joins(queue) else own.min_offset

    def _joins(self, queue: Queue) -> bool:
        """Whether the archive has what the store had of the queue before. Raises `UnknownTopic`, `ArchiveOfAnother`."""
        if queue not in self._joined and self.older.reaches(queue, self._kin):
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
        """Give all batches, those of `part` first. What retention deletes before it is read comes from the archive."""
        while True:
            batches, end, is_archived = part
            try:
                for batch in batches:
                    rest = rest._replace(start=batch["queueOffset"][-1].as_py() + 1)
                    yield batch.select(spec.columns)
                rest = rest._replace(start=end)
            except OffsetLost:
                is_light = rest.queue.topic.startswith(LIGHT_PREFIX)  # its batches have the offsets of other queues
                if is_archived or is_light or not self.split(rest)[0].length:
                    raise
            if not rest.length:
                return
            part = self._part(rest, spec)

    def _part(self, wanted: QueueRange, spec: ReadSpec) -> _Part:
        """Return as much from the beginning of a range as one of the two has; its batches have their offsets."""
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
    """Return the first messages that match, and the queue offset after the last examined one."""
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
        if next_begin == wanted.start:  # otherwise the next call raises it
            raise
    return found, next_begin
