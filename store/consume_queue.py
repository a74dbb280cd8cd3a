"""The ConsumeQueue of one topic and queue: an array of 20-byte entries over `Segments`.

An entry counts when `size > 0` and `physical_offset + size <= confirm offset`. That is monotone along a queue:
all entries before the tail count, none after it does. So the tail is found by bisection and followed from there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from store.errors import CorruptSegment, OffsetLost
from store.layout import CONSUME_QUEUE_DIR, CQ_ENTRY, CQ_PRE_BLANK_SIZE
from store.segments import Segments

Entries = npt.NDArray[np.void]  # dtype CQ_ENTRY


class ConsumeQueue:
    """Entries of one queue, addressed by queue offset (an index, not a byte offset)."""

    def __init__(self, root: Path, topic: str, queue_id: int, file_size: int, *, writable: bool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._segments = Segments(root, f"{CONSUME_QUEUE_DIR}/{topic}/{queue_id}", file_size, writable=writable)
        self.entries_per_file = file_size // CQ_ENTRY.itemsize

    def first(self) -> int:
        """Queue offset of the first entry of the first file, 0 without files."""
        return next(iter(self._segments.starts()), 0) // CQ_ENTRY.itemsize

    def tail(self, confirm_offset: int, known: int = 0) -> int:
        """Queue offset after the last entry that counts; `known` is a tail seen earlier, to start from."""
        start = low = max(known, self.first()) if known == 0 else known
        step = 1
        while self._counts(low + step - 1, confirm_offset):
            low, step = low + step, step * 2
        high = low + step - 1
        while low < high:  # entries below low count, the one at high does not
            middle = (low + high) // 2
            if self._counts(middle, confirm_offset):
                low = middle + 1
            else:
                high = middle
        # One look at an entry that is being written may show its size without its offset; a second shows both.
        while low > start and not self._counts(low - 1, confirm_offset):
            low -= 1
        return low

    def head(self, min_physical_offset: int, tail: int) -> int:
        """Queue offset of the first entry whose record the log still has; `tail` when there is none."""
        low, high = self.first(), tail
        while low < high:
            middle = (low + high) // 2
            entry = self.entries(middle, middle + 1)[0]
            if entry["physical_offset"] < min_physical_offset or entry["size"] == CQ_PRE_BLANK_SIZE:
                low = middle + 1
            else:
                high = middle
        return low

    def entries(self, start: int, end: int) -> Entries:
        """Entries [start, end), shape (end - start,), dtype CQ_ENTRY, copied.

        Raises `OffsetLost` when a file is gone, `CorruptSegment` when one is shorter than it was.
        """
        pieces = []
        while start < end:
            stop = min(end, (start // self.entries_per_file + 1) * self.entries_per_file)
            length = (stop - start) * CQ_ENTRY.itemsize
            data = self._segments.read(start * CQ_ENTRY.itemsize, length)
            if len(data) != length:
                raise CorruptSegment(f"{self._segments.directory}: entries {start} to {stop} are cut off")
            pieces.append(data)
            start = stop
        return np.frombuffer(b"".join(pieces), CQ_ENTRY)

    def write(self, start: int, entries: Entries) -> None:
        """Write entries from queue offset `start` on, creating files as needed. Raises `StoreFull`."""
        while len(entries):
            count = min(len(entries), self.entries_per_file - start % self.entries_per_file)
            self._segments.write(start * CQ_ENTRY.itemsize, entries[:count].tobytes())
            entries, start = entries[count:], start + count

    def write_first(self, start: int, entries: Entries) -> None:
        """`write`, for a queue that may have no file yet although it does not begin at 0.

        As RocketMQ does, pre-blank entries stand in the first file before its first real one.
        """
        if start % self.entries_per_file and not self._segments.starts():
            blank = np.zeros(start % self.entries_per_file, CQ_ENTRY)
            blank["size"] = CQ_PRE_BLANK_SIZE
            self.write(start - len(blank), blank)
        self.write(start, entries)

    def truncate(self, tail: int) -> None:
        """Zero every entry from `tail` on: what a dead writer left must never count later."""
        starts = self._segments.starts()
        if starts:
            self._segments.zero(tail * CQ_ENTRY.itemsize, starts[-1] + self._segments.size)

    def flush(self, start: int, end: int) -> None:
        """Bring entries [start, end) to the device."""
        self._segments.flush(start * CQ_ENTRY.itemsize, end * CQ_ENTRY.itemsize)

    def _counts(self, index: int, confirm_offset: int) -> bool:
        try:
            data = self._segments.read(index * CQ_ENTRY.itemsize, CQ_ENTRY.itemsize)
        except OffsetLost:
            return False
        entry = np.frombuffer(data, CQ_ENTRY)[0]
        offset, size = int(entry["physical_offset"]), int(entry["size"])
        return size > 0 and (offset + size <= confirm_offset or (offset == 0 and size == CQ_PRE_BLANK_SIZE))
