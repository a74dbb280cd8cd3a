"""Where every queue ended when the log had some length: the queues' own files must agree with it.

A queue that lost its folder or last file looks like a shorter one, and an append would give its offsets a second time.
So writers keep the ends in a file of this project, `queueends`. A recovery writes it, a flusher now and then, and the
last writer at its close. The log tells of later appends. If the file is unreadable or its checksum wrong, the queues
are rebuilt from the log.
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

from store.files.atomic import read_file, write_file
from store.files.segments import list_files
from store.files.topic_table import TopicTable
from store.files.topics import Topics
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
from store.key_index.index import Index
from store.log.commit_log import CommitLog
from store.log.consume_queues import QueueName
from store.log.queues_in_log import NOTHING, Begin, Ranges, must_begin, ranges_of
from store.model.errors import ConfigError, CorruptSegment, CorruptStore, system_errors
from store.model.integers import LONG_MAX

_VERSION = 1
_CRC = b', "crc": '  # of all bytes before it; behind it a number and "}". In no other place: JSON escapes its quotes
_MAX_BYTES = 256 << 20  # ten thousand queues take half a megabyte
_OFFSET, _SIZE = (
    (field_offset(CQ_ENTRY, name), field_offset(CQ_ENTRY, name) + CQ_ENTRY[name].itemsize)
    for name in ("physical_offset", "size")
)
_WRITE_EVERY = 64 << 20  # bytes of log: more are not walked when a writer was killed


class _QueueEndsFile(msgspec.Struct):
    """The file."""

    version: int
    logOffset: Long
    queues: list[tuple[str, Long, Long]]
    index: dict[str, Long]


@dataclass
class QueueEnds:
    """The ends of queues and index files when the log ended at `at` (bytes).

    of: queue offset after the last entry of each queue that has any. index: by name of an index file, log offset of the
    last record before `at` that it names, if it names none behind it. gaps: stretches of the log before `at` whose
    records are not in `of` yet.
    """

    at: int
    of: dict[QueueName, int]
    index: dict[str, int] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    written_at: int = 0

    @staticmethod
    def read(root: Path) -> QueueEnds | None:
        """Read the file of a directory, leaving out topics that were deleted since.

        None if it is missing; None, with a warning, if it is damaged.
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
        """Read the file; None if it is missing. Raises `CorruptStore` if it is damaged."""
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
                f"{root / QUEUE_ENDS_FILE}: damaged, so it says nothing; the next opening for writing, with no other "
                "writer there, makes it anew, with the queues, from the log"
            ) from error

    @staticmethod
    def known(root: Path, log: CommitLog, end: int, begin: int = 0) -> QueueEnds:
        """Read the file, and from the log what came since, up to `end` at least; without a file, from `begin` on."""
        found = QueueEnds.read(root) or QueueEnds(min(begin, end), {})
        if found.at < end:
            begin, deleted = max(found.at, log.min_offset()), Topics(root).deletions()
            found.follow(begin, end, ranges_of(log, begin, end, deleted) or {}, deleted)
        return found

    def write(self, root: Path, index: Index) -> None:
        """Replace the file of a directory. An error of the system is ignored, such as for a full device.

        The next opening notices an old file, and then reads the whole log.
        """
        queues = [(topic, queue, end) for (topic, queue), end in sorted(self.of.items())]
        with suppress(OSError, ConfigError):  # a file in the index that is none of ours
            # What is behind that may yet be undone; files before the newest noted one have got no more.
            for name, last in index.last_keys(self.at, max(self.index, default="")).items():
                if name not in self.index or index.has(self.index[name], name):  # or else it stays, to be missed
                    self.index[name] = last
            text = encode(_QueueEndsFile(_VERSION, self.at, queues, self.index))[:-1]
            write_file(root / QUEUE_ENDS_FILE, b"%b%b%d}" % (text, _CRC, zlib.crc32(text)))
            self.written_at = self.at

    def is_due(self, index: Index) -> bool:
        """Whether much was flushed since the file was written, or the first key of an index file."""
        if self.at - self.written_at >= _WRITE_EVERY:
            return True
        newest = max(self.index, default="")
        # Retention may have taken the folder or a file. ConfigError: a file that is not ours.
        with system_errors(index.directory), suppress(FileNotFoundError, ConfigError):
            is_new = max(os.listdir(index.directory), default="") > newest
            return is_new and bool(index.last_keys(self.at, newest).keys() - self.index.keys())
        return False

    def forget(self, deleted: Mapping[str, int]) -> None:
        """Drop the queues of topics that were deleted since. deleted: `Topics.deletions`.

        A topic that was deleted before `at` was created again before it was noted.
        """
        for name in [name for name in self.of if deleted.get(name[0], -1) >= self.at]:
            del self.of[name]

    def follow(self, begin: int, end: int, ranges: Ranges, deleted: Mapping[str, int] = NOTHING) -> None:
        """Note the entries of the flushed stretch [begin, end) of the log; other writers flushed what lies before it.

        ranges: without topics that were `deleted` when `end` was flushed. Others may have noted later lives since.
        """
        self.forget(deleted)
        if begin > self.at:
            self.gaps.append((self.at, begin))
        self._merge({name: stop for name, (_, stop) in ranges.items() if deleted.get(name[0], -1) < end})
        self.at = max(self.at, end)

    def complete(self, log: CommitLog, written: QueueEnds, deleted: Mapping[str, int] = NOTHING) -> bool:
        """Close the gaps from `written`, which another writer may have written, and from the log.

        Return whether all are closed. They stay if the log is damaged, or its beginning was deleted; then the next
        opening reads everything.
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
        self.index = {name: end for name, end in self.index.items() if end >= first_byte}  # retention took the others
        return True

    def agree_with(
        self,
        log: CommitLog,
        index: Index,
        queue_file_size: int,
        end: int,
        *,
        announced: int | None = None,
        filed_anew: bool = False,
    ) -> bool:
        """Whether queues and index reach as far as noted here, and the queues as far as the log up to `end`.

        Queues of topics that a broker deleted do not count, if brokers list such topics.
        announced: up to which log offset an append was under way that died, `end` without one: then there is nothing
        behind either, but in the queues that it names, in which `Appender.repair` undoes it, or in all where they
        cannot be told. In files that are newer than the log there is. None: there may be in all queues, for a recovery
        cuts them off.
        filed_anew: what the index has behind its `trusted` files need not be there.
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
            begin = deleted.get(name[0], 0)  # or else it is that of an older life, from a backup
            if not _reaches(folder, self.of[name], queue_file_size, begin, end, is_last(name)):
                return False
        others = (name for name in table.queues_on_disk if name[0] in topics and name not in self.of)
        if any(_has_entries(_folder(root, name), end, is_last(name)) for name in others):
            return False
        several = {
            name: folder for name, folder in folders.items() if self.of[name] * CQ_ENTRY.itemsize > queue_file_size
        }
        until = end if dead == {} else None
        return _begin(several, log, deleted) and self._index_holds(log, index, until, filed_anew=filed_anew)

    def forget_all_but(self, existing: Sequence[QueueName]) -> bool:
        """Forget the queues of topics that a broker deleted: recreated, they begin at 0. Return whether there were any.

        existing: the queues on disk, of a directory with which these `agree`.
        """
        gone = self.of.keys() - set(existing)
        for name in gone:
            del self.of[name]
        return bool(gone)

    def _merge(self, ends: Mapping[QueueName, int]) -> None:
        self.of.update({name: max(self.of.get(name, 0), end) for name, end in ends.items()})

    def _index_holds(self, log: CommitLog, index: Index, end: int | None, *, filed_anew: bool) -> bool:
        """end: of the log, behind which the index has no key; None if it may have some."""
        if not index.is_enabled:
            return True
        names, first_byte = set(index.names()), log.min_offset()
        with suppress(ConfigError):
            until = max((last for _, last in index.spans(index.trusted())), default=-1) if filed_anew else LONG_MAX
            if not all(name in names or not first_byte <= last <= until for name, last in self.index.items()):
                return False
            noted = (last for name, last in self.index.items() if last <= until and not index.has(last, name))
            # The log's beginning is read last: retention deletes segments before it deletes index files.
            if any(last >= log.min_offset() for last in noted):
                return False
            return end is None or index.end_offset() < end
        return False


def _checked(data: bytes) -> bytes:
    """Return the content of the file. An earlier version wrote no checksum. Raises `ValueError` if it does not fit."""
    text, found, crc = data.rpartition(_CRC)
    if found and crc != b"%d}" % zlib.crc32(text):
        raise ValueError
    return data


def _reaches(folder: str, stop: int, file_size: int, begin: int, end: int, is_last: bool) -> bool:
    """Whether a queue has the entry before queue offset `stop`, of a record in [begin, end) of the log.

    The entry behind it must not be of a record before `end`, or the end was noted wrong; it must be empty if the one
    before it `is_last`. Works without `Segments`, paths and arrays, for there may be ten thousand queues.
    """
    position = (stop - 1) * CQ_ENTRY.itemsize
    start = position - position % file_size
    data = _read(f"{folder}/{segment_name(start)}", position - start)
    following = data[CQ_ENTRY.itemsize :] or _read(f"{folder}/{segment_name(start + file_size)}", 0)
    return _counts(data, end, begin) and not (any(following) if is_last else _counts(following, end))


def _has_entries(folder: str, end: int, is_last: bool) -> bool:
    """Whether a queue without a noted end has entries, by the same rule as `_reaches` for entries behind an end."""
    files = list_files(Path(folder))
    entry = _read(f"{folder}/{files[0][0]}", 0) if files else b""
    return any(entry) if is_last else _counts(entry, end)


def _read(path: str, position: int) -> bytes:
    """Read an entry of a queue's file, and the one behind it if the file has it; b"" if the file is missing."""
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
    """Whether the first entry in `data` is of a record in [begin, end) of the log, or a pre-blank one."""
    # Without their signs: what is negative is behind every end then.
    offset, size = (int.from_bytes(data[first:last], "big") for first, last in (_OFFSET, _SIZE))
    return size == CQ_PRE_BLANK_SIZE or (size > 0 and begin <= offset <= end - size)


def _folder(root: Path, name: QueueName) -> str:
    return f"{root}/{CONSUME_QUEUE_DIR}/{name[0]}/{name[1]}"


def _begin(folders: Mapping[QueueName, str], log: CommitLog, deleted: Mapping[str, int]) -> bool:
    """Whether the first files of queues that have had several are the first ones that the log has something of."""
    begins = {}
    for name, folder in folders.items():
        first, status = list_files(Path(folder))[0]
        if status.st_size >= CQ_ENTRY.itemsize and first.isdigit() and int(first):
            path = f"{folder}/{first}"
            with system_errors(path), open(path, "rb", buffering=0) as file:
                at, size = struct_of(CQ_ENTRY).unpack(file.read(CQ_ENTRY.itemsize))[:2]
            if not size:  # it says nothing of what was before
                return False
            begins[name] = Begin(int(first) // CQ_ENTRY.itemsize, at, size)
    with suppress(CorruptSegment):
        return must_begin(log, begins, deleted)
    return False
