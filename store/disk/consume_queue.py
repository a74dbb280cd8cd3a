"""The ConsumeQueue of one queue: its first and last entries.

An entry counts if `size > 0` and `physical_offset + size <= confirm offset`. No entry after the queue's end counts, so
the end is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from store.disk.queue_files import MAKE_ANEW, QueueFiles, queue_segments
from store.disk.segments import Segments
from store.format.layout import CQ_ENTRY, CQ_PRE_BLANK_SIZE
from store.model.errors import CorruptSegment, OffsetLost
from store.model.integers import LONG_MAX

_NO_ENTRIES = np.empty(0, CQ_ENTRY)
_NEARBY = 4
_LEFT_AT_ONCE = 4096  # entries
IsMessage = Callable[[str, int, int, int, int], bool]  # topic, queue id, queue offset, physical offset, size


class QueueEnd:
    def __init__(self, files: QueueFiles, name: tuple[str, int], least_end: int, is_message: IsMessage | None) -> None:
        """least_end: entries that the queue once had. is_message: a further condition for an entry to count."""
        self._files = files
        self._name = name
        self._least_end = least_end
        self._is_message = is_message
        self._found_end = 0

    def find(self, confirm_offset: int) -> int:
        """Return the queue's end. Raises as `check`, and if entries were lost."""
        if not self._found_end and not self._least_end and not self._files.segments.has_folder:
            return self._files.begin  # one system call instead of three: many queues are empty
        start, low = self._found_end, self._end_nearby(confirm_offset)
        if low is None:
            start, low = self._search_end(confirm_offset)
        # A concurrently written entry may have its size without its offset, so check again.
        while low > start and not self._counts(low - 1, confirm_offset):
            low -= 1
        self._found_end = low
        return low

    def _end_nearby(self, confirm_offset: int) -> int | None:
        last = self._found_end - 1
        try:
            entries = self._files.entries(last, last + _NEARBY, current=True) if last >= 0 else _NO_ENTRIES
        except OffsetLost:
            return None
        rows = entries.tolist()
        for index, (offset, size, _) in enumerate(rows, last):
            if not self._is_published(index, offset, size, confirm_offset):
                is_end = index > last and not self._any_counts(index + 1, rows[index + 1 - last :], confirm_offset)
                return index if is_end else None
        return None

    def _search_end(self, confirm_offset: int) -> tuple[int, int]:
        """Return where the search began, and the end. Calls `check`: a missing file would look like the end."""
        seen = self._found_end
        is_first = not seen or not self._counts(seen - 1, confirm_offset)
        start = low = self._known_end(self._files.check(), confirm_offset) if is_first else seen
        step = 1
        while self._counts(low + step - 1, confirm_offset):
            low, step = low + step, step * 2

        def is_behind(index: int) -> bool:
            return not self._counts(index, confirm_offset)

        end = bisect_left(range(low + step), True, low, low + step - 1, key=is_behind)
        self._must_be_end(end, confirm_offset, is_first=is_first)
        return start, end

    def _must_be_end(self, end: int, confirm_offset: int, *, is_first: bool) -> None:
        """Raise `CorruptSegment` if an entry after `end` counts, unless the entry at `end` counts, too: a broker has
        written both.

        is_first: the queue is unknown or its files changed, so check all later entries.
        """
        found = self._any_counts(end + 1, self._files.entries_or_zeros(end + 1, end + _NEARBY).tolist(), confirm_offset)
        at = end + _NEARBY
        while is_first and not found and (left := self._files.stale(at)) is not None:
            at = left + _LEFT_AT_ONCE
            found = self._any_counts(left, self._files.entries_or_zeros(left, at).tolist(), confirm_offset)
        if found and not self._counts(end, confirm_offset):
            raise CorruptSegment(f"{self._files}: entry {end} is damaged, but entries follow it. {MAKE_ANEW}")

    def _any_counts(self, start: int, rows: list[tuple[int, int, int]], confirm_offset: int) -> bool:
        for index, (at, size, _) in enumerate(rows, start):
            # `start` is above 0, so an entry with log offset 0 is empty
            if at and self._is_published(index, at, size, confirm_offset):
                return True
        return False

    def _known_end(self, first: int, confirm_offset: int) -> int:
        least = self._least_end
        if least > first and not self._counts(least - 1, confirm_offset):
            raise CorruptSegment(f"{self._files}: entry {least - 1} existed before and is missing. {MAKE_ANEW}")
        return max(first, least)

    def _counts(self, index: int, confirm_offset: int) -> bool:
        try:
            data = self._files.entries(index, index + 1)
        except OffsetLost:
            return index < self._files.first()
        offset, size, _ = np.frombuffer(data, CQ_ENTRY)[0].item()
        return self._is_published(index, offset, size, confirm_offset)

    def _is_published(self, index: int, offset: int, size: int, confirm_offset: int) -> bool:
        if offset == 0 and size == CQ_PRE_BLANK_SIZE:
            return True
        if offset < 0 or size <= 0 or offset + size > confirm_offset:
            return False
        return self._is_message is None or self._is_message(*self._name, index, offset, size)


class ConsumeQueue(QueueFiles):
    def __init__(
        self,
        topic: str,
        queue_id: int,
        segments: Segments,
        *,
        begin: int = 0,
        least_end: int = 0,
        is_message: IsMessage | None = None,
    ) -> None:
        super().__init__(segments, begin)
        self.topic = topic
        self.queue_id = queue_id
        self._end = QueueEnd(QueueFiles(segments, begin), (topic, queue_id), least_end, is_message)
        self._found_first = 0, LONG_MAX  # of `min_offset`, and its `min_physical_offset`

    @staticmethod
    def at(root: Path, topic: str, queue_id: int, file_size: int | None, *, writable: bool) -> ConsumeQueue:
        return ConsumeQueue(topic, queue_id, queue_segments(root, topic, queue_id, file_size, writable=writable))

    def max_offset(self, confirm_offset: int) -> int:
        """Return the queue offset after the last entry that counts."""
        return self._end.find(confirm_offset)

    def known_end(self, least: int, confirm_offset: int) -> int:
        """Return `max_offset`. Raises `CorruptSegment` if it is below `least`."""
        found = self.max_offset(confirm_offset)
        if found < least:
            raise CorruptSegment(f"{self}: ends at {found}, but had {least} entries before. {MAKE_ANEW}")
        return found

    def dispatched(self, confirm_offset: int) -> int:
        """Return the log offset after the last record that has an entry here, 0 if the queue has no entries.

        Entries of records at or after log offset `confirm_offset` do not count.
        """
        while True:
            max_offset = self.max_offset(confirm_offset)
            with suppress(OffsetLost):  # retention deleted the file: try again
                last = self.entries(max(self.first(), max_offset - 1), max_offset)
                last = last[last["size"] != CQ_PRE_BLANK_SIZE]
                return int((last["physical_offset"] + last["size"]).sum())

    def min_offset(self, min_physical_offset: int, max_offset: int) -> int:
        """Return the queue offset of the first entry whose record the log still has, or `max_offset`.

        Raises as `entries`, and `CorruptSegment` if the entry before it is damaged: older entries may then have
        records, too.
        """
        (seen, at), high = self._found_first, max_offset
        if at <= min_physical_offset and seen < high and not self._is_behind(seen, min_physical_offset):  # usually
            return seen
        low = first = self.first()
        if low < seen <= high and self._is_behind(seen - 1, min_physical_offset):
            low = seen
        middle = low
        while low < high:
            if self._is_behind(middle, min_physical_offset):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        if first < low != seen and self._is_damaged(low - 1, first):
            raise CorruptSegment(f"{self}: entry {low - 1} is damaged. {MAKE_ANEW}")
        self._found_first = low, min_physical_offset
        return low

    def _is_damaged(self, offset: int, first: int) -> bool:
        try:
            entries = self.entries(max(offset - 1, first), offset + 1)
        except OffsetLost:
            return False
        if (entries["size"] == CQ_PRE_BLANK_SIZE).any():
            return False
        return not entries["size"][-1] or not (np.diff(entries["physical_offset"]) > 0).all()

    def begin_at(self, start: int, min_physical_offset: int) -> None:
        """Prepare the queue for its first entry at `start`, so that no earlier entry counts.

        As in RocketMQ, the file is filled with pre-blank entries up to `start`. Entries of deleted records are kept,
        unless `min_offset` would find the last of them damaged.
        """
        first = start - start % self.entries_per_file  # may be missing although later files exist
        if self.segments.starts():
            first = min(first, self.first())
        try:
            before = self.entries(first, start)
        except OffsetLost:
            self.write_blank(start - start % self.entries_per_file, start)
            return
        at = before["physical_offset"]
        are_gone = (at >= 0) & (at < min_physical_offset) & (before["size"] > 0)
        if not are_gone.all() or (start > first and self._is_damaged(start - 1, first)):
            self.write_blank(first, start)

    def begin_empty(self, start: int) -> None:
        self.truncate(self.begin)
        self.write_blank((start - 1) // self.entries_per_file * self.entries_per_file, start)

    def truncate(self, max_offset: int) -> None:
        """Zero all entries from `max_offset` on, so that entries of a dead writer never count.

        Empty files are deleted, because RocketMQ would count the first entry of an empty last file. Works backwards
        from the last file, and syncs each file before it changes the one before (see `write`). Call this as the only
        writer. Raises `FlushFailed`.
        """
        starts, end = self.segments.starts(), max_offset * CQ_ENTRY.itemsize if max_offset > self.begin else 0
        if starts and end and end == starts[0]:  # no file, and so no end, would be left
            self.write_blank(max_offset - self.entries_per_file, max_offset)
        for start in reversed(starts):
            self.segments.zero(max(start, end), start + self.segments.size)
            if start < end:
                break
            self.segments.delete(start)
            self.segments.flush_names()

    def expire(self, min_physical_offset: int) -> list[tuple[str, int]]:
        """Delete the files whose records retention deleted, except the last. Call this as the only writer.

        Return path and disk space (bytes) of each.
        """
        gone = []
        for start in self.segments.starts()[:-1]:
            end = start // CQ_ENTRY.itemsize + self.entries_per_file
            last = self.entries(max(end - 2, start // CQ_ENTRY.itemsize), end)  # one may be damaged
            if last["physical_offset"].max() >= min_physical_offset or last["size"][-1] == 0:  # 0: unfinished append
                break
            gone.append((str(self.segments.path(start)), self.segments.delete(start)))
        return gone

    def _is_behind(self, index: int, min_physical_offset: int) -> bool:
        try:
            entry = self.entries(index, index + 1, current=True)[0]
        except OffsetLost:
            if self._is_deleted(index):
                return True
            raise
        at, size, _ = entry.item()
        return bool(0 <= at < min_physical_offset or size == CQ_PRE_BLANK_SIZE)

    def _is_deleted(self, index: int) -> bool:
        return index < self.first()
