"""Archiving: copy messages of a store's queues into segments of the archive.

The order of writes: a segment of a queue's log and one of its entries, their keys, and last the metadata that name
them. A killed process may leave objects that no metadata name. Readers ignore them, and the next run overwrites them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from store.append.flusher import flush_log, flushing
from store.archive.catalog import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    NO_TIME,
    ArchivedQueue,
    Catalog,
    Segment,
    Segments,
    queue_path,
    segment_path,
)
from store.archive.comparison import ArchiveState, StoreComparison, of_another, passed_over
from store.archive.key_index import KeyIndexWriter
from store.archive.place import ArchivePlace
from store.format.layout import CQ_ENTRY
from store.model.errors import ArchiveOfAnother, CorruptSegment, CorruptStore, OffsetLost, StoreError, UnknownTopic
from store.model.integers import LONG_MAX
from store.model.log_protocol import Fingerprint, Queue
from store.read.fingerprint import can_have
from store.read.published import PublishedQueues
from store.read.scan import CheckedBlock, checked_blocks

PIECE_BYTES = 64 << 20  # size at which a segment of a queue's log is complete
_SMALL = 4  # a last segment smaller than a piece divided by this is rewritten with more messages
_PIECES_AT_ONCE = 4  # between two writes of the metadata
_BLOCK_BYTES = 8 << 20

Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # messages archived so far, and in all


class Archived(NamedTuple):
    """The counts of one run: archived messages and bytes, and deletions from the archive.

    deleted: expired objects. forgotten: archived messages that were deleted with their topic.
    """

    messages: int = 0
    bytes: int = 0
    deleted: int = 0
    forgotten: int = 0


class Piece:
    """One segment of a queue's log and one of its entries."""

    def __init__(self, archived: ArchivedQueue, offset: int, old: tuple[bytes, bytes] | None = None) -> None:
        """Begin the piece at a queue offset.

        offset: of the first message. old: contents of the queue's last segments (log, entries), if this piece rewrites
        them.
        """
        self.begin, self.end = NO_TIME, NO_TIME
        if old is not None:
            log, entries = archived.log[-1], archived.entries[-1]
            self.base, self.entries_base, self.begin, self.end = log.base, entries.base, log.begin, log.end
        else:
            self.base = archived.log[-1].stop if archived.log else 0
            self.entries_base = offset * CQ_ENTRY.itemsize
        self._log: list[bytes | memoryview] = [] if old is None else [old[0]]
        self._entries: list[bytes] = [] if old is None else [old[1]]
        self.size = sum(map(len, self._log))
        self.added = Archived()
        self.key_index_writer = KeyIndexWriter()
        self.stretch = (LONG_MAX, 0)  # range of the store's log that was copied

    def add(self, checked: CheckedBlock, queue: Queue, topic_id: int) -> None:
        self.last = fingerprint_of(checked, -1)
        block, (_, _, sizes, codes) = checked
        begin, end = self.stretch
        first, stop = fingerprint_of(checked, 0).physical_offset, self.last.physical_offset + int(sizes[-1])
        self.stretch = min(begin, first), max(end, stop)
        at = self.base + self.size
        self.key_index_writer.add(queue, topic_id, checked, at)
        ends = np.cumsum(sizes)
        offsets = at + ends - sizes
        self._log.append(block.moved(offsets).data)
        entries = np.empty(len(block), CQ_ENTRY)
        entries["physical_offset"], entries["size"], entries["tags_code"] = offsets, sizes, codes
        self._entries.append(entries.tobytes())
        self.size += int(ends[-1])
        self.added = Archived(self.added.messages + len(block), self.added.bytes + int(ends[-1]))
        times = np.maximum(block.field("store_timestamp"), 0)  # negative if damaged: no checksum covers them
        known = self.end != NO_TIME
        self.begin = min(self.begin, int(times.min()))
        self.end = max(self.end, int(times.max())) if known else int(times.max())

    def write(self, place: ArchivePlace, queue: str, *, sealed: bool) -> tuple[Segment, Segment, Fingerprint]:
        """Write and check both segments. Return them (log, entries), and the last message's fingerprint."""
        log, entries = b"".join(self._log), b"".join(self._entries)
        for kind, base, data in ((COMMIT_LOG, self.base, log), (CONSUME_QUEUE, self.entries_base, entries)):
            place.write(segment_path(queue, kind, base), data)
        times = self.begin, self.end, sealed
        return Segment(self.base, len(log), *times), Segment(self.entries_base, len(entries), *times), self.last


def fingerprint_of(checked: CheckedBlock, row: int) -> Fingerprint:
    physical, stored = (int(checked.block.field(name)[row]) for name in ("physical_offset", "store_timestamp"))
    return Fingerprint(physical, stored)


class Archiving:
    """One run over one store. The caller must hold the lock `of_store.alone`."""

    def __init__(self, published: PublishedQueues, place: ArchivePlace, broker: str, piece_bytes: int) -> None:
        self._log = published.log
        self._published = published
        self._place = place
        self._piece_bytes = piece_bytes
        catalog = place.load()
        self.is_begun = catalog is not None
        self._catalog = catalog or Catalog(broker)
        self._comparison = StoreComparison(published)
        self._filing = KeyIndexWriter()
        self._unsaved = 0
        self._stretch = (LONG_MAX, 0)

    def run(
        self,
        queues: Sequence[Queue],
        end_of: Callable[[Queue], int],
        progress: Progress,
        *,
        is_remembered: bool,
    ) -> Archived:
        """Archive each queue up to its end.

        queues, end_of: as in `ArchiveOrder`. progress: called at the beginning and after each piece.

        Raises `ObjectsUnavailable`, `ArchiveOfAnother` before any write, and `QueuesPassedOver` at the end if some
        queues could not be archived.
        """
        archive_state = ArchiveState.of(self._comparison, self._place, self._catalog, queues)
        there = self._comparison, self._place, self._catalog
        is_doubtful = archive_state.is_doubtful(is_remembered=is_remembered)
        if is_doubtful and not archive_state.is_of_store(*there, is_remembered=is_remembered):
            raise of_another(self._place.url, self._catalog, archive_state.passed)
        passed, parts = dict(archive_state.passed), dict[Queue, tuple[int, int]]()
        for queue in (queue for queue in queues if queue not in passed):
            if part := self._passing(
                queue, passed, partial(self._part, queue, archive_state.begins.get(queue), end_of)
            ):
                parts[queue] = part
        total, done, taken = sum(max(0, end - begin) for begin, end in parts.values()), 0, 0
        progress(0, total)
        changed = False
        for queue, (begin, end) in parts.items():
            known = self._catalog.queues.get(queue)
            now = replace(known or ArchivedQueue(next_offset=begin), last=archive_state.last.get(queue))
            if now.indexed_from is None:
                now = replace(now, indexed_from=begin)
            if now != known:
                self._catalog, changed = self._catalog.having(queue, now), True
            pieces = self._queue(queue, begin, end)
            while added := self._passing(queue, passed, partial(next, pieces, None)):
                changed = True
                done, taken = done + added.messages, taken + added.bytes
                if not self.is_begun or self._unsaved >= _PIECES_AT_ONCE * self._piece_bytes:
                    self._save()
                progress(done, total)
        if changed:
            self._save()
        if passed:
            raise passed_over(self._log.segments.directory.parent, self._place.url, passed)
        return Archived(done, taken)

    def _passing(self, queue: Queue, passed: dict[Queue, StoreError], work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`.

        Return None if the topic was deleted, or if `work` failed for this queue only. `passed` then has the error.
        """
        try:
            return work()
        except UnknownTopic:
            return None
        except (ArchiveOfAnother, OffsetLost, CorruptStore) as error:
            passed[queue] = error
            return None

    def _part(self, queue: Queue, begin: int | None, end_of: Callable[[Queue], int]) -> tuple[int, int]:
        return self._published.offsets(queue.topic, queue.queue_id)[0] if begin is None else begin, end_of(queue)

    def _save(self) -> None:
        """Flush the store's log, then write the index, then the metadata.

        Without the flush, a crash could remove records that are already archived, and the archive would look like
        another store's.
        """
        begin, end = self._stretch
        if begin < end:
            segments = self._log.opened_again().segments
            flush_log(segments.directory.parent)  # all of it, because recovery stops at the first hole
            with flushing(segments.directory.parent):
                with suppress(OffsetLost):  # retention deleted records
                    segments.flush(begin, end)
                segments.flush_names()
            self._stretch = (LONG_MAX, 0)
        # After all index segments expired, use a new offset: readers may still use the old names.
        first = int(time.time() * 1000) if self.is_begun and not self._catalog.index else 0
        try:
            index, replaced = self._write_index(first)
        except (OffsetLost, CorruptSegment) as error:
            first = self._drop_lost_index_segment(error)
            index, replaced = self._write_index(first)
        self._catalog = replace(self._catalog, index=index)
        self._place.save(self._catalog)
        self.is_begun, self._unsaved = True, 0
        self._place.delete(replaced)

    def _write_index(self, first: int) -> tuple[Segments, list[str]]:
        return self._filing.write(self._catalog, self._place.index(self._catalog), self._place.write, first)

    def _drop_lost_index_segment(self, error: StoreError) -> int:
        warnings.warn(
            f"{error}. The key index continues without it, so a search by key reads all messages that are archived "
            "until now",
            RuntimeWarning,
            stacklevel=2,
        )
        saved = self._place.load()
        for queue, archived in saved.queues.items() if saved is not None else ():
            if archived.indexed_from is not None:
                now = replace(self._catalog.queues[queue], indexed_from=archived.max_offset)
                self._catalog = self._catalog.having(queue, now)
        *kept, lost = self._catalog.index
        self._catalog = replace(self._catalog, index=tuple(kept))
        return lost.stop

    def _queue(self, queue: Queue, start: int, end: int) -> Iterator[Archived]:
        """Archive a range of one queue, and yield the counts of each piece.

        Raises `ArchiveOfAnother` if the topic was recreated concurrently.
        """
        piece: Piece | None = None
        limit = min(_BLOCK_BYTES, self._piece_bytes)
        of_store = self._published.of(queue.topic, queue.queue_id)
        before = self._catalog.queues[queue].last
        for checked in checked_blocks(self._log, of_store, start, end, limit):
            if before is None or before.physical_offset < self._log.min_offset() or start <= of_store.begin:
                known = start, fingerprint_of(checked, 0)
            else:
                known = start - 1, before
            if not can_have(self._log, of_store, *known):
                raise ArchiveOfAnother(
                    f"the store's message before offset {start} is not the archived one, so archiving cannot continue "
                    "there"
                )
            if piece is None:
                piece = self._next_piece(queue, start)
            piece.add(checked, queue, self._catalog.topics[queue.topic])
            start, before = start + len(checked.block), piece.last
            if piece.size >= self._piece_bytes:
                yield self._write(queue, piece)
                piece = None
        if piece is not None:
            yield self._write(queue, piece)

    def _next_piece(self, queue: Queue, offset: int) -> Piece:
        archived = self._catalog.queues[queue]
        last = archived.log[-1] if archived.log and archived.entries else None
        if last is None or last.sealed or last.size >= self._piece_bytes // _SMALL:
            return Piece(archived, offset)
        name = queue_path(self._catalog.broker, queue)
        kinds = (COMMIT_LOG, last), (CONSUME_QUEUE, archived.entries[-1])
        old = (self._old(f"{self._place.folder}/{segment_path(name, kind, it.base)}", it.size) for kind, it in kinds)
        return Piece(archived, offset, (next(old), next(old)))

    def _old(self, path: str, size: int) -> bytes:
        try:
            data = self._place.objects.read(path, 0, size)
        except FileNotFoundError:
            data = b""
        if len(data) != size:
            raise CorruptSegment(
                f"{self._place.url}/{path}: {len(data)} bytes instead of {size}, so it was changed or deleted. "
                "Restore it from a copy, or archive to another URL"
            )
        return data

    def _write(self, queue: Queue, piece: Piece) -> Archived:
        sealed = piece.size >= self._piece_bytes // _SMALL
        written = piece.write(self._place, queue_path(self._catalog.broker, queue), sealed=sealed)
        self._filing.take(piece.key_index_writer)
        self._stretch = min(self._stretch[0], piece.stretch[0]), max(self._stretch[1], piece.stretch[1])
        self._catalog = self._catalog.having(queue, self._catalog.queues[queue].written(*written))
        self._unsaved += piece.size
        return piece.added
