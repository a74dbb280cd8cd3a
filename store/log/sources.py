"""What reading needs of a log and of a queue: the files of a store have it, and so has what is archived of them."""

from __future__ import annotations

from typing import Protocol

from store.format.arrays import Bytes
from store.log.queue_files import Entries


class LogBytes(Protocol):
    """A log's bytes, in segments of `size`. Offsets and lengths are bytes; nothing reaches over a segment's end."""

    @property
    def size(self) -> int: ...

    def view(self, offset: int, length: int) -> Bytes:
        """uint8, shape (length,). Raises `OffsetLost`, `CorruptSegment`."""

    def read(self, offset: int, length: int, *, current: bool = False) -> bytes:
        """A few of them. current: as `Segments.read` takes it. Raises as `view`."""


class RecordLog(Protocol):
    """A log of records."""

    @property
    def segments(self) -> LogBytes: ...

    def min_offset(self) -> int: ...

    def next_segment(self, offset: int) -> int: ...


class EntryQueue(Protocol):
    """A queue's entries."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    def entries(self, start: int, end: int, *, current: bool = False) -> Entries:
        """Entries [start, end), queue offsets. Raises `OffsetLost`, `CorruptSegment`."""
