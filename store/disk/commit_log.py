"""The CommitLog: the records of all topics in one sequence of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from store.disk.segment_file import OpenFiles, SegmentFile
from store.disk.segments import Segments
from store.format.layout import (
    BLANK,
    COMMIT_LOG_DIR,
    END_FILE_MIN_BLANK_BYTES,
    MAGIC_BLANK,
    MIN_RECORD_BYTES,
    RECORD_HEADER,
)
from store.format.stored_message import lengths_add_up
from store.model.errors import MessageRefused, OffsetLost, PutStatus

Stretches = Iterable[tuple[int, bytes | memoryview]]  # log offset and data of each write

_WRITE_BYTES = 32 << 20  # Arrow joins at most 2 GiB
_SHORT_BYTES = 64 << 10
_HEAD_BYTES = RECORD_HEADER["total_size"].itemsize


@dataclass(frozen=True, slots=True)
class Placement:
    """The positions of an append's n records.

    physical_offsets: shape (n,).
    runs: [first, last) records of each contiguous piece, at most one per segment.
    blanks: log offsets from which a segment stays unused.
    """

    physical_offsets: npt.NDArray[np.int64]
    end: int
    runs: list[tuple[int, int]]
    blanks: list[int]


class _LogSegments(Segments):
    """The segments of a commit log.

    An open segment stays readable after its deletion, unless recovery replaced it: then writers append to the
    replacement.
    """

    def _opened(self, start: int) -> SegmentFile:
        file = super()._opened(start)
        if file.is_deleted and self.exists(start):
            self.forget()
            file = super()._opened(start)
        return file


class CommitLog:
    def __init__(self, root: Path, file_size: int | None, *, writable: bool, files: OpenFiles | None = None) -> None:
        self.segments = _LogSegments(root, COMMIT_LOG_DIR, file_size, writable=writable, files=files)

    def opened_again(self) -> CommitLog:
        """Return the same log with new descriptors, to flush it concurrently with appends.

        The system reports a failed write once per open file: with shared descriptors, one of two flushes would miss the
        error.
        """
        segments = self.segments
        return CommitLog(segments.directory.parent, segments.size, writable=False, files=OpenFiles(1))

    def min_offset(self) -> int:
        return self.segments.first()

    def has_room(self, begin: int, size: int) -> bool:
        return size <= self.segments.size - begin % self.segments.size - END_FILE_MIN_BLANK_BYTES

    @property
    def max_record_bytes(self) -> int:
        return self.segments.size - END_FILE_MIN_BLANK_BYTES

    def can_be_record(self, at: int, size: int) -> bool:
        """Return whether a record can begin at log offset `at`. Raises `OffsetLost`.

        Call this before reading the record, because a damaged size may be a gigabyte.
        """
        if at < 0 or MIN_RECORD_BYTES <= size <= _SHORT_BYTES:
            return at >= 0
        is_within = MIN_RECORD_BYTES <= size <= self.next_segment(at) - at
        return is_within and lengths_add_up(size, lambda begin, length: self.segments.read(at + begin, length))

    def place(self, begin: int, sizes: npt.NDArray[np.int64]) -> Placement:
        """Compute the positions of records from log offset `begin` on.

        As in RocketMQ, a record goes to the next segment if it and a blank do not fit. Raises `MessageRefused` for a
        record larger than a segment.
        """
        size = self.segments.size
        ends = np.cumsum(sizes)
        if len(sizes) and self.has_room(begin, total := int(ends[-1])):  # usually
            return Placement(begin + ends - sizes, begin + total, [(0, len(sizes))], [])
        if len(sizes) and int(sizes.max()) > self.max_record_bytes:
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"a record has {int(sizes.max())} bytes, and a commit log segment has {size}. Send a smaller "
                "message, or create the store with a larger mappedFileSizeCommitLog",
            )
        physical_offsets = np.empty(len(sizes), np.int64)
        runs: list[tuple[int, int]] = []
        blanks: list[int] = []
        first, done, at = 0, 0, begin
        while first < len(sizes):
            room = size - at % size - END_FILE_MIN_BLANK_BYTES
            last = int(np.searchsorted(ends, done + room, side="right"))
            if last > first:
                physical_offsets[first:last] = at + ends[first:last] - sizes[first:last] - done
                runs.append((first, last))
                at += int(ends[last - 1]) - done
                done = int(ends[last - 1])
            if last < len(sizes):
                blanks.append(at)
                at += size - at % size
            first = last
        return Placement(physical_offsets, at, runs, blanks)

    def stretches(
        self, placement: Placement, encoded: Callable[[int, int], memoryview]
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield the writes of an append. encoded: returns the bytes of records [first, last)."""
        for at in placement.blanks:
            blank = np.zeros(1, BLANK)
            blank["length"], blank["magic"] = self.segments.size - at % self.segments.size, MAGIC_BLANK
            yield at, blank.tobytes()
        offsets = placement.physical_offsets
        for first, last in placement.runs:
            while first < last:
                end = int(np.searchsorted(offsets[:last], offsets[first] + _WRITE_BYTES))
                yield int(offsets[first]), encoded(first, end)
                first = end

    def write(self, stretches: Stretches, end: int = 0, *, hidden: int | None = None) -> None:
        """Write to a log that ends at `end`.

        Raises `StoreFull`, and `CorruptSegment` if the last segment is missing: a new one would have a hole before
        `end`.

        hidden: log offset of a record whose size is left zero. Readers, including RocketMQ's, stop there until `show`.
        """
        for at, data in stretches:
            may_create = at - at % self.segments.size >= end
            if at == hidden:
                at, data = at + _HEAD_BYTES, memoryview(data)[_HEAD_BYTES:]
            self.segments.write(at, data, may_create=may_create)

    def show(self, offset: int, size: int, *, flush: bool) -> None:
        self.segments.write(offset, size.to_bytes(_HEAD_BYTES, "big"))
        if flush:
            self.segments.flush(offset, offset + _HEAD_BYTES)

    def clear(self, begin: int, end: int) -> None:
        """Zero and sync [begin, end). The first record's size is zeroed first, so that no reader sees half of the
        record.
        """
        for stop in (min(begin + _HEAD_BYTES, end), end):
            self.segments.zero(begin, stop)
            self.segments.flush(begin, stop)

    def is_written_at(self, at: int) -> bool:
        try:
            return any(self.segments.read(at, _HEAD_BYTES, current=True))
        except OffsetLost:
            return False

    def delete_segments_after(self, end: int) -> None:
        """Delete the segments after `end`, because a starting broker reads only the last ones. Call this without other
        writers.
        """
        behind = [start for start in self.segments.starts() if start > end]
        for start in reversed(behind):
            self.segments.delete(start)
        if behind:
            self.segments.forget()
            self.segments.flush_names()

    def forget_if_empty(self, end: int) -> None:
        """Close the segment that begins at `end`, because a starting broker recreates its file."""
        if end % self.segments.size == 0:
            self.segments.forget()

    def next_segment(self, offset: int) -> int:
        return offset - offset % self.segments.size + self.segments.size
