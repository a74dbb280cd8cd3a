"""The index by key: all its files, oldest first (RocketMQ's IndexService). What one holds: `index_file`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

from store.files.atomic import make_folder, open_file
from store.files.config import StoreConfig
from store.files.segment_file import sync_names
from store.files.segments import BLOCK_BYTES, list_files
from store.format.hashes import key_hash
from store.format.layout import INDEX_DIR, INDEX_NAME_DIGITS, INDEX_NO_ENTRY, PREALLOCATE_FILE
from store.key_index.index_file import IndexFile, KeyColumn, file_bytes
from store.model.errors import ConfigError, ReadOnlyStore, system_errors

_OPEN_FILES = 8
_MS = 1000
END_OF_TIME = (1 << 63) - 1


class IndexFiles:
    """Which files there are in the directory `index` of a store, and their making and deletion."""

    def __init__(self, root: Path, slots: int, entries: int, *, writable: bool) -> None:
        """slots, entries: `maxHashSlotNum` and `maxIndexNum`, as existing files have them."""
        self.directory = root / INDEX_DIR
        self._temporary = root / PREALLOCATE_FILE
        self._shape = slots, entries
        self._listed: list[str] = []  # at the last `close_deleted`
        # The cache must not refer to this object: files are closed when it is dropped.
        self._opened = lru_cache(maxsize=_OPEN_FILES)(partial(_open, self.directory, slots, entries, writable))

    def file(self, name: str) -> IndexFile:
        """The file as it is on disk: another process may have deleted the one that is open, and made it anew.

        Raises `FileNotFoundError`, `ConfigError`.
        """
        file = self._opened(name)
        if file.is_deleted:
            self._opened.cache_clear()
            file = self._opened(name)
        return file

    def names(self, *, empty: bool = False) -> list[str]:
        """File names, oldest first; others than those of times are passed over, as RocketMQ does.

        empty: those without a length too, which a broker is about to give one, or a machine's crash took it.
        """
        files = list_files(self.directory)
        return [name for name, status in files if name.isascii() and name.isdigit() and (status.st_size or empty)]

    def check(self) -> None:
        """Raises `ConfigError` for a file of another length than this index's."""
        for name in self.names():
            self.file(name)

    def spans(self, names: list[str]) -> list[tuple[int, int]]:
        """Commit log offsets of the first and the last record that each of these files names; none of an empty one."""
        headers = (self.file(name).header() for name in names)
        return [(h["begin_offset"], h["end_offset"]) for h in headers if h["next_entry"] > INDEX_NO_ENTRY + 1]

    def create(self, last_name: str) -> str:
        """A new last file. Until its first key it holds the end of the one before, as RocketMQ's does."""
        name = _name_after(last_name)
        last = self.file(last_name).header() if last_name else {"end_timestamp": 0, "end_offset": 0}
        header = {
            "begin_timestamp": last["end_timestamp"],
            "end_timestamp": last["end_timestamp"],
            "begin_offset": last["end_offset"],
            "end_offset": last["end_offset"],
            "slots_used": 0,
            "next_entry": INDEX_NO_ENTRY + 1,
        }
        make_folder(self.directory)
        with system_errors(self.directory / name):
            with open(open_file(self._temporary, os.O_TRUNC), "wb") as made:
                made.truncate(file_bytes(*self._shape))
            file = IndexFile(self._temporary, *self._shape, writable=True)
            file.write_header(header)
            file.flush()  # a file that exists has its length
            self._temporary.rename(self.directory / name)
        return name

    def keep(self, names: list[str]) -> None:
        """Delete all files but these, those without a length too."""
        self.delete_for_good([name for name in self.names(empty=True) if name not in names])

    def delete_for_good(self, names: list[str]) -> None:
        """Delete files, and see to it that none comes back: all but the last one count as whole after a crash."""
        for name in names:
            self._delete(name)
        if names:
            sync_names(self.directory)

    def expire(self, min_physical_offset: int) -> list[tuple[str, int]]:
        """Delete files, never the last, of which no record is left in the log.

        Returns the path of each and the bytes it took.
        """
        names = self.names()[:-1]
        expired = [name for name in names if self.file(name).header()["end_offset"] < min_physical_offset]
        return [(str(self.directory / name), self._delete(name)) for name in expired]

    def _delete(self, name: str) -> int:
        """Unlink a file; returns the bytes it took on the device."""
        path = self.directory / name
        with system_errors(path):
            taken = path.stat().st_blocks * BLOCK_BYTES
            path.unlink()
        self._opened.cache_clear()
        return taken

    def flush(self) -> None:
        """Bring the newest file to the device; the others were flushed when they were full."""
        for name in self.names()[-1:]:
            self.file(name).flush()

    def close_deleted(self) -> None:
        """Close files that were deleted: an open one keeps its space on the device."""
        names = self.names()
        if not set(self._listed) <= set(names):
            self._opened.cache_clear()
        self._listed = names

    def close(self) -> None:
        """Close all files; the next look at one opens it again."""
        self._opened.cache_clear()


class Index(IndexFiles):
    """The keys that are filed in these files. One process at a time may write; the store lock sees to that."""

    def __init__(
        self,
        root: Path,
        slots: int,
        entries: int,
        *,
        writable: bool,
        is_enabled: bool = True,
        has_tags: bool = False,
    ) -> None:
        """slots, entries: as `IndexFiles` takes them. is_enabled: file keys; has_tags: file tags, too."""
        super().__init__(root, slots, entries, writable=writable)
        self.is_enabled = is_enabled
        self.has_tags = has_tags
        self._writable = writable
        self._newest = ""  # the name of the file in which keys were filed last

    @staticmethod
    def of(root: Path, config: StoreConfig, *, writable: bool) -> Index:
        """The index of a store with these settings."""
        shape = config.maxHashSlotNum, config.maxIndexNum
        return Index(
            root,
            *shape,
            writable=writable,
            is_enabled=config.messageIndexEnable,
            has_tags=config.tagIndexEnable,
        )

    def end_offset(self) -> int:
        """Commit log offset of the newest record with a key, -1 without one; keys of older records are filed."""
        headers = (self.file(name).header() for name in reversed(self.names()))
        return next((header["end_offset"] for header in headers if header["next_entry"] > INDEX_NO_ENTRY + 1), -1)

    def append(self, hashes: KeyColumn, physical_offsets: KeyColumn, timestamps: KeyColumn) -> None:
        """File keys (see `key_hashes`), in the order of the log; all of length m, timestamps in ms.

        As in RocketMQ, records before `end_offset` are skipped. Raises `StoreFull`, `ReadOnlyStore`.
        """
        if not self._writable:
            raise ReadOnlyStore(f"{self.directory}: the store is open with read_only=True")
        if not len(hashes) or not self.is_enabled:
            return
        done = 0
        while True:
            file = self._newest_file()
            done += file.append(hashes[done:], physical_offsets[done:], timestamps[done:])
            if done == len(hashes):
                return
            names, self._newest = self.names(), ""
            if names[-1:] == [file.path.name]:
                file.flush()
                self.create(names[-1])

    def _newest_file(self) -> IndexFile:
        """The file for the next key; made where there is none. The one used last is it until it is full, or gone."""
        with suppress(FileNotFoundError):
            if self._newest:
                return self.file(self._newest)
        names = self.names()
        self._newest = names[-1] if names else self.create("")
        return self.file(self._newest)

    def candidates(
        self, topic: str, key: str, begin: int = 0, end: int = END_OF_TIME, times_from: int = 0
    ) -> Iterator[int]:
        """Commit log offsets of records that may have `key`, newest first; store time in [begin, end] (ms), give or
        take a second. Compare topic, key and time with the record's, and pass over offsets that are not published.

        times_from: log offset from which on store times ascend; what files say of times before it may hide records.
        """
        wanted, headers = key_hash(topic, key), {}
        for name in reversed(self.names()):
            with suppress(FileNotFoundError):  # retention was faster
                headers[name] = self.file(name).header()
        # A broker whose clock was set back gives a file a name that is not behind those before it.
        for name, header in sorted(headers.items(), key=lambda item: -item[1]["begin_offset"]):
            is_ever = header["begin_offset"] < times_from or (begin, end) == (0, END_OF_TIME)  # whatever damage says
            if is_ever or (header["begin_timestamp"] <= end and header["end_timestamp"] >= begin):
                with suppress(FileNotFoundError):
                    yield from self.file(name).candidates(wanted, *((-math.inf, math.inf) if is_ever else (begin, end)))

    def has(self, physical_offset: int, name: str) -> bool:
        """Whether a key of the record at this log offset is filed, probably in file `name`. Raises `ConfigError`."""
        with suppress(FileNotFoundError, ConfigError):  # before all are listed, which takes long where there are many
            if self.file(name).has(physical_offset):
                return True
        for each in self.names():
            with suppress(FileNotFoundError):
                if self.file(each).has(physical_offset):
                    return True
        return False

    def last_keys(self, end_offset: int, since: str = "") -> dict[str, int]:
        """Log offset of the last record before `end_offset` that each file names, and none behind it; by file name.

        since: name of the first file that is looked at.
        For the keys of one record may stand in two files. A file without such a record is left out.
        """
        found = {}
        for name in reversed(self.names()):
            if name < since:
                break
            if (last := self.file(name).last_before(end_offset)) is not None:
                found[name] = last
            for begin, _ in self.spans([name]):
                end_offset = min(end_offset, begin)
        return found

    def begins_behind(self, end_offset: int) -> int | None:
        """Commit log offset of the first record in the oldest file that goes beyond `end_offset`; None without one.

        Whoever takes files away takes all of a time: those of records before it may be gone.
        """
        headers = (self.file(name).header() for name in self.names())
        filled = (header for header in headers if header["next_entry"] > INDEX_NO_ENTRY + 1)
        return next((header["begin_offset"] for header in filled if header["end_offset"] >= end_offset), None)

    def truncate(self, end_offset: int) -> None:
        """Drop everything about records at commit log offset `end_offset` and after: an append that died."""
        kept, behind = self.names(), []
        while kept and not self._begins_before(kept[-1], end_offset):
            behind.append(kept.pop())
        self.delete_for_good(behind)
        if kept:
            self.file(kept[-1]).truncate(end_offset)

    def have_what_they_say(self, names: list[str], end: int) -> bool:
        """Whether these files have: one that says it goes further takes no more keys. Of another length: False. end:
        log offset from which on keys may be an append's that died.
        """
        try:
            return all(self.file(name).has_what_it_says(end) for name in names)
        except ConfigError:
            return False

    def trusted(self, safe_timestamp: int | None = None) -> list[str]:
        """The files that are known to be on the device after a machine crash, by name. Raises `ConfigError`.

        safe_timestamp: `indexMsgTimestamp` (ms) of a RocketMQ checkpoint: those that end up to then. None: all but the
        last, because this store starts a file only when the one before is on the device.
        """
        names = self.names()
        headers = {name: self.file(name).header() for name in names}
        if safe_timestamp is None:
            return [name for name in names if name != self.names(empty=True)[-1]]
        return [name for name in names if headers[name]["end_timestamp"] <= safe_timestamp]

    def _begins_before(self, name: str, end_offset: int) -> bool:
        header = self.file(name).header()
        return header["next_entry"] > INDEX_NO_ENTRY + 1 and header["begin_offset"] < end_offset


def _open(directory: Path, slots: int, entries: int, writable: bool, name: str) -> IndexFile:
    return IndexFile(directory / name, slots, entries, writable=writable)


def _name_after(last: str) -> str:
    """The local time as yyyyMMddHHmmssSSS, or one more than `last` where the clock has not passed it."""
    now = time.time()
    name = f"{time.strftime('%Y%m%d%H%M%S', time.localtime(now))}{int(now * _MS) % _MS:03d}"
    return name if name > last else f"{int(last) + 1:0{INDEX_NAME_DIGITS}d}"
