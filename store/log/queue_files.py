"""The files of one queue: an array of 20-byte entries over `Segments`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from store.files.segment_file import OpenFiles
from store.files.segments import Segments
from store.format.layout import CONSUME_QUEUE_DIR, CQ_ENTRY, CQ_PRE_BLANK_SIZE
from store.model.errors import OffsetLost

Entries = npt.NDArray[np.void]  # dtype CQ_ENTRY
MAKE_ANEW = (
    "close the store everywhere, move the queue's folder out of it, and open it for writing: the queue is made anew "
    "from the log"
)
_EMPTY = bytes(CQ_ENTRY.itemsize)


def queue_segments(
    root: Path, topic: str, queue_id: int, file_size: int | None, *, writable: bool, files: OpenFiles | None = None
) -> Segments:
    """Return the segments of one queue. file_size, files: as `Segments` takes them."""
    return Segments(root, f"{CONSUME_QUEUE_DIR}/{topic}/{queue_id}", file_size, writable=writable, files=files)


class QueueFiles:
    """Entries of one queue, addressed by queue offset (an index, not a byte offset), whether they count or not."""

    def __init__(self, segments: Segments, begin: int) -> None:
        """begin: see `Topics.begin`."""
        self.begin = begin
        self.segments = segments

    def __str__(self) -> str:
        return str(self.segments.directory)

    @property
    def entries_per_file(self) -> int:
        """How many entries a file has."""
        return self.segments.size // CQ_ENTRY.itemsize or 1  # without files it is all the same

    def file_end(self, offset: int) -> int:
        """Queue offset after the last entry of the file that entry `offset` is in."""
        return (offset // self.entries_per_file + 1) * self.entries_per_file

    @property
    def has_files(self) -> bool:
        """Whether it has any; without one it has no messages."""
        return bool(self.segments.starts())

    def first(self) -> int:
        """Queue offset of the first entry of the first file that can be a message's; where it begins without files."""
        return max(self.begin, self.segments.first() // CQ_ENTRY.itemsize)

    def check(self) -> int:
        """`first`; raises `CorruptSegment` for a file with a wrong name or length, or one missing in between."""
        starts = self.segments.check(MAKE_ANEW)
        return max(self.begin, starts[0] // CQ_ENTRY.itemsize if starts else 0)

    def entries(self, start: int, end: int, *, current: bool = False) -> Entries:
        """Entries [start, end), shape (end - start,), dtype CQ_ENTRY, copied. current: as `Segments.read` takes it.

        Raises `OffsetLost` when a file is gone, `CorruptSegment` when one is shorter than it was.
        """
        pieces = []
        while start < end:
            stop = min(end, self.file_end(start))
            pieces.append(self._read(start, stop, current=current))
            start = stop
        return np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), CQ_ENTRY)

    def entries_left(self, start: int, end: int) -> Entries:
        """`entries`, zeros where a file is gone."""
        found, at = np.zeros(end - start, CQ_ENTRY), start
        while at < end:
            stop = min(end, self.file_end(at))
            with suppress(OffsetLost):
                found[at - start : stop - start] = self.entries(at, stop)
            at = stop
        return found

    def write(self, start: int, entries: Entries | bytes) -> bool:
        """Write entries, or their bytes, from queue offset `start` on, creating files as needed; whether each that was
        made begins with them: or else a file that had others is lost.

        Raises `StoreFull`, `FlushFailed`.

        A file is begun when the one before is on the device: after a crash RocketMQ looks at the last three only.
        As RocketMQ does, the first entry of the queue gets pre-blank entries before it in its file.
        """
        is_whole = start != self.begin or self.write_blank(start - start % self.entries_per_file, start)
        data = memoryview(entries if isinstance(entries, bytes) else entries.tobytes())
        while len(data):
            position, index = start * CQ_ENTRY.itemsize, start % self.entries_per_file
            if start and index == 0 and not self.segments.exists(position):
                self.flush(start - 1, start)
            room = (self.entries_per_file - index) * CQ_ENTRY.itemsize
            is_whole &= self.segments.write(position, data[:room])
            data, start = data[room:], start + self.entries_per_file - index
        return is_whole

    def write_blank(self, start: int, end: int) -> bool:
        """As `write` of pre-blank entries in [start, end)."""
        blank = np.zeros(end - start, CQ_ENTRY)
        blank["size"] = CQ_PRE_BLANK_SIZE
        return start == end or self.write(start, blank)

    def stale(self, max_offset: int) -> int | None:
        """Queue offset of the first entry from `end` on that is not empty, None without: none may be there."""
        for start in self.segments.starts()[-1:]:
            found = self.segments.first_not_zero(max_offset * CQ_ENTRY.itemsize, start + self.segments.size)
            return None if found is None else found // CQ_ENTRY.itemsize
        return None

    def write_again(self, start: int) -> None:
        """`Segments.write_again` of the files from that of entry `start` on. Call as the only writer."""
        for last in self.segments.starts()[-1:]:
            self.segments.write_again(start * CQ_ENTRY.itemsize, last + self.segments.size)

    def flush(self, start: int, end: int) -> None:
        """Bring entries [start, end) to the device."""
        self.segments.flush(start * CQ_ENTRY.itemsize, end * CQ_ENTRY.itemsize)

    def _read(self, start: int, end: int, *, current: bool = False) -> bytes:
        """Entries [start, end), which stand in one file; an empty one is looked for again in the file on disk."""
        where = start * CQ_ENTRY.itemsize, (end - start) * CQ_ENTRY.itemsize
        data = self.segments.read(*where, current=current)
        return data if current or not data.endswith(_EMPTY) else self.segments.read(*where, current=True)
