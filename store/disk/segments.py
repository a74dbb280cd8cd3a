"""Fixed-size files, each named by the logical offset at which it starts: RocketMQ's MappedFileQueue.

Files are created sparse, at full length, under a temporary name and then renamed, so a file always has its length.
Readers map published log records. For queue entries they use `pread`, because an entry may be in a hole: accessing a
mapped hole allocates a page, and if a memory file system is full, that kills the process (SIGBUS).

Retention unlinks whole files. A reader that has a file open can continue.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from store.disk.atomic import make_folder, open_file, status_of, write_at
from store.disk.segment_file import OpenFiles, SegmentFile, sync, sync_names
from store.format.arrays import Bytes
from store.format.layout import PREALLOCATE_FILE, SEGMENT_NAME_DIGITS, segment_name
from store.model.errors import CorruptSegment, OffsetLost, ReadOnlyStore, raise_translated, system_errors

_OPEN_FILES = 8
_FEW = 1024  # for a range of more files, list the directory: a damaged end may be far away
BLOCK_BYTES = 512  # unit of st_blocks
_RESTORE = "Restore the missing segments from a copy, or read the other messages with read_only=True"


class SegmentFolder:
    def __init__(self, directory: Path, size: int | None) -> None:
        """size: bytes of each file. None in a reader: the length of the existing files, 0 before there are any."""
        self.directory = directory
        self.size = size or 0
        self._first: tuple[int, Path] | None = None

    def starts(self) -> list[int]:
        """Return the start offsets of all segments, ascending. Raises `CorruptSegment` for a wrong name or length.

        An empty last file is ignored, as in RocketMQ: a killed broker may leave one.
        """
        listed = [(name, status.st_size) for name, status in list_files(self.directory)]
        if listed and listed[-1][1] == 0:
            listed.pop()
        self.size = self.size or next((length for _, length in listed if length), 0)
        starts = [self._checked_start(name, length) for name, length in listed]
        self._first = (starts[0], self.path(starts[0])) if starts else None
        return starts

    @property
    def has_folder(self) -> bool:
        return status_of(self.directory) is not None

    def first(self) -> int:
        """Return the start offset of the first segment, 0 if there is none. Raises as `starts`.

        Retention deletes the first file first, so the directory is listed only if the last known first file is missing.
        """
        if self._first is not None:
            start, path = self._first
            status = status_of(path)
            if status is not None and status.st_size > 0:
                return start
        return next(iter(self.starts()), 0)

    def check(self, remedy: str = _RESTORE) -> list[int]:
        """Return `starts()`. Raises `CorruptSegment` if a segment in the middle is missing."""
        starts = self.starts()
        for start, following in itertools.pairwise(starts):
            if following != start + self.size:
                raise CorruptSegment(
                    f"{self.directory}: the file of bytes {start + self.size} to {following} is missing. {remedy}"
                )
        return starts

    def exists(self, offset: int) -> bool:
        """Return whether the segment of an offset has a file. An empty file does not count."""
        status = status_of(self.path(self._start(offset)))
        return status is not None and status.st_size > 0

    def path(self, start: int) -> Path:
        return self.directory / segment_name(start)

    def delete(self, start: int) -> int:
        """Delete a segment. Return its bytes on disk."""
        taken, path = self.taken(start), self.path(start)
        with system_errors(path):
            path.unlink()
        return taken

    def taken(self, start: int) -> int:
        """Return the bytes on disk: less than the length, because segments are sparse."""
        return self._status(start).st_blocks * BLOCK_BYTES

    def modified(self, start: int) -> float:
        """Return the time of the last write, in s since 1970."""
        return self._status(start).st_mtime

    def _start(self, offset: int) -> int:
        if not self.size:
            self.starts()
        return offset - offset % self.size if self.size else offset

    def _status(self, start: int) -> os.stat_result:
        path = self.path(start)
        with system_errors(path):
            return path.stat()

    def _checked_start(self, name: str, length: int) -> int:
        is_number = len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit()
        if not is_number or int(name) % (self.size or 1):
            raise CorruptSegment(
                f"{self.directory / name}: this is not the name of a segment of {self.size} bytes "
                f"({SEGMENT_NAME_DIGITS} digits, a multiple of the size). Move the file out of the store"
            )
        if not length or length != self.size:
            raise CorruptSegment(
                f"{self.directory / name}: {length} bytes, but segments of this store have {self.size or 'more'}. "
                "Restore the file from a copy; or restore the segment size, if it was changed in config/store.conf"
            )
        return int(name)


class Segments(SegmentFolder):
    """The segments of one directory as one sequence of bytes, addressed by logical offset."""

    def __init__(
        self, root: Path, directory: str, size: int | None, *, writable: bool, files: OpenFiles | None = None
    ) -> None:
        super().__init__(root / directory, size)
        self._root = root
        self._writable = writable
        self._files_open = files or OpenFiles(_OPEN_FILES)

    def starts(self) -> list[int]:
        """Return the start offsets as `SegmentFolder.starts`. Close files that retention deleted."""
        first, starts = self._first, super().starts()
        if self._first != first:
            self.forget()
        return starts

    def view(self, offset: int, length: int) -> Bytes:
        """Return published bytes of one segment as a mapped view, shape (length,)."""
        start = self._start(offset)
        position = offset - start
        return self._opened(start).mapped[position : position + length]

    def read(self, offset: int, length: int, *, current: bool = False) -> bytes:
        """Return bytes of one segment. Raises `OffsetLost` if its file is missing.

        current: if the open file was deleted, open the file that has its name now.
        """
        start = self._start(offset)
        file = self._current(start) if current else self._opened(start)
        return file.read(offset - start, length)

    def write(self, offset: int, data: bytes | memoryview, *, may_create: bool = True) -> bool:
        """Write within one segment, and create its file if it is missing. Raises `StoreFull`.

        Return False if this created a file and wrote to its middle, because then earlier bytes were lost. may_create:
        if False, a missing file raises `CorruptSegment`.
        """
        start = self._start(offset)
        try:
            file = self._current(start)
        except OffsetLost:
            if not may_create:
                lost = offset - start
                raise CorruptSegment(
                    f"{self.path(start)}: this segment is missing; its first {lost} bytes are lost. No message of this "
                    "append was stored. Restore the file from a copy, then append again. Without a copy, read the "
                    "other messages with read_only=True"
                ) from None
            self._make(start, [(offset - start, data)])
            return offset == start
        file.write(offset - start, data)
        return True

    def zero(self, begin: int, end: int) -> None:
        for start, file in self._files(begin, end):
            file.zero(max(0, begin - start), min(end - start, self.size))

    def rewrite(self, begin: int, end: int) -> None:
        """Replace the files of [begin, end) by synced copies with the same holes. Raises `StoreFull`, `FlushFailed`.

        After a failed flush the system marks pages as clean that are not on the device. Rewriting them in place does
        not help: ext4 may then sync the bytes of a page that was a hole, but keep the hole.
        """
        for start, file in self._files(begin, end):
            if file.has_any(max(0, begin - start)):
                self._make(start, file.pages())

    def first_not_zero(self, begin: int, end: int) -> int | None:
        for start, file in self._files(begin, end):
            position = file.first_not_zero(max(0, begin - start), min(end - start, self.size))
            if position is not None:
                return start + position
        return None

    def forget(self) -> None:
        """Close the files of this directory. The next access opens them by name."""
        self._files_open.forget(self.directory)

    def close_deleted(self) -> None:
        """Close deleted files, because an open file keeps its disk space."""
        self._files_open.close_deleted()

    def flush(self, begin: int, end: int) -> None:
        """Sync the files of a range. Raises `FlushFailed`."""
        for _, file in self._files(begin, end):
            file.flush()

    def flush_names(self) -> None:
        """Sync the names of files, because a process may have died after it created one. Raises `FlushFailed`."""
        with suppress(FileNotFoundError):
            sync_names(self.directory)

    def _opened(self, start: int) -> SegmentFile:
        return self._files_open.get(self.directory, start, self.size, writable=self._writable)

    def _current(self, start: int) -> SegmentFile:
        file = Segments._opened(self, start)  # not a subclass's override, which may check `is_deleted` itself
        if not file.is_deleted:
            return file
        self.forget()
        return Segments._opened(self, start)

    def _files(self, begin: int, end: int) -> Iterator[tuple[int, SegmentFile]]:
        if begin >= end:  # without files, the size is still unknown
            return
        starts = range(self._start(begin), end, self.size)
        for start in starts if len(starts) <= _FEW else [start for start in self.starts() if start in starts]:
            with suppress(OffsetLost):
                yield start, self._current(start)

    def _make(self, start: int, pieces: Iterable[tuple[int, bytes | memoryview]]) -> None:
        """Create a segment with all `pieces` atomically: RocketMQ counts one entry in an empty last queue file."""
        if not self._writable:
            raise ReadOnlyStore(
                f"{self.directory}: the store is open with read_only=True. To write, open it without read_only"
            )
        temporary = self._root / PREALLOCATE_FILE
        try:
            make_folder(self.directory)
            with open(open_file(temporary, os.O_TRUNC), "wb") as file:
                file.truncate(self.size)
                for position, data in pieces:
                    write_at(file.fileno(), data, position)
                sync(file.fileno(), temporary)
            temporary.rename(self.path(start))
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()  # so as not to fill the rest of the device
            raise_translated(self.path(start), error)
            raise
        for directory in (self.directory, *self.directory.parents):
            sync_names(directory)
            if directory == self._root:
                break


def list_files(directory: Path) -> list[tuple[str, os.stat_result]]:
    """Return name and status of each file, by name; [] if the directory is missing."""
    while status_of(directory) is not None:
        # If a file was just deleted, others may have been, too: start again.
        with system_errors(directory), suppress(FileNotFoundError), os.scandir(directory) as entries:
            return sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
    return []
