"""The file `queueends`: the end of every queue at some length of the log, to detect lost queue files.

A queue that lost its folder or last file looks like a shorter queue, and an append would assign its offsets again.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from store.disk.atomic import read_file, write_file
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import QueueName
from store.disk.index import Index
from store.disk.queues_in_log import NOTHING, FirstEntry, Ranges, must_have_first_file, ranges_of
from store.disk.segments import list_files
from store.disk.topic_table import TopicTable
from store.disk.topics import Topics
from store.format.layout import (
    CONSUME_QUEUE_DIR,
    CQ_ENTRY,
    CQ_PRE_BLANK_SIZE,
    QUEUE_ENDS_FILE,
    field_offset,
    segment_name,
    struct_of,
)
from store.format.strict_json import Long, decode, encode
from store.format.topic_names import is_folder_name, needs_no_entry
from store.model.errors import ConfigError, CorruptSegment, CorruptStore, system_errors
from store.model.integers import LONG_MAX

_VERSION = 1
_CRC = b', "crc": '  # then the CRC of all bytes before, and "}". No JSON string has this text
_MAX_BYTES = 256 << 20  # 10,000 queues take half a megabyte
_OFFSET, _SIZE = (
    (field_offset(CQ_ENTRY, name), field_offset(CQ_ENTRY, name) + CQ_ENTRY[name].itemsize)
    for name in ("physical_offset", "size")
)
_WRITE_EVERY = 64 << 20  # bytes of log: limits the walk after a writer was killed


class _QueueEndsFile(msgspec.Struct):
    version: int
    logOffset: Long
    queues: list[tuple[str, Long, Long]]
    index: dict[str, Long]


@dataclass
class QueueEnds:
    """The ends of queues and index files when the log ended at `at` (bytes).

    of: queue offset after the last entry of each queue that has any.
    index: log offset of the last record in each index file, by file name, unless the file has records after `at`.
    gaps: ranges of the log before `at` whose records are not in `of` yet.
    """

    at: int
    of: dict[QueueName, int]
    index: dict[str, int] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    written_at: int = 0

    @staticmethod
    def read(root: Path) -> QueueEnds | None:
        """Read the file, without topics that were deleted later. Return None if it is missing, or with a warning if
        damaged.
        """
        try:
            found = QueueEnds.sound(root)
        except CorruptStore as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
            return None
        if found is not None:
            found.forget(Topics(root).deletions())
        return found

    @staticmethod
    def sound(root: Path) -> QueueEnds | None:
        """Read the file. Return None if it is missing. Raises `CorruptStore` if it is damaged."""
        try:
            noted = decode(_checked(read_file(root / QUEUE_ENDS_FILE, _MAX_BYTES)), _QueueEndsFile)
            ends, at = {(topic, queue): end for topic, queue, end in noted.queues}, noted.logOffset
            if noted.version != _VERSION or not all(map(is_folder_name, (*noted.index, *(topic for topic, _ in ends)))):
                raise ValueError
            return QueueEnds(at, ends, {name: last for name, last in noted.index.items() if last < at}, written_at=at)
        except FileNotFoundError:
            return None
        except (CorruptStore, ValueError) as error:
            raise CorruptStore(
                f"{root / QUEUE_ENDS_FILE}: this file is damaged, so lost queue entries would not be noticed. Close "
                "the store in all processes and open it for writing: that rebuilds the file and the queues from the "
                "log"
            ) from error

    @staticmethod
    def known(root: Path, log: CommitLog, end: int, begin: int = 0) -> QueueEnds:
        """Read the file, and then the log from there to at least `end`. Without a file, read the log from
        `begin` on.
        """
        found = QueueEnds.read(root) or QueueEnds(min(begin, end), {})
        if found.at < end:
            begin, deleted = max(found.at, log.min_offset()), Topics(root).deletions()
            found.follow(begin, end, ranges_of(log, begin, end, deleted) or {}, deleted)
        return found

    def write(self, root: Path, index: Index) -> None:
        """Write the file.

        An OS error, such as a full device, is ignored: then the next opening reads more of the log.
        """
        queues = [(topic, queue, end) for (topic, queue), end in sorted(self.of.items())]
        with suppress(OSError, ConfigError):  # a foreign file in the index
            # Keys after `at` may still be undone. Files before the newest recorded one got no more keys.
            for name, last in index.last_keys(self.at, max(self.index, default="")).items():
                if name not in self.index or index.has(self.index[name], name):  # else a key was lost: keep that
                    self.index[name] = last
            text = encode(_QueueEndsFile(_VERSION, self.at, queues, self.index))[:-1]
            write_file(root / QUEUE_ENDS_FILE, b"%b%b%d}" % (text, _CRC, zlib.crc32(text)))
            self.written_at = self.at

    def is_due(self, index: Index) -> bool:
        """Return whether much of the log, or the first key of an index file, was flushed since the last write."""
        if self.at - self.written_at >= _WRITE_EVERY:
            return True
        newest = max(self.index, default="")
        # FileNotFoundError: retention deleted the file. ConfigError: a foreign file.
        with system_errors(index.directory), suppress(FileNotFoundError, ConfigError):
            is_new = max(os.listdir(index.directory), default="") > newest
            return is_new and bool(index.last_keys(self.at, newest).keys() - self.index.keys())
        return False

    def forget(self, deleted: Mapping[str, int]) -> None:
        """Drop the queues of topics that were deleted after `at`. deleted: see `Topics.deletions`.

        A topic that was deleted before `at` has been recreated.
        """
        for name in [name for name in self.of if deleted.get(name[0], -1) >= self.at]:
            del self.of[name]

    def follow(self, begin: int, end: int, ranges: Ranges, deleted: Mapping[str, int] = NOTHING) -> None:
        """Record the entries of the flushed range [begin, end) of the log. Other writers flushed the ranges before it.

        ranges: entries by queue, without topics that were `deleted` when `end` was flushed. For a topic that was
        deleted later, another writer may have recorded the recreated topic's queues already.
        """
        self.forget(deleted)
        if begin > self.at:
            self.gaps.append((self.at, begin))
        self._merge({name: stop for name, (_, stop) in ranges.items() if deleted.get(name[0], -1) < end})
        self.at = max(self.at, end)

    def complete(self, log: CommitLog, written: QueueEnds, deleted: Mapping[str, int] = NOTHING) -> bool:
        """Close the gaps with another writer's file and the log. If the log is damaged, return False: the next opening
        reads the whole log.
        """
        self._merge(written.of)
        self.index |= written.index
        self.gaps = [(max(begin, written.at), end) for begin, end in self.gaps if end > written.at]
        for gap in self.gaps:
            ranges = ranges_of(log, *gap, deleted)
            if ranges is None:
                self.written_at = self.at
                return False
            self._merge({name: stop for name, (_, stop) in ranges.items()})
        self.gaps = []
        first_byte = log.min_offset()
        self.index = {name: end for name, end in self.index.items() if end >= first_byte}  # the others expired
        return True

    def match_files(
        self,
        log: CommitLog,
        index: Index,
        queue_file_size: int,
        end: int,
        *,
        announced: int | None = None,
        rebuilds_index: bool = False,
    ) -> bool:
        """Return whether queues and index have all entries recorded here, and the queues all entries of the log up to
        `end`.

        Queues of unlisted topics are ignored: a broker deleted them.

        announced: log offset up to which an unfinished append may have written; `end` if there is none. Entries after a
        queue's end are allowed if that append wrote to the queue (`Appender.repair` undoes it), or if the log cannot
        tell. Any other such entry shows that the files are newer than the log. None allows them all, because recovery
        truncates them.
        rebuilds_index: the caller rebuilds the index after its `trusted` files, so later keys may be missing.
        """
        root = log.segments.directory.parent
        table = TopicTable(root)
        topics, deleted = table.counts, {topic: tombstone.at for topic, tombstone in table.tombstones.items()}
        appended = ranges_of(log, self.at, end, deleted) if self.at <= end else None
        if appended is None:
            return False
        dead = None if announced is None else ranges_of(log, end, announced)
        self._merge({name: stop for name, (_, stop) in appended.items()})
        there = (name for name in self.of if name[0] in topics or needs_no_entry(name[0]))
        folders = {name: _folder(root, name) for name in there}

        def is_last(name: QueueName) -> bool:
            return dead is not None and name not in dead

        for name, folder in folders.items():
            begin = deleted.get(name[0], 0)  # an earlier entry comes from a restored backup
            if not _reaches(folder, self.of[name], queue_file_size, begin, end, is_last(name)):
                return False
        others = (name for name in table.queues_on_disk if name[0] in topics and name not in self.of)
        if any(_has_entries(_folder(root, name), end, is_last(name)) for name in others):
            return False
        several = {
            name: folder for name, folder in folders.items() if self.of[name] * CQ_ENTRY.itemsize > queue_file_size
        }
        until = end if dead == {} else None
        return _begin(several, log, deleted) and self._index_holds(log, index, until, rebuilds_index=rebuilds_index)

    def forget_all_but(self, existing: Sequence[QueueName]) -> bool:
        """Forget queues that a broker deleted, because it restarts them at 0. Return whether there were any.

        Call this only after `match_files` returned True.
        """
        gone = self.of.keys() - set(existing)
        for name in gone:
            del self.of[name]
        return bool(gone)

    def _merge(self, ends: Mapping[QueueName, int]) -> None:
        self.of.update({name: max(self.of.get(name, 0), end) for name, end in ends.items()})

    def _index_holds(self, log: CommitLog, index: Index, end: int | None, *, rebuilds_index: bool) -> bool:
        if not index.is_enabled:
            return True
        names, first_byte = set(index.names()), log.min_offset()
        with suppress(ConfigError):
            until = max((last for _, last in index.spans(index.trusted())), default=-1) if rebuilds_index else LONG_MAX
            if not all(name in names or not first_byte <= last <= until for name, last in self.index.items()):
                return False
            noted = (last for name, last in self.index.items() if last <= until and not index.has(last, name))
            # The log's beginning is read last: retention deletes segments before index files.
            if any(last >= log.min_offset() for last in noted):
                return False
            return end is None or index.end_offset() < end
        return False


def _checked(data: bytes) -> bytes:
    text, found, crc = data.rpartition(_CRC)
    # An earlier version wrote no checksum.
    if found and crc != b"%d}" % zlib.crc32(text):
        raise ValueError
    return data


def _reaches(folder: str, stop: int, file_size: int, begin: int, end: int, is_last: bool) -> bool:
    """Return whether a queue has the entry before queue offset `stop`, for a record in [begin, end) of the log.

    The next entry must not be for a record before `end`. With `is_last`, it must be empty. For speed with 10,000
    queues, this uses no `Segments`, paths and arrays.
    """
    position = (stop - 1) * CQ_ENTRY.itemsize
    start = position - position % file_size
    data = _read(f"{folder}/{segment_name(start)}", position - start)
    following = data[CQ_ENTRY.itemsize :] or _read(f"{folder}/{segment_name(start + file_size)}", 0)
    return _counts(data, end, begin) and not (any(following) if is_last else _counts(following, end))


def _has_entries(folder: str, end: int, is_last: bool) -> bool:
    files = list_files(Path(folder))
    entry = _read(f"{folder}/{files[0][0]}", 0) if files else b""
    return any(entry) if is_last else _counts(entry, end)


def _read(path: str, position: int) -> bytes:
    with system_errors(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        try:
            return os.pread(fd, 2 * CQ_ENTRY.itemsize, position)
        finally:
            os.close(fd)


def _counts(data: bytes, end: int, begin: int = 0) -> bool:
    # As unsigned, negative numbers are after every end.
    offset, size = (int.from_bytes(data[first:last], "big") for first, last in (_OFFSET, _SIZE))
    return size == CQ_PRE_BLANK_SIZE or (size > 0 and begin <= offset <= end - size)


def _folder(root: Path, name: QueueName) -> str:
    return f"{root}/{CONSUME_QUEUE_DIR}/{name[0]}/{name[1]}"


def _begin(folders: Mapping[QueueName, str], log: CommitLog, deleted: Mapping[str, int]) -> bool:
    begins = {}
    for name, folder in folders.items():
        first, status = list_files(Path(folder))[0]
        if status.st_size >= CQ_ENTRY.itemsize and first.isdigit() and int(first):
            path = f"{folder}/{first}"
            with system_errors(path), open(path, "rb", buffering=0) as file:
                at, size = struct_of(CQ_ENTRY).unpack(file.read(CQ_ENTRY.itemsize))[:2]
            if not size:  # does not tell which records came before
                return False
            begins[name] = FirstEntry(int(first) // CQ_ENTRY.itemsize, at, size)
    with suppress(CorruptSegment):
        return must_have_first_file(log, begins, deleted)
    return False
