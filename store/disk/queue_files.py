"""The files of one queue: an array of 20-byte entries in fixed-size files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from store.disk.segment_file import OpenFiles
from store.disk.segments import Segments
from store.format.layout import CONSUME_QUEUE_DIR, CQ_ENTRY, CQ_PRE_BLANK_SIZE
from store.model.errors import OffsetLost

Entries = npt.NDArray[np.void]  # dtype CQ_ENTRY
MAKE_ANEW = (
    "Close the store in all processes, move the queue's folder out of the store, and open the store for writing: "
    "that rebuilds the queue from the log"
)
_EMPTY = bytes(CQ_ENTRY.itemsize)


def queue_segments(
    root: Path, topic: str, queue_id: int, file_size: int | None, *, writable: bool, files: OpenFiles | None = None
) -> Segments:
    return Segments(root, f"{CONSUME_QUEUE_DIR}/{topic}/{queue_id}", file_size, writable=writable, files=files)


class QueueFiles:
    """All entries of one queue, also those that do not count. Offsets are queue offsets, not bytes."""

    def __init__(self, segments: Segments, begin: int) -> None:
        """begin: see `Topics.begin`."""
        self.begin = begin
        self.segments = segments

    def __str__(self) -> str:
        return str(self.segments.directory)

    @property
    def entries_per_file(self) -> int:
        return self.segments.size // CQ_ENTRY.itemsize or 1  # without files any number above 0 will do

    def file_end(self, offset: int) -> int:
        in_file = self.entries_per_file
        return (offset // in_file + 1) * in_file

    @property
    def has_files(self) -> bool:
        return bool(self.segments.starts())

    def first(self) -> int:
        return max(self.begin, self.segments.first() // CQ_ENTRY.itemsize)

    def check(self) -> int:
        """Return `first()`. Raises as `Segments.check`."""
        starts = self.segments.check(MAKE_ANEW)
        return max(self.begin, starts[0] // CQ_ENTRY.itemsize if starts else 0)

    def entries(self, start: int, end: int, *, current: bool = False) -> Entries:
        """Return a copy of the entries, shape (end - start,). current: see `Segments.read`. Raises `OffsetLost`."""
        pieces = []
        while start < end:
            stop = min(end, self.file_end(start))
            pieces.append(self._read(start, stop, current=current))
            start = stop
        return np.frombuffer(b"".join(pieces), CQ_ENTRY)

    def entries_or_zeros(self, start: int, end: int) -> Entries:
        """Return `entries`, with zeros for missing files."""
        found, at = np.zeros(end - start, CQ_ENTRY), start
        while at < end:
            stop = min(end, self.file_end(at))
            with suppress(OffsetLost):
                found[at - start : stop - start] = self.entries(at, stop)
            at = stop
        return found

    def write(self, start: int, entries: Entries | bytes) -> bool:
        """Write entries from offset `start` on.

        Return False if this created a file and wrote to its middle, because then earlier entries were lost.

        A file is synced before the next one is created, because after a crash RocketMQ checks only the last three
        files. As in RocketMQ, the first file is filled with pre-blank entries up to the first entry.
        """
        in_file = self.entries_per_file
        is_whole = start != self.begin or self.write_blank(start - start % in_file, start)
        data = memoryview(entries if isinstance(entries, bytes) else entries.tobytes())
        while len(data):
            position, index = start * CQ_ENTRY.itemsize, start % in_file
            if start and index == 0 and not self.segments.exists(position):
                self.flush(start - 1, start)
            room = (in_file - index) * CQ_ENTRY.itemsize
            is_whole &= self.segments.write(position, data[:room])
            data, start = data[room:], start + in_file - index
        return is_whole

    def write_blank(self, start: int, end: int) -> bool:
        blank = np.zeros(end - start, CQ_ENTRY)
        blank["size"] = CQ_PRE_BLANK_SIZE
        return start == end or self.write(start, blank)

    def stale(self, max_offset: int) -> int | None:
        """Return the offset of the first entry at or after `max_offset` that is not empty."""
        for start in self.segments.starts()[-1:]:
            found = self.segments.first_not_zero(max_offset * CQ_ENTRY.itemsize, start + self.segments.size)
            return None if found is None else found // CQ_ENTRY.itemsize
        return None

    def rewrite(self, start: int) -> None:
        """Rewrite all entries from `start` on, see `Segments.rewrite`. Call this as the only writer."""
        for last in self.segments.starts()[-1:]:
            self.segments.rewrite(start * CQ_ENTRY.itemsize, last + self.segments.size)

    def flush(self, start: int, end: int) -> None:
        self.segments.flush(start * CQ_ENTRY.itemsize, end * CQ_ENTRY.itemsize)

    def _read(self, start: int, end: int, *, current: bool = False) -> bytes:
        """Read entries. If the last one is empty, open the file by its name again: it may have been replaced."""
        where = start * CQ_ENTRY.itemsize, (end - start) * CQ_ENTRY.itemsize
        data = self.segments.read(*where, current=current)
        return data if current or not data.endswith(_EMPTY) else self.segments.read(*where, current=True)
