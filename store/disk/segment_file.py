"""One open segment, its syncs, and a cache of open segments.

Every access to a mapped file raises if another process truncated it. A truncation during an access kills the process
(SIGBUS), so do not truncate the files of a live store.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from store.disk.atomic import write_at
from store.disk.opened import Descriptor
from store.format.arrays import Bytes
from store.format.layout import segment_name
from store.model.errors import (
    CorruptSegment,
    FlushFailed,
    OffsetLost,
    StoreUnavailable,
    raise_translated,
    system_errors,
)

_PAGE = 4096
_LOOK_BLOCK = 1 << 20


def sync(fd: int, path: Path) -> None:
    """Sync a file. Raises `FlushFailed`."""
    try:
        os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)
    except OSError as error:
        raise _failure(path, error) from error


def sync_names(directory: Path) -> None:
    """Sync a directory. Raises `FlushFailed`."""
    with system_errors(directory):
        fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        raise _failure(directory, error) from error
    finally:
        os.close(fd)


def _failure(path: Path, error: OSError) -> FlushFailed:
    now = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return FlushFailed(
        f"{path}: the device failed to flush it ({error.strerror or error}, {now}). Messages after the last flush "
        "may be lost. Check the device. Then close the store in all processes and open it for writing: it recovers "
        "the messages that can be read"
    )


class SegmentFile:
    """One open segment. It is closed when the last reference to it is dropped, so no reader loses it during a read."""

    def __init__(self, path: Path, size: int, *, writable: bool) -> None:
        self.path = path
        self.size = size
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK
        self._file = Descriptor(path, lambda path: os.open(path, flags))
        status = os.fstat(self._file.fd)
        if status.st_size == 0:  # its creator died; `SegmentFolder.starts` ignores it too
            raise FileNotFoundError(errno.ENOENT, "an empty segment", str(path))
        self.identity = (path, size, writable, status.st_dev, status.st_ino)
        self._check_length()

    def read(self, position: int, length: int) -> bytes:
        """Return bytes of the file, fewer at its end. Raises `CorruptSegment` if the file was truncated."""
        try:
            data = os.pread(self._file.fd, length, position)
        except OSError as error:
            raise_translated(self.path, error)
            raise
        if len(data) < min(length, self.size - position):
            self._check_length()
        return data

    def next_data(self, position: int) -> int:
        """Return the first position from `position` on that is not in a hole, or the size."""
        try:
            return max(position, os.lseek(self._file.fd, position, os.SEEK_DATA))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise_translated(self.path, error)
                raise
            return self.size

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write all bytes at a position. Raises `StoreFull`."""
        try:
            write_at(self._file.fd, data, position)
        except OSError as error:
            raise_translated(self.path, error)
            raise

    @property
    def mapped(self) -> Bytes:
        """The whole file, shape (size,). Only published bytes may be accessed. Raises `CorruptSegment`."""
        self._check_length()  # touching a page after the file's end kills the process
        return self._mapping

    def flush(self) -> None:
        sync(self._file.fd, self.path)

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """Yield position and data of each page outside holes. Larger pieces would fill the holes of a copy."""
        position = self.next_data(0)
        while position < self.size:
            data = self.read(position, _PAGE - position % _PAGE)
            yield position, data
            position = self.next_data(position + len(data))

    def has_any(self, begin: int) -> bool:
        """Return whether there is data after `begin`. Later pages count unless they are holes."""
        rest = -begin % _PAGE
        return self.next_data(begin + rest) < self.size or any(self.read(begin, rest))

    def zero(self, begin: int, end: int) -> None:
        """Zero a range, and leave its holes, so that no disk space is allocated."""
        zeros = memoryview(bytes(_PAGE))
        position = self.next_data(begin)
        while position < end:
            length = min(_PAGE, end - position)
            if self.read(position, length).strip(b"\0"):
                self.write(position, zeros[:length])
            position = self.next_data(position + length)

    def first_not_zero(self, begin: int, end: int) -> int | None:
        position, block = self.next_data(begin), _PAGE  # usually a hole begins with the next page
        while position < end:
            data = np.frombuffer(self.read(position, min(block - position % block, end - position)), np.uint8)
            found = np.flatnonzero(data) if data.any() else data[:0]
            if len(found):
                return position + int(found[0])
            position, block = self.next_data(position + len(data)), _LOOK_BLOCK
        return None

    @property
    def is_deleted(self) -> bool:
        return os.fstat(self._file.fd).st_nlink == 0

    @cached_property
    def _mapping(self) -> Bytes:
        with system_errors(self.path):
            return np.frombuffer(mmap.mmap(self._file.fd, self.size, access=mmap.ACCESS_READ), np.uint8)

    def _check_length(self) -> None:
        length = os.fstat(self._file.fd).st_size
        if length != self.size:
            raise CorruptSegment(
                f"{self.path}: {length} bytes, but segments of this store have {self.size}. Restore the file from a "
                "copy; or restore the segment size, if it was changed in config/store.conf"
            )


# Shared by the stores that one process opens.
_open_files: WeakValueDictionary[tuple[object, ...], SegmentFile] = WeakValueDictionary()
# A forked child opens its own: the system reports a failed flush once for each open file.
os.register_at_fork(after_in_child=_open_files.clear)


class OpenFiles:
    """An LRU cache of at most `limit` open segments, because a process has about a thousand descriptors.

    Thread-safe without a lock: every step is one atomic dictionary operation.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[tuple[str, int], SegmentFile] = OrderedDict()

    def get(self, directory: Path, start: int, size: int, *, writable: bool) -> SegmentFile:
        """Return an open segment. Raises `OffsetLost`."""
        files, key = self._files, (str(directory), start)  # read once: `forget_all` may replace it
        file = files.get(key)
        if file is None:
            file = files[key] = self._open(directory, start, size, writable=writable)
            while len(files) > self._limit:
                files.popitem(last=False)
            return file
        try:  # faster than `suppress`
            files.move_to_end(key)
        except KeyError:  # another thread dropped it
            return file
        return file

    def _open(self, directory: Path, start: int, size: int, *, writable: bool) -> SegmentFile:
        try:
            return _open(directory, writable, size, start)
        except StoreUnavailable as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self.make_room()
        return _open(directory, writable, size, start)

    def make_room(self) -> None:
        """Close all segments and halve the limit: the process has no descriptor left."""
        self._limit = max(1, min(self._limit, len(self._files)) // 2)
        self.forget_all()

    def close_deleted(self) -> None:
        for key, file in list(self._files.items()):
            if file.is_deleted:
                self._files.pop(key, None)

    def forget(self, directory: Path) -> None:
        name = str(directory)
        for key in list(self._files):
            if key[0] == name:
                self._files.pop(key, None)

    def forget_all(self) -> None:
        self._files = OrderedDict()


def _open(directory: Path, writable: bool, size: int, start: int) -> SegmentFile:
    path = directory / segment_name(start)
    try:
        file = SegmentFile(path, size, writable=writable)
    except FileNotFoundError as error:
        raise OffsetLost(
            f"{path}: this segment is missing. Retention deleted its bytes {start} to {start + size}, or the file "
            "was lost. Read on from a later offset, or restore a lost file from a copy"
        ) from error
    return _open_files.setdefault(file.identity, file)
