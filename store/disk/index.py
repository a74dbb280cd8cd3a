"""The key index: its files, oldest first (RocketMQ's IndexService)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

from store.disk.atomic import make_folder, open_file
from store.disk.config import StoreConfig
from store.disk.index_file import IndexFile, KeyColumn, file_bytes
from store.disk.segment_file import sync_names
from store.disk.segments import BLOCK_BYTES, list_files
from store.format.hashes import key_hash
from store.format.layout import INDEX_DIR, INDEX_NAME_DIGITS, INDEX_NO_ENTRY, PREALLOCATE_FILE
from store.model.errors import ConfigError, ReadOnlyStore, system_errors

_OPEN_FILES = 8
_MS = 1000
END_OF_TIME = (1 << 63) - 1


class IndexFiles:
    def __init__(self, root: Path, slots: int, entries: int, *, writable: bool) -> None:
        """slots, entries: `maxHashSlotNum` and `maxIndexNum`, which existing files must have."""
        self.directory = root / INDEX_DIR
        self._temporary = root / PREALLOCATE_FILE
        self._shape = slots, entries
        self._listed: list[str] = []  # at the last `close_deleted`
        # Holds no reference to this object, so that the files are closed when it is dropped.
        self._opened = lru_cache(maxsize=_OPEN_FILES)(partial(_open, self.directory, slots, entries, writable))

    def file(self, name: str) -> IndexFile:
        """Return an open file. Raises `FileNotFoundError`, `ConfigError`."""
        file = self._opened(name)
        if file.is_deleted:
            self._opened.cache_clear()
            file = self._opened(name)
        return file

    def names(self, *, empty: bool = False) -> list[str]:
        """Return the names of the files, oldest first. Names that are no times are ignored, as in RocketMQ.

        empty: include empty files, which a broker is creating or a machine crash left.
        """
        files = list_files(self.directory)
        return [name for name, status in files if name.isascii() and name.isdigit() and (status.st_size or empty)]

    def check(self) -> None:
        """Raise `ConfigError` if a file does not have the configured size."""
        for name in self.names():
            self.file(name)

    def spans(self, names: list[str]) -> list[tuple[int, int]]:
        """Return the log offsets of the first and last record in each file that has keys."""
        headers = (self.file(name).header() for name in names)
        return [(h["begin_offset"], h["end_offset"]) for h in headers if h["next_entry"] > INDEX_NO_ENTRY + 1]

    def create(self, last_name: str) -> str:
        """Create a new last file. Return its name.

        As in RocketMQ, its header begins with the end of the file before it.
        """
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
        self.delete_for_good([name for name in self.names(empty=True) if name not in names])

    def delete_for_good(self, names: list[str]) -> None:
        """Delete files durably, because after a crash all files except the last are expected to be complete."""
        for name in names:
            self._delete(name)
        if names:
            sync_names(self.directory)

    def expire(self, min_physical_offset: int) -> list[tuple[str, int]]:
        """Delete the files whose records retention deleted, see `ConsumeQueue.expire`."""
        names = self.names()[:-1]
        expired = [name for name in names if self.file(name).header()["end_offset"] < min_physical_offset]
        return [(str(self.directory / name), self._delete(name)) for name in expired]

    def _delete(self, name: str) -> int:
        path = self.directory / name
        with system_errors(path):
            taken = path.stat().st_blocks * BLOCK_BYTES
            path.unlink()
        self._opened.cache_clear()
        return taken

    def flush(self) -> None:
        """Sync the newest file; the others were synced when they became full."""
        for name in self.names()[-1:]:
            self.file(name).flush()

    def close_deleted(self) -> None:
        names = self.names()
        if not set(self._listed) <= set(names):
            self._opened.cache_clear()
        self._listed = names

    def close(self) -> None:
        self._opened.cache_clear()


class Index(IndexFiles):
    """The keys of all files. Only one process may write at a time, under the store lock."""

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
        super().__init__(root, slots, entries, writable=writable)
        self.is_enabled = is_enabled
        self.has_tags = has_tags
        self._writable = writable
        self._newest = ""  # of the last append

    @staticmethod
    def of(root: Path, config: StoreConfig, *, writable: bool) -> Index:
        shape = config.maxHashSlotNum, config.maxIndexNum
        return Index(
            root,
            *shape,
            writable=writable,
            is_enabled=config.messageIndexEnable,
            has_tags=config.tagIndexEnable,
        )

    def end_offset(self) -> int:
        """Return the log offset of the newest indexed record, -1 if there is none. All older records are indexed."""
        headers = (self.file(name).header() for name in reversed(self.names()))
        return next((header["end_offset"] for header in headers if header["next_entry"] > INDEX_NO_ENTRY + 1), -1)

    def append(self, hashes: KeyColumn, physical_offsets: KeyColumn, timestamps: KeyColumn) -> None:
        """Add keys (see `key_hashes`), in the order of the log. timestamps: ms.

        Skips records before `end_offset`, as RocketMQ does. Raises `StoreFull`, `ReadOnlyStore`.
        """
        if not self._writable:
            raise ReadOnlyStore(
                f"{self.directory}: the store is open with read_only=True. To write, open it without read_only"
            )
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
        with suppress(FileNotFoundError):
            if self._newest:
                return self.file(self._newest)
        names = self.names()
        self._newest = names[-1] if names else self.create("")
        return self.file(self._newest)

    def candidates(
        self, topic: str, key: str, begin: int = 0, end: int = END_OF_TIME, times_from: int = 0
    ) -> Iterator[int]:
        """Yield the log offsets of records that may have `key` and a store time in [begin, end] (ms), newest first.

        The caller must compare topic, key and time with the record, because hashes collide and times are rounded to
        seconds. It must also skip unpublished records.

        times_from: log offset from which on store times ascend. Records before it are not excluded by their times.
        """
        wanted, headers = key_hash(topic, key), {}
        for name in reversed(self.names()):
            with suppress(FileNotFoundError):  # deleted by retention
                headers[name] = self.file(name).header()
        # Not by name: a broker whose clock was set back names a file before older ones.
        for name, header in sorted(headers.items(), key=lambda item: -item[1]["begin_offset"]):
            is_ever = header["begin_offset"] < times_from or (begin, end) == (0, END_OF_TIME)  # times may be damaged
            if is_ever or (header["begin_timestamp"] <= end and header["end_timestamp"] >= begin):
                with suppress(FileNotFoundError):
                    yield from self.file(name).candidates(wanted, *((-math.inf, math.inf) if is_ever else (begin, end)))

    def has(self, physical_offset: int, name: str) -> bool:
        """Return whether a key of this record is indexed, probably in file `name`."""
        with suppress(FileNotFoundError, ConfigError):  # listing many files is slow
            if self.file(name).has(physical_offset):
                return True
        for each in self.names():
            with suppress(FileNotFoundError):
                if self.file(each).has(physical_offset):
                    return True
        return False

    def last_keys(self, end_offset: int, since: str = "") -> dict[str, int]:
        """Return the log offset of the last record before `end_offset` in each file from `since` on.

        If a record has keys in two files, it counts for the later file.
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

    def keys_complete_from(self, end_offset: int) -> int | None:
        """Return the log offset from which on the index has all keys of records up to `end_offset`, None if unknown.

        Earlier keys may have been in deleted files.
        """
        headers = (self.file(name).header() for name in self.names())
        filled = (header for header in headers if header["next_entry"] > INDEX_NO_ENTRY + 1)
        return next((header["begin_offset"] for header in filled if header["end_offset"] >= end_offset), None)

    def truncate(self, end_offset: int) -> None:
        """Drop the keys of records from log offset `end_offset` on."""
        kept, behind = self.names(), []
        while kept and not self._begins_before(kept[-1], end_offset):
            behind.append(kept.pop())
        self.delete_for_good(behind)
        if kept:
            self.file(kept[-1]).truncate(end_offset)

    def are_consistent(self, names: list[str], end: int) -> bool:
        """Return whether all files are consistent, see `IndexFile.is_consistent`.

        end: log offset from which on keys may come from an unfinished append.
        """
        try:
            return all(self.file(name).is_consistent(end) for name in names)
        except ConfigError:
            return False

    def trusted(self, safe_timestamp: int | None = None) -> list[str]:
        """Return the files that a machine crash cannot have damaged. Raises `ConfigError`.

        safe_timestamp: `indexMsgTimestamp` (ms) of a RocketMQ checkpoint. Files that end at or before it were synced.
        None: all files except the last, because this store syncs a file before it creates the next.
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
    """Return the local time as yyyyMMddHHmmssSSS, but at least one more than `last`."""
    now = time.time()
    name = f"{time.strftime('%Y%m%d%H%M%S', time.localtime(now))}{int(now * _MS) % _MS:03d}"
    return name if name > last else f"{int(last) + 1:0{INDEX_NAME_DIGITS}d}"
