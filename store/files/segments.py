"""Fixed-size files, named by the logical offset they start at: RocketMQ's MappedFileQueue.

Files are created at full length, sparse and zero filled, under another name and then renamed, so that a file
that exists has its length. Published log records are read through a mapping; everything that may be a hole
(queue entries past the end) is read with `pread`: a read fault in a hole needs a page, and on a full memory
file system that is a SIGBUS instead of an error.

Retention unlinks whole files: whoever has one open or mapped reads on, whoever comes later gets `OffsetLost`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from store.files.atomic import make_folder, open_file, status_of, write_at
from store.files.segment_file import OpenFiles, SegmentFile, sync, sync_names
from store.format.arrays import Bytes
from store.format.layout import PREALLOCATE_FILE, SEGMENT_NAME_DIGITS, segment_name
from store.model.errors import CorruptSegment, OffsetLost, ReadOnlyStore, raise_translated, system_errors

_OPEN_FILES = 8
_FEW = 1024  # files: so many are tried without a look at the directory; damaged ends may be far away
BLOCK_BYTES = 512  # of st_blocks, whatever the file system's


class SegmentFolder:
    """Which segments there are: their names, lengths and times, by the logical offsets at which they start."""

    def __init__(self, directory: Path, size: int | None) -> None:
        """size: bytes of each file; None, for a reader: the length that the files have, 0 until there are any."""
        self.directory = directory
        self.size = size or 0
        self._first: tuple[int, Path] | None = None

    def starts(self) -> list[int]:
        """Logical offsets of the first bytes of all segments, ascending; empty without a directory.

        Raises `CorruptSegment` for a wrong name or length. An empty last file is what a RocketMQ killed during
        creation leaves; it is passed over, as RocketMQ does.
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
        """Whether the directory is there; without it there are no files."""
        return status_of(self.directory) is not None

    def first(self) -> int:
        """Logical offset of the first byte there is, 0 without files. Raises as `starts`.

        The directory is listed only when the first file is no longer there: retention takes it before any other.
        """
        if self._first is not None:
            start, path = self._first
            status = status_of(path)
            if status is not None and status.st_size > 0:
                return start
        return next(iter(self.starts()), 0)

    def check(self, remedy: str = "restore the missing segments from a copy") -> list[int]:
        """`starts`, after making sure that no segment is missing between the first and the last."""
        starts = self.starts()
        for start, following in itertools.pairwise(starts):
            if following != start + self.size:
                raise CorruptSegment(
                    f"{self.directory}: no file for bytes {start + self.size} to {following}; {remedy}"
                )
        return starts

    def exists(self, offset: int) -> bool:
        """Whether there is a file for this logical offset; an empty one does not count (see `starts`)."""
        status = status_of(self.path(self._start(offset)))
        return status is not None and status.st_size > 0

    def path(self, start: int) -> Path:
        """The file of the segment that begins at `start`."""
        return self.directory / segment_name(start)

    def delete(self, start: int) -> int:
        """Unlink the segment that begins at `start`; returns the bytes it took on the device."""
        taken, path = self.taken(start), self.path(start)
        with system_errors(path):
            path.unlink()
        return taken

    def taken(self, start: int) -> int:
        """The bytes that the segment that begins at `start` takes on the device: it is sparse."""
        return self._status(start).st_blocks * BLOCK_BYTES

    def modified(self, start: int) -> float:
        """When the segment that begins at `start` was last written, in seconds since 1970."""
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
                f"{self.directory / name}: not the name of a segment of {self.size} bytes ({SEGMENT_NAME_DIGITS} "
                "digits, a multiple of that size); move the file out of the store"
            )
        if not length or length != self.size:
            raise CorruptSegment(
                f"{self.directory / name}: {length} bytes, but segments of this store have {self.size or 'more'}; "
                "restore the file from a copy, or the size, if it was changed in config/store.conf"
            )
        return int(name)


class Segments(SegmentFolder):
    """The segments of one directory as one sequence of bytes, addressed by logical offset."""

    def __init__(
        self, root: Path, directory: str, size: int | None, *, writable: bool, files: OpenFiles | None = None
    ) -> None:
        """size: as `SegmentFolder` takes it. files: open files, shared with others; default: some of its own."""
        super().__init__(root / directory, size)
        self._root = root
        self._writable = writable
        self._files_open = files or OpenFiles(_OPEN_FILES)

    def starts(self) -> list[int]:
        """As `SegmentFolder.starts`; closes files that retention deleted, for an open one keeps its space."""
        first, starts = self._first, super().starts()
        if self._first != first:
            self.forget()
        return starts

    def view(self, offset: int, length: int) -> Bytes:
        """`length` published bytes from `offset`, shape (length,), mapped, without a copy; within one segment."""
        start = self._start(offset)
        position = offset - start
        return self._opened(start).mapped[position : position + length]

    def read(self, offset: int, length: int, *, current: bool = False) -> bytes:
        """`length` bytes from `offset`, copied; within one segment. Raises `OffsetLost` if its file is gone.

        current: do not read on in an open file that was deleted meanwhile.
        """
        start = self._start(offset)
        file = self._current(start) if current else self._opened(start)
        return file.read(offset - start, length)

    def write(self, offset: int, data: bytes | memoryview, *, anew: bool = True) -> bool:
        """Write within one segment, creating its file if needed; whether one was there, or begins with this.

        anew: it may be that there is none. Raises `StoreFull`, and `CorruptSegment` where there has to be one.
        """
        start = self._start(offset)
        try:
            file = self._current(start)
        except OffsetLost:
            if not anew:
                raise CorruptSegment(
                    f"{self.path(start)}: was lost, with what stood before byte {offset - start}; nothing of this call "
                    "is visible: restore the file from a copy, then repeat the call"
                ) from None
            self._make(start, [(offset - start, data)])
            return offset == start
        file.write(offset - start, memoryview(data))
        return True

    def zero(self, begin: int, end: int) -> None:
        """Make [begin, end) zero where it is not: holes stay holes, so this needs no space."""
        for start, file in self._files(begin, end):
            file.zero(max(0, begin - start), min(end - start, self.size))

    def write_again(self, begin: int, end: int) -> None:
        """Put files in the place of those of [begin, end) that have the same, on the device; holes stay holes. Raises
        `StoreFull`, `FlushFailed`.

        After a flush that failed the system takes pages for clean that the device does not have. To write them again
        in their file does not help: where a page was a hole, ext4 brings its bytes then, and keeps the hole. A file
        that has nothing from `begin` on stays: so has almost every queue of many.
        """
        for start, file in self._files(begin, end):
            if file.has_any(max(0, begin - start)):
                self._make(start, file.pages())

    def first_not_zero(self, begin: int, end: int) -> int | None:
        """Logical offset of the first byte of [begin, end) that is not zero; None when all are, or have no file."""
        for start, file in self._files(begin, end):
            position = file.first_not_zero(max(0, begin - start), min(end - start, self.size))
            if position is not None:
                return start + position
        return None

    def forget(self) -> None:
        """Close all files; the next look at one opens it by its name."""
        self._files_open.forget(self.directory)

    def close_deleted(self) -> None:
        """Close files that were deleted: an open one keeps its space on the device."""
        self._files_open.close_deleted()

    def flush(self, begin: int, end: int) -> None:
        """Bring [begin, end) to the device. Raises `FlushFailed`."""
        for _, file in self._files(begin, end):
            file.flush()

    def flush_names(self) -> None:
        """Bring the files' names to the device: who made one may have died before. Raises `FlushFailed`."""
        with suppress(FileNotFoundError):
            sync_names(self.directory)

    def _opened(self, start: int) -> SegmentFile:
        return self._files_open.get(self.directory, start, self.size, writable=self._writable)

    def _current(self, start: int) -> SegmentFile:
        """The file as it is on disk: another process may have deleted the one that is open, and made it anew."""
        file = Segments._opened(self, start)  # a subclass may look whether it is deleted, too
        if not file.is_deleted:
            return file
        self.forget()
        return Segments._opened(self, start)

    def _files(self, begin: int, end: int) -> Iterator[tuple[int, SegmentFile]]:
        """The segments of [begin, end) that there are, with their starts; one may go at any moment."""
        if begin >= end:  # there may be no file yet, nor a size
            return
        starts = range(self._start(begin), end, self.size)
        for start in starts if len(starts) <= _FEW else [start for start in self.starts() if start in starts]:
            with suppress(OffsetLost):
                yield start, self._current(start)

    def _make(self, start: int, pieces: Iterable[tuple[int, bytes | memoryview]]) -> None:
        """Make a segment that has all `pieces`, each at its position, whenever it is there: of an empty last queue file
        RocketMQ counts an entry.
        """
        if not self._writable:
            raise ReadOnlyStore(f"{self.directory}: the store is open with read_only=True")
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
                temporary.unlink()  # a part of what may be large: it would take what is left of the device
            raise_translated(self.path(start), error)
            raise
        for directory in (self.directory, *self.directory.parents):
            sync_names(directory)
            if directory == self._root:
                break


def list_files(directory: Path) -> list[tuple[str, os.stat_result]]:
    """The files of a directory as they were at one moment, by name; none without the directory."""
    while status_of(directory) is not None:
        # A missing file went between listing and looking: others may have, too.
        with system_errors(directory), suppress(FileNotFoundError), os.scandir(directory) as entries:
            return sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
    return []
