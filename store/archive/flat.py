"""`FlatQueue`: the log and the entries of one archived queue, with the interfaces that `store.read` uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from store.archive.catalog import COMMIT_LOG, CONSUME_QUEUE, ArchivedQueue, Segments, segment_path
from store.disk.queue_files import Entries
from store.format.arrays import Bytes
from store.format.layout import CQ_ENTRY, RECORD_HEADER, field_offset
from store.model.errors import CorruptSegment, OffsetLost
from store.model.log_protocol import Fingerprint, Queue
from store.objects.any_objects import ByteReader
from store.read.fingerprint import fingerprint

_PIECE_BYTES = 4 << 20  # of the log, per request
_ENTRIES_PIECE_BYTES = (1 << 16) * CQ_ENTRY.itemsize  # per request
_BLOCK_ENTRIES = 1 << 11  # per request, and cached, for a single entry
_ENDLESS = 1 << 62
MAX_STRETCH = 4 * _PIECE_BYTES

Read = Callable[[int, int], bytes]  # bytes [begin, end)


class FlatFile:
    """A file stored as segments, one object each."""

    def __init__(self, objects: ByteReader, folder: str, queue: str, kind: str, segments: Segments) -> None:
        """Name the objects of the segments. folder: the cluster's folder. queue: a `queue_path`."""
        self._objects = objects
        self._segments = segments
        self.where = f"{objects.url}/{folder}/{queue}/{kind}"
        self._paths = [f"{folder}/{segment_path(queue, kind, each.base)}" for each in segments]

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes [begin, end). Raises `OffsetLost`, `CorruptSegment`, `ObjectsUnavailable`."""
        parts = []
        for segment, path in zip(self._segments, self._paths, strict=True):
            first, last = max(begin, segment.base), min(end, segment.stop)
            if first < last:
                parts.append(self._of_segment(path, first - segment.base, last - segment.base))
        if sum(map(len, parts)) != end - begin:
            raise OffsetLost(
                f"{self.where}: bytes {begin} to {end} were deleted from the archive. Read on from a later offset"
            )
        return b"".join(parts)

    def view(self, begin: int, end: int) -> Bytes:
        return np.frombuffer(self.read(begin, end), np.uint8)

    def _of_segment(self, path: str, begin: int, end: int) -> bytes:
        try:
            data = self._objects.read(path, begin, end)
        except FileNotFoundError as error:
            raise OffsetLost(
                f"{self._objects.url}/{path}: this object was deleted, by retention or by mistake. Read on from a "
                "later offset, or restore an object that was deleted by mistake from a copy"
            ) from error
        if len(data) != end - begin:
            raise CorruptSegment(
                f"{self._objects.url}/{path}: this object ends before byte {end}, although the metadata says that "
                "it has more bytes. It was changed or truncated: restore it from a copy, or read on from a later "
                "offset"
            )
        return data


class FlatLog:
    """A queue's own log, with the interface of a store's log that has one endless segment."""

    size = _ENDLESS

    def __init__(self, file: FlatFile, begin: int, view: Callable[[int, int], Bytes] | None = None) -> None:
        """Begin the log at offset `begin`. view: returns the bytes at an offset; by default `file` is read."""
        self._file = file
        self._begin = begin
        self._view = view

    @property
    def segments(self) -> FlatLog:
        return self

    def min_offset(self) -> int:
        return self._begin

    def next_segment(self, offset: int) -> int:
        return _ENDLESS

    def view(self, offset: int, length: int) -> Bytes:
        if self._view is not None:
            return self._view(offset, length)
        return self._file.view(offset, offset + length)

    def read(self, offset: int, length: int, *, current: bool = False) -> bytes:
        return self.view(offset, length).tobytes()


class FlatConsumeQueue:
    def __init__(self, queue: Queue, read: Read, max_offset: int) -> None:
        self.topic, self.queue_id = queue.topic, queue.queue_id
        self._read = read
        self._max_offset = max_offset
        self._block: tuple[int, Entries] = (0, np.empty(0, CQ_ENTRY))

    def entries(self, start: int, end: int, *, current: bool = False) -> Entries:
        return self._one(start) if end - start == 1 else self._many(start, end)

    def _many(self, start: int, end: int) -> Entries:
        return np.frombuffer(self._read(start * CQ_ENTRY.itemsize, end * CQ_ENTRY.itemsize), CQ_ENTRY)

    def _one(self, offset: int) -> Entries:
        """Return one entry. A cache miss reads a block, because callers read nearby entries."""
        begin, block = self._block
        if not begin <= offset < begin + len(block):
            begin, block = offset, self._many(offset, min(max(self._max_offset, offset + 1), offset + _BLOCK_ENTRIES))
            self._block = begin, block
        return block[offset - begin : offset - begin + 1]


class ReadAhead:
    """Prefetches bytes [begin, end) of a file for a sequential reader. Not thread-safe.

    ahead: number of pieces, of `piece` bytes, that are requested in advance. Earlier pieces are dropped.
    """

    def __init__(self, read: Read, begin: int, end: int, piece: int, ahead: int, pool: ThreadPoolExecutor) -> None:
        self._read = read
        self._begin = begin
        self._end = end
        self._piece = piece
        self._ahead = ahead
        self._pool = pool
        self._pieces: dict[int, Future[bytes]] = {}

    def view(self, offset: int, length: int) -> Bytes:
        """Return bytes [offset, offset + length), uint8. Raises as `read`."""
        if not self._begin <= offset <= offset + length <= self._end:
            return np.frombuffer(self._read(offset, offset + length), np.uint8)
        first, last = self._number(offset), self._number(max(offset, offset + length - 1))
        self._pieces = {number: piece for number, piece in self._pieces.items() if number >= first}
        for number in range(first, min(last + 1 + self._ahead, self._number(self._end - 1) + 1)):
            if number not in self._pieces:
                at = self._begin + number * self._piece
                self._pieces[number] = self._pool.submit(self._read, at, min(at + self._piece, self._end))
        parts = [np.frombuffer(self._pieces[number].result(), np.uint8) for number in range(first, last + 1)]
        skipped = offset - self._begin - first * self._piece
        return (parts[0] if len(parts) == 1 else np.concatenate(parts))[skipped : skipped + length]

    def _number(self, offset: int) -> int:
        return (offset - self._begin) // self._piece


class FlatQueue:
    """The archived part of one queue, for reading. begin: the first offset of its log that is not deleted."""

    def __init__(self, objects: ByteReader, folder: str, path: str, queue: Queue, archived: ArchivedQueue) -> None:
        self.queue = queue
        self.archived = archived
        self._log_file = FlatFile(objects, folder, path, COMMIT_LOG, archived.log)
        self._entries_file = FlatFile(objects, folder, path, CONSUME_QUEUE, archived.entries)
        self.begin = archived.log[0].base if archived.log else 0
        self._end = archived.log[-1].stop if archived.log else 0
        self._ahead = objects.ahead
        self._min_offset: int | None = None
        self._fingerprint: tuple[int, Fingerprint | None] = (0, None)  # queue offset and its fingerprint, cached
        self.log = FlatLog(self._log_file, self.begin)
        self.entries = FlatConsumeQueue(queue, self._read_entries, archived.max_offset)

    def min_offset(self) -> int:
        """Return the offset of the first message whose record is not deleted.

        A broker deletes segments of log and entries independently, so the first entries may have no record.
        """
        if self._min_offset is None:
            first, end = self.archived.first_entry, self.archived.max_offset
            if self.begin and self.archived.log[0].size and first < end:
                first = self._first_with_record(first, end)
            self._min_offset = first
        return self._min_offset

    def _read_entries(self, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of the entries.

        Raises `OffsetLost` for objects of a recreated topic, which may have the same names. Their log begins after this
        one's end.
        """
        data = self._entries_file.read(begin, end)
        if (np.frombuffer(data[: CQ_ENTRY.itemsize], CQ_ENTRY)["physical_offset"] >= self._end).any():
            raise OffsetLost(
                f"{self._entries_file.where}: bytes {begin} to {end} were deleted from the archive. Read on from a "
                "later offset"
            )
        return data

    def _first_with_record(self, first: int, end: int) -> int:
        middle = first  # usually the answer
        while first < end:
            if self.entries.entries(middle, middle + 1)[0]["physical_offset"] < self.begin:
                first = middle + 1
            else:
                end = middle
            middle = (first + end) // 2
        return end

    def fingerprint(self, offset: int) -> Fingerprint:
        """Return the fingerprint of the message at an offset. Cached, because a waiting reader polls one offset."""
        known, found = self._fingerprint
        if found is None or known != offset:
            found = fingerprint(self.log, self.entries, offset)
            self._fingerprint = offset, found
        return found

    def offset_of(self, physical_offset: int) -> int | None:
        """Return the queue offset of the record at a log offset, None if no record begins there."""
        at = physical_offset + field_offset(RECORD_HEADER, "queue_offset")
        width = RECORD_HEADER["queue_offset"].itemsize
        if not self.begin <= physical_offset <= at + width <= self._end:
            return None
        offset = int.from_bytes(self.log.read(at, width), "big", signed=True)
        if not self.min_offset() <= offset < self.archived.max_offset:
            return None
        entry = self.entries.entries(offset, offset + 1)[0]
        return offset if entry["physical_offset"] == physical_offset else None

    def offsets(self) -> tuple[int, int]:
        return self.min_offset(), self.archived.max_offset

    @contextmanager
    def ahead(self, start: int, end: int) -> Iterator[tuple[FlatLog, FlatConsumeQueue]]:
        """Yield log and entries that prefetch, to read messages [start, end) in order.

        The range must not be empty. On exit, requests that are not sent yet are cancelled.
        """
        if not self._ahead:
            yield self.log, self.entries
            return
        width = CQ_ENTRY.itemsize
        with ThreadPoolExecutor(self._ahead + 1) as pool:
            try:
                entries = ReadAhead(self._read_entries, start * width, end * width, _ENTRIES_PIECE_BYTES, 1, pool)
                queue = FlatConsumeQueue(
                    self.queue, lambda begin, stop: entries.view(begin, stop - begin).tobytes(), end
                )
                last = self.entries.entries(end - 1, end)[0]
                stop = int(last["physical_offset"] + last["size"])
                begin = int(queue.entries(start, start + 1)[0]["physical_offset"])
                log = ReadAhead(self._log_file.read, begin, stop, _PIECE_BYTES, self._ahead, pool)
                yield FlatLog(self._log_file, self.begin, log.view), queue
            finally:
                pool.shutdown(cancel_futures=True)
