"""The CommitLog: all records of all topics, one after the other, over `Segments`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from store.files.segment_file import OpenFiles, SegmentFile
from store.files.segments import Segments
from store.format.layout import (
    BLANK,
    COMMIT_LOG_DIR,
    END_FILE_MIN_BLANK_BYTES,
    MAGIC_BLANK,
    MIN_RECORD_BYTES,
    RECORD_HEADER,
)
from store.format.stored_message import adds_up
from store.model.errors import MessageRefused, OffsetLost, PutStatus

Stretches = Iterable[tuple[int, bytes | memoryview]]  # log offsets, and what is to be written there

_WRITE_BYTES = 32 << 20  # at once: Arrow joins less than 2 GiB
_SHORT_BYTES = 64 << 10  # of a record that is read whatever it is
_HEAD_BYTES = RECORD_HEADER["total_size"].itemsize  # without it no record is one


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an append goes: decided before a byte is written.

    physical_offsets: int64, shape (n,), one a record.
    end: log offset after the last record.
    runs: (first record, record after the last) of each contiguous piece; one a segment.
    blanks: log offsets from which a segment is left empty.
    """

    physical_offsets: npt.NDArray[np.int64]
    end: int
    runs: list[tuple[int, int]]
    blanks: list[int]


class _LogSegments(Segments):
    """What is open is read on when it is deleted; not when a recovery put a file in its place (`write_again`), to which
    others append from then on.
    """

    def _opened(self, start: int) -> SegmentFile:
        file = super()._opened(start)
        if file.is_deleted and self.exists(start):
            self.forget()
            file = super()._opened(start)
        return file


class CommitLog:
    """The log's segments, and the rule by which a record goes to the next one."""

    def __init__(self, root: Path, file_size: int | None, *, writable: bool, files: OpenFiles | None = None) -> None:
        """file_size, files: as `Segments` takes them."""
        self.segments = _LogSegments(root, COMMIT_LOG_DIR, file_size, writable=writable, files=files)

    def opened_again(self) -> CommitLog:
        """The same to be flushed beside appends, by a descriptor of its own: the system tells of a page that the device
        did not take once to each that is open, and whoever is not told takes his own for flushed.
        """
        segments = self.segments
        return CommitLog(segments.directory.parent, segments.size, writable=False, files=OpenFiles(1))

    def min_offset(self) -> int:
        """Log offset of the first byte still there; 0 for an empty log."""
        return self.segments.first()

    def has_room(self, begin: int, size: int) -> bool:
        """Whether the segment of log offset `begin` takes records of `size` bytes there, and a blank behind them."""
        return size <= self.segments.size - begin % self.segments.size - END_FILE_MIN_BLANK_BYTES

    @property
    def max_record_bytes(self) -> int:
        """The size of the largest record that fits a segment."""
        return self.segments.size - END_FILE_MIN_BLANK_BYTES

    def can_be_record(self, at: int, size: int) -> bool:
        """Whether a record of `size` bytes can begin at log offset `at`; ask before reading one.

        Damage may say a gigabyte: what is long has to say so in all of its lengths. Raises `OffsetLost`.
        """
        if at < 0 or MIN_RECORD_BYTES <= size <= _SHORT_BYTES:
            return at >= 0
        is_within = MIN_RECORD_BYTES <= size <= self.next_segment(at) - at
        return is_within and adds_up(size, lambda begin, length: self.segments.read(at + begin, length))

    def place(self, begin: int, sizes: npt.NDArray[np.int64]) -> Placement:
        """Lay records of `sizes` bytes out from log offset `begin`. Pure.

        A record goes to the next segment when it and the blank's 8 bytes do not fit (RocketMQ's
        `END_FILE_MIN_BLANK_LENGTH`). Raises `MessageRefused` for one that fits no segment.
        """
        size = self.segments.size
        ends = np.cumsum(sizes)
        if len(sizes) and self.has_room(begin, total := int(ends[-1])):  # as a rule
            return Placement(begin + ends - sizes, begin + total, [(0, len(sizes))], [])
        if len(sizes) and int(sizes.max()) > self.max_record_bytes:
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"a record of {int(sizes.max())} bytes fits no commit log segment of {size} bytes; "
                "create the store with a larger mappedFileSizeCommitLog",
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
        """What is written of records that go where `placement` says, some at a time, with the blanks.

        encoded: the bytes of records [first, last), back to back.
        """
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
        """Write what `stretches` say where they say it, in a log that goes up to `end`. Raises `StoreFull`, and
        `CorruptSegment` where the segment that it ends in is lost: a new one would have a hole before `end`.

        hidden: leave the head of the record at this log offset out, so that for whoever walks the log, in RocketMQ too,
        it ends there until `show`.
        """
        for at, data in stretches:
            anew = at - at % self.segments.size >= end
            if at == hidden:
                at, data = at + _HEAD_BYTES, memoryview(data)[_HEAD_BYTES:]
            self.segments.write(at, data, anew=anew)

    def show(self, offset: int, size: int, *, flush: bool) -> None:
        """Write the head of the record at log offset `offset`, `size` bytes long, that was hidden."""
        self.segments.write(offset, size.to_bytes(_HEAD_BYTES, "big"))
        if flush:
            self.segments.flush(offset, offset + _HEAD_BYTES)

    def clear(self, begin: int, end: int) -> None:
        """Zero [begin, end), on the device too: the first record's head first, so that none is there at any moment."""
        for stop in (min(begin + _HEAD_BYTES, end), end):
            self.segments.zero(begin, stop)
            self.segments.flush(begin, stop)

    def may_go_on(self, at: int) -> bool:
        """Whether a record, or a blank, may begin at log offset `at`, by its head."""
        try:
            return any(self.segments.read(at, _HEAD_BYTES, current=True))
        except OffsetLost:
            return False

    def drop_behind(self, end: int) -> None:
        """Delete the segments that begin behind the log's `end`: a broker that starts looks at the last ones only.

        Call when nobody writes any more.
        """
        behind = [start for start in self.segments.starts() if start > end]
        for start in reversed(behind):
            self.segments.delete(start)
        if behind:
            self.segments.forget()
            self.segments.flush_names()

    def forget_if_empty(self, end: int) -> None:
        """Close the segment that begins at the log's `end`: a broker that starts deletes it, to make it anew."""
        if end % self.segments.size == 0:
            self.segments.forget()

    def next_segment(self, offset: int) -> int:
        """Log offset of the segment after the one that holds `offset`."""
        return offset - offset % self.segments.size + self.segments.size
