"""Archiving: messages of a store's queues become segments of the archive, which count from the metadata's next word on.

A piece of a queue is written whole, its log before its entries, and read back; then the metadata names it. Who is
killed meanwhile leaves objects that nothing names, and the next one writes over them: the same bytes, and more. A last
segment that is small is written anew as a longer one; what it had stands in it still, at the same place. The keys of
what the metadata is about to name go into the index before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from store.any_log import Queue
from store.archive.catalog import ArchivedQueue, Catalog, Segment
from store.archive.key_index import Filing
from store.archive.layout import COMMIT_LOG, CONSUME_QUEUE, NO_TIME, queue_path, segment_path
from store.archive.place import Place
from store.errors import ArchiveOfAnother, CorruptSegment, OffsetLost
from store.format.layout import CQ_ENTRY, PROPERTY_CRC_BYTES, RECORD_HEADER, field_offset
from store.log.commit_log import CommitLog
from store.read.checked import Checked, checked_blocks
from store.read.published import PublishedQueues

PIECE_BYTES = 64 << 20  # of a queue's log: one object
_SMALL = 4  # a last segment of less than a piece by that is written anew
_PIECES_AT_ONCE = 4  # until the metadata is written
_BLOCK_BYTES = 8 << 20

Progress = Callable[[int, int], None]  # messages that are archived by now, of how many


class Archived(NamedTuple):
    """What one call archived. bytes: of records. deleted: objects of the archive that were too old."""

    messages: int = 0
    bytes: int = 0
    deleted: int = 0


class Piece:
    """What becomes one segment of a queue's log, and one of its entries."""

    def __init__(self, archived: ArchivedQueue, offset: int, old: tuple[bytes, bytes] | None = None) -> None:
        """offset: queue offset of the first message. old: log and entries of the last segments, to go on from."""
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

    def add(self, checked: Checked) -> None:
        """More messages, behind those that it has."""
        block, sizes, codes = checked
        at = self.base + self.size
        self._log.append(block.moved(at).data)
        entries = np.empty(len(block), CQ_ENTRY)
        ends = np.cumsum(sizes)
        entries["physical_offset"], entries["size"], entries["tags_code"] = at + ends - sizes, sizes, codes
        self._entries.append(entries.tobytes())
        self.size += int(ends[-1])
        self.added = Archived(self.added.messages + len(block), self.added.bytes + int(ends[-1]))
        times = block.field("store_timestamp")
        known = self.end != NO_TIME
        self.begin = min(self.begin, int(times.min()))
        self.end = max(self.end, int(times.max())) if known else int(times.max())

    def write(self, place: Place, queue: str, *, sealed: bool) -> tuple[Segment, Segment]:
        """Write both, read them back, and give what the metadata is to say of them."""
        log, entries = b"".join(self._log), b"".join(self._entries)
        for kind, base, data in ((COMMIT_LOG, self.base, log), (CONSUME_QUEUE, self.entries_base, entries)):
            place.write(segment_path(queue, kind, base), data)
        times = self.begin, self.end, sealed
        return Segment(self.base, len(log), *times), Segment(self.entries_base, len(entries), *times)


class Archiving:
    """One store on its way into its archive. Call under its lock, see `of_store`."""

    def __init__(
        self, log: CommitLog, published: PublishedQueues, place: Place, broker: str, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self._log = log
        self._published = published
        self._place = place
        self._piece_bytes = piece_bytes
        self._catalog = place.load() or Catalog(broker)
        self._filing = Filing()
        self._unsaved = 0

    def run(self, ends: Mapping[Queue, int], progress: Progress = lambda done, total: None) -> Archived:
        """Archive each queue up to its end, which is published.

        Raises `ArchiveOfAnother`, `OffsetLost` where retention was faster, `ArchiveUnavailable`, `CorruptRecord`.
        """
        begins = {queue: self._begin(queue, end) for queue, end in ends.items()}
        total, done, taken = sum(max(0, end - begins[queue]) for queue, end in ends.items()), 0, 0
        progress(0, total)
        changed = False
        for queue, end in ends.items():
            if queue not in self._catalog.queues:
                self._catalog, changed = self._catalog.having(queue, ArchivedQueue(next_offset=begins[queue])), True
            if self._catalog.queues[queue].indexed_from is None:
                known = replace(self._catalog.queues[queue], indexed_from=begins[queue])
                self._catalog = self._catalog.having(queue, known)
            for added in self._queue(queue, begins[queue], end):
                changed = True
                done, taken = done + added.messages, taken + added.bytes
                if self._unsaved >= _PIECES_AT_ONCE * self._piece_bytes:
                    self._save()
                progress(done, total)
        if changed:
            self._save()
        return Archived(done, taken)

    def _save(self) -> None:
        index, replaced = self._filing.write(self._catalog, self._place.index(self._catalog), self._place.write)
        self._catalog = replace(self._catalog, index=index)
        self._place.save(self._catalog)
        self._unsaved = 0
        self._place.delete(replaced)

    def _begin(self, queue: Queue, end: int) -> int:
        """The queue offset from which on it is not archived yet."""
        minimum, maximum = self._published.offsets(*queue)
        archived = self._catalog.queue(queue)
        if archived is None or not archived.entries:
            return minimum
        begin = archived.max_offset
        where = f"{self._place.url}: {queue}"
        if begin > maximum:
            raise ArchiveOfAnother(f"{where}: archived up to offset {begin}, the store ends at {maximum}; {_ELSEWHERE}")
        if begin < minimum:
            raise OffsetLost(
                f"{where}: archived up to offset {begin}, but the store has messages from {minimum} on only: those in "
                f"between were deleted before; {_ELSEWHERE}"
            )
        if minimum < begin:
            self._must_be_same(queue, begin - 1)
        return begin

    def _must_be_same(self, queue: Queue, offset: int) -> None:
        """The last archived message is one of this store's."""
        if not is_archived(self._log, self._published, self._place, self._catalog, queue, offset):
            raise ArchiveOfAnother(
                f"{self._place.url}: {queue}: another message is archived at offset {offset} than the store has; "
                f"{_ELSEWHERE}"
            )

    def _queue(self, queue: Queue, start: int, end: int) -> Iterator[Archived]:
        piece: Piece | None = None
        limit = min(_BLOCK_BYTES, self._piece_bytes)
        for checked in checked_blocks(self._log, self._published.of(*queue), start, end, limit):
            if piece is None:
                piece = self._next_piece(queue, start)
            self._filing.add(queue, self._catalog.topics[queue.topic], checked, piece.base + piece.size)
            piece.add(checked)
            start += len(checked.block)
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
        name = queue_path(self._catalog.broker, *queue)
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
                f"{self._place.url}/{path}: {len(data)} bytes instead of {size}: it was changed or deleted; restore it "
                "from a copy, or archive elsewhere"
            )
        return data

    def _write(self, queue: Queue, piece: Piece) -> Archived:
        sealed = piece.size >= self._piece_bytes // _SMALL
        written = piece.write(self._place, queue_path(self._catalog.broker, *queue), sealed=sealed)
        self._catalog = self._catalog.having(queue, self._catalog.queues[queue].written(*written))
        self._unsaved += piece.size
        return piece.added


_ELSEWHERE = "archive to another URL, or under another brokerName"


def is_archived(
    log: CommitLog, published: PublishedQueues, place: Place, catalog: Catalog, queue: Queue, offset: int
) -> bool:
    """Whether what is archived at an offset that both have is the store's message, and none of another's, or of a topic
    of the same name that was deleted.
    """
    flat = place.queue(catalog, queue)
    if flat is None:
        return False
    here = _record(log, published, queue, offset)
    entry = flat.entries.entries(offset, offset + 1)[0]
    archived = flat.log.read(int(entry["physical_offset"]), int(entry["size"]))
    return _without_place(here) == _without_place(archived)


def stored_at(log: CommitLog, published: PublishedQueues, queue: Queue, offset: int) -> int:
    """When a message that the store has was stored, ms since 1970."""
    record = np.frombuffer(_record(log, published, queue, offset), RECORD_HEADER, 1)
    return int(record["store_timestamp"][0])


def _record(log: CommitLog, published: PublishedQueues, queue: Queue, offset: int) -> bytes:
    physical, size, _ = published.of(*queue).entries(offset, offset + 1)[0].item()
    return log.segments.read(physical, size)


def _without_place(record: bytes) -> bytes:
    """A record without what depends on where it stands."""
    at = field_offset(RECORD_HEADER, "physical_offset")
    return record[:at] + record[at + RECORD_HEADER["physical_offset"].itemsize : -PROPERTY_CRC_BYTES]
