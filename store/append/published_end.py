"""Read and publish the published end of the log, in `watermark`, a small file that RocketMQ does not have.

Readers see a record if `record end <= confirm_offset`. An append *announces* the end of its writes first and
*publishes* last. While `announced_end > confirm_offset`, an append is running, or its writer died.

The publication is one `pwrite` of eight aligned bytes, after which the kernel notifies the waiting readers. Each number
has a checksum of one byte: if a damaged end were too low, the next append would overwrite messages.
"""

from __future__ import annotations

import math
import mmap
import os
import zlib
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from store.disk.atomic import status_of, write_at, write_file
from store.disk.opened import Descriptor
from store.disk.segment_file import sync
from store.format.layout import (
    PUBLISHED_END,
    PUBLISHED_END_FILE,
    PUBLISHED_END_FILE_BYTES,
    PUBLISHED_END_MAGIC,
    PUBLISHED_END_NUMBER_BITS,
    PUBLISHED_END_VERSION,
    field_offset,
)
from store.model.errors import CorruptStore, FlushFailed, raise_translated, system_errors

_NUMBER_BYTES = PUBLISHED_END_NUMBER_BITS // 8
_NUMBER_MASK = (1 << PUBLISHED_END_NUMBER_BITS) - 1
_LOOKS = 3  # one may be concurrent with a write
_CONFIRM_OFFSET = field_offset(PUBLISHED_END, "confirm_offset")


class PublishedEnd:
    """The numbers of the file `watermark`.

    Properties read the mapping at every access. They raise `CorruptStore` for a wrong checksum. Only a caller that
    holds the append lock may call `announce`, `publish`, `mark_flushed` and the methods that begin with `note`, `begin`
    or `end`.

    rest_seconds: unlimited, because every append of this project wakes waiting readers.
    """

    rest_seconds = math.inf

    def __init__(self, root: Path, *, writable: bool) -> None:
        """Raises `FileMissing`, `CorruptStore`."""
        self._file = _NumberFile(root, writable=writable)
        self._writable = writable
        self.path = self._file.path
        self._seen = 0

    @staticmethod
    def create(
        root: Path,
        confirm_offset: int,
        store_timestamp: int = 0,
        times_from: int | None = None,
        keys_from: int | None = None,
    ) -> None:
        """Write a published end with nothing unfinished, for this boot. times_from, keys_from: default:
        `confirm_offset`.

        An existing file is overwritten, because readers have mapped it.
        """
        fields = np.zeros(1, PUBLISHED_END)
        fields["magic"], fields["version"] = PUBLISHED_END_MAGIC, PUBLISHED_END_VERSION
        fields["boot_id"] = current_boot_id()
        fields["flushed_offset"] = fields["confirm_offset"] = fields["announced_end"] = checked(confirm_offset)
        fields["store_timestamp"] = checked(store_timestamp)
        fields["times_from"] = checked(confirm_offset if times_from is None else times_from)
        fields["keys_from"] = checked(confirm_offset if keys_from is None else keys_from)
        path, data = root / PUBLISHED_END_FILE, fields.tobytes().ljust(PUBLISHED_END_FILE_BYTES, b"\0")
        with system_errors(path):
            try:
                fd = os.open(path, os.O_RDWR)
            except FileNotFoundError:
                write_file(path, data)
                return
            try:
                write_at(fd, data, 0)
                sync(fd, path)
            finally:
                os.close(fd)

    @property
    def confirm_offset(self) -> int:
        """Log offset (bytes) up to which records and their queue entries are complete.

        In a writer, raises `CorruptStore` if it decreases. `LogEnd` checks that for readers.
        """
        seen, confirm_offset = self._seen, self._file.number("confirm_offset")  # `_seen` first: threads may advance it
        if confirm_offset < seen and self._writable:
            raise self.is_older()
        self._seen = confirm_offset
        return confirm_offset

    def is_older(self) -> CorruptStore:
        return CorruptStore(
            f"{self.path}: this file was replaced by an older one while the store is open. It says that the log ends "
            f"at {self._file.number('confirm_offset')}, but the log is longer. No more messages are appended. Close "
            "the store in all processes and open it for writing: that rebuilds the file from the log"
        )

    @property
    def announced_end(self) -> int:
        """Log offset (bytes) up to which a running or dead append may have written."""
        return self._file.number("announced_end")

    @property
    def written_end(self) -> int:
        """Log offset (bytes) after which no writer of this project has written."""
        return max(self.confirm_offset, self.announced_end)

    @property
    def flushed_offset(self) -> int:
        """Log offset (bytes) up to which log and queues are synced. A failed flush freezes it."""
        flushed = self._file.number("flushed_offset")
        return min(flushed, self._file.number("failed_from")) if self.has_failed else flushed

    @property
    def has_failed(self) -> bool:
        """Whether a flush failed, in any process, since the last recovery."""
        return bool(self._file.raw("failed_from"))

    def check_device(self) -> None:
        """Raise `FlushFailed` if `has_failed`."""
        if self.has_failed:
            raise FlushFailed(self._file.text("failure").decode("utf-8", "replace"))

    def recording_failure(self) -> _RecordingFailure:
        """Return a re-entrant context that records a failed flush for all processes that use the directory."""
        return _RecordingFailure(self)

    def mark_failed(self, begin: int, failure: str) -> None:
        """Record that the log after `begin` may not be synced. The lowest `begin` and the first failure are kept."""
        if not self.has_failed:
            self._file.set("failure", failure.encode()[: PUBLISHED_END["failure"].itemsize])
        if not self.has_failed or begin < self.flushed_offset:
            self._file.set("failed_from", checked(begin))

    @property
    def store_timestamp(self) -> int:
        """Store timestamp (ms) of the newest append. It decreases only by more than `appender.FAR_MS`."""
        return self._file.number("store_timestamp")

    @property
    def times_from(self) -> int | None:
        """Log offset (bytes) from which on store times ascend; None if unknown."""
        return self._file.number("times_from") if self._file.raw("times_from") else None

    @property
    def keys_from(self) -> int | None:
        """Log offset (bytes) from which on every key is in the index; None if unknown."""
        return self._file.number("keys_from") if self._file.raw("keys_from") else None

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Three numbers, at least one of which changes at every append and every undo."""
        return self.confirm_offset, self.store_timestamp, self.announced_end

    @property
    def is_replaced(self) -> bool:
        return self._file.is_replaced

    @property
    def same_boot(self) -> bool:
        """Whether the machine has run since the last append. Also true if that is unknown."""
        written, now = self._file.text("boot_id"), current_boot_id()
        return not written or not now or written == now

    def announce(self, end: int, store_timestamp: int) -> None:
        """Record the end and store time (ms) of an append. Call this before its first write."""
        self._file.set("store_timestamp", checked(store_timestamp))
        self._file.set("announced_end", checked(end))

    def initialize_new_fields(self) -> None:
        """Set the fields that an older version did not write."""
        if self.times_from is None:
            self.note_times_from(self.confirm_offset)
        if self.keys_from is None:
            self.note_keys_from(self.confirm_offset)

    def note_times_from(self, offset: int) -> None:
        """Record that store times may step back at `offset`. Call this before they do."""
        self._file.set("times_from", checked(offset))

    def note_keys_from(self, offset: int) -> None:
        """Record that the index may lack keys before `offset`. Call this before it does."""
        self._file.set("keys_from", checked(offset))

    @property
    def deletions(self) -> int:
        """A counter of topic deletions; odd during a deletion."""
        return self._file.raw("deletions")

    def begin_deletion(self) -> None:
        self._file.set("deletions", self.deletions | 1)

    def end_deletion(self) -> None:
        self._file.set("deletions", (self.deletions | 1) + 1)

    @property
    def has_lost(self) -> bool:
        """Whether a queue lost a file, since the last recovery."""
        return bool(self._file.raw("has_lost"))

    def note_loss(self) -> None:
        """Record that a queue lost a file.

        The next writer rebuilds the queue. It ignores `queueends`, which may have entries after the missing ones.
        """
        self._file.set("has_lost", 1)

    def publish(self, confirm_offset: int) -> None:
        self._file.publish(confirm_offset)

    def mark_flushed(self, offset: int) -> None:
        """Record that the log is synced up to `offset`. Raises `FlushFailed`."""
        self.check_device()
        if offset > self.flushed_offset:
            self._file.set("flushed_offset", checked(offset))

    def flush(self) -> None:
        """Sync the file. Raises `FlushFailed`."""
        self._file.flush()

    def close(self) -> None:
        """Close the file. The numbers can still be read."""
        self._file.close()


class _NumberFile:
    def __init__(self, root: Path, *, writable: bool) -> None:
        self.path = root / PUBLISHED_END_FILE
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK
        self._file = Descriptor(self.path, lambda path: os.open(path, flags))
        status = os.fstat(self._file.fd)
        if status.st_size != PUBLISHED_END_FILE_BYTES:
            raise CorruptStore(
                f"{self.path}: {status.st_size} bytes, expected {PUBLISHED_END_FILE_BYTES}. Delete the file and open "
                "the store for writing: that rebuilds the file from the log"
            )
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        with system_errors(self.path):
            mapped = mmap.mmap(self._file.fd, PUBLISHED_END_FILE_BYTES, access=access)
        self._inode = status.st_ino
        fields = np.frombuffer(mapped, PUBLISHED_END, count=1)
        self._fields = {name: fields[name] for name in PUBLISHED_END.names or ()}  # shape (1,) each
        magic, version = self.text("magic"), int(self._fields["version"][0])
        if magic != PUBLISHED_END_MAGIC or version != PUBLISHED_END_VERSION:
            raise CorruptStore(
                f"{self.path}: magic {magic!r} version {version}, expected {PUBLISHED_END_MAGIC!r} version "
                f"{PUBLISHED_END_VERSION}. Another version of pyspark-mq wrote the file, or it is damaged. Use that "
                "version. If the file is damaged, close the store in all processes, delete the file and open the "
                "store for writing: that rebuilds the file from the log"
            )

    @property
    def is_replaced(self) -> bool:
        status = status_of(self.path)
        return status is None or status.st_ino != self._inode

    def number(self, name: str) -> int:
        """Return a field. Raises `CorruptStore` if its checksum is wrong."""
        for _ in range(_LOOKS):
            found: int = self._fields[name].item()
            if checked(found & _NUMBER_MASK) == found:
                return found & _NUMBER_MASK
        raise CorruptStore(
            f"{self.path}: {name} is {found:#x}, and its checksum is wrong. Delete the file and open the store for "
            "writing: that rebuilds the file from the log"
        )

    def raw(self, name: str) -> int:
        """Return a field without checking it, 0 if it was never written."""
        value: int = self._fields[name].item()
        return value

    def text(self, name: str) -> bytes:
        return bytes(self._fields[name][0])

    def set(self, name: str, value: object) -> None:
        self._file.must_be_open()  # a forked child shares the mapping
        self._fields[name][...] = value

    def publish(self, confirm_offset: int) -> None:
        self._file.must_be_open()
        try:
            write_at(self._file.fd, checked(confirm_offset).to_bytes(8, "big"), _CONFIRM_OFFSET)
        except OSError as error:
            raise_translated(self.path, error)
            raise

    def flush(self) -> None:
        sync(self._file.fd, self.path)

    def close(self) -> None:
        self._file.close()
        self._fields = {name: field.copy() for name, field in self._fields.items()}  # the mapping has a descriptor, too


class _RecordingFailure:
    __slots__ = ("_begin", "_published_end")

    def __init__(self, published_end: PublishedEnd) -> None:
        self._published_end = published_end
        self._begin = published_end.flushed_offset  # read now: a concurrent flush may miss the error and advance it

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FlushFailed):
            self._published_end.mark_failed(self._begin, str(error))


def published_end_of(root: Path, *, writable: bool = False) -> PublishedEnd | None:
    try:
        return PublishedEnd(root, writable=writable)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=64)  # an append repeats the same few numbers
def checked(number: int) -> int:
    """Return a number with its checksum in the highest byte. It detects a flipped bit and a page of zeros."""
    return (zlib.crc32(number.to_bytes(_NUMBER_BYTES, "big")) & 0xFF) << PUBLISHED_END_NUMBER_BITS | number


@cache
def current_boot_id() -> bytes:
    """Return the kernel's id of this boot, b"" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""
