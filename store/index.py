"""The index by key: hash tables over the commit log, read and written as RocketMQ does (IndexFile, IndexService).

An entry holds the hash of `topic#key`, never the key, so what the index finds are candidates: whoever asks reads
the record and compares topic and key. Writes go entries, header, slots. A process that dies in between leaves
either entries that no header counts or entries that no slot names yet, and `Index.truncate` undoes both.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.config import StoreConfig
from store.errors import ConfigError, ReadOnlyStore, StoreFull
from store.filters import java_hash, java_hash_code
from store.layout import (
    INDEX_DIR,
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_KEY_SEPARATOR,
    INDEX_NAME_DIGITS,
    INDEX_NO_ENTRY,
    INDEX_SLOT,
    KEY_SEPARATOR,
    PREALLOCATE_FILE,
)
from store.segments import BLOCK_BYTES, SegmentFile

Ints = npt.NDArray[np.int64]
KeyHashes = npt.NDArray[np.int32]
Entries = npt.NDArray[np.void]  # dtype INDEX_ENTRY
Header = dict[str, int]  # the fields of INDEX_HEADER

_OPEN_FILES = 8
_FEW_KEYS = 8  # up to here one after the other is faster than all at once
_KEYS_AT_ONCE = 1 << 17
_BLOCK_SLOTS = 4096 // INDEX_SLOT.itemsize
_MAX_INT = (1 << 31) - 1
_MS = 1000
END_OF_TIME = (1 << 63) - 1


# --- keys -----------------------------------------------------------------------------------------------


def key_hash(topic: str, key: str) -> int:
    """The hash under which `key` of `topic` is filed, 0 to 2^31 - 1."""
    hashed = abs(java_hash_code(f"{topic}{INDEX_KEY_SEPARATOR}{key}"))
    return hashed if hashed <= _MAX_INT else 0


def key_hashes(
    topics: str | pa.StringArray, unique_keys: pa.StringArray | None, keys: pa.StringArray | None
) -> tuple[npt.NDArray[np.int32], Ints]:
    """Hashes of all keys of n messages, in the order in which RocketMQ files them.

    topics: one for all, or one each. unique_keys: property UNIQ_KEY, nullable. keys: property KEYS, separated by
    blanks, nullable. Both of length n; None where no message has any.
    Returns the hashes, int32, shape (m,), and the message that each belongs to, int64, shape (m,), ascending;
    within a message its UNIQ_KEY comes first.
    """
    parts, rows = [], []
    if unique_keys is not None:
        present = pc.is_valid(unique_keys)
        rows.append(np.flatnonzero(present.to_numpy(zero_copy_only=False)))
        parts.append(unique_keys.filter(present))
    if keys is not None:
        lists = pc.split_pattern(keys, KEY_SEPARATOR)
        tokens, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
        used = pc.greater(pc.binary_length(tokens), 0)
        rows.append(parents.filter(used).to_numpy().astype(np.int64))
        parts.append(tokens.filter(used))
    if not parts:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    owners = np.concatenate(rows)
    order = np.argsort(owners, kind="stable")
    owners, filed = owners[order], pa.concat_arrays(parts).take(pa.array(order))
    hashes = [
        _hash_names(topics, filed[start : start + _KEYS_AT_ONCE], owners[start : start + _KEYS_AT_ONCE])
        for start in range(0, len(owners), _KEYS_AT_ONCE)
    ]
    return np.concatenate([np.empty(0, np.int32), *hashes]), owners


def _hash_names(topics: str | pa.StringArray, keys: pa.StringArray, owners: Ints) -> npt.NDArray[np.int32]:
    own = topics if isinstance(topics, str) else topics.take(pa.array(owners))
    return _positive(java_hash(pc.binary_join_element_wise(own, keys, INDEX_KEY_SEPARATOR)))


def _positive(hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """abs(), and 0 for the one value that has none."""
    return np.maximum(np.abs(hashes), 0)


# --- one file -------------------------------------------------------------------------------------------


def _struct_of(dtype: np.dtype[np.void]) -> struct.Struct:
    """The same layout for one value: numpy takes twenty times as long for that."""
    return struct.Struct(">" + "".join({">i4": "i", ">i8": "q"}[dtype[name].str] for name in dtype.names or ()))


_HEADER, _ENTRY, _SLOT = _struct_of(INDEX_HEADER), _struct_of(INDEX_ENTRY), struct.Struct(">i")
assert (_HEADER.size, _ENTRY.size, _SLOT.size) == (INDEX_HEADER.itemsize, INDEX_ENTRY.itemsize, INDEX_SLOT.itemsize)


def file_bytes(slots: int, entries: int) -> int:
    """Length of an index file, in bytes; `entries` counts the unused entry 0."""
    return INDEX_HEADER.itemsize + slots * INDEX_SLOT.itemsize + entries * INDEX_ENTRY.itemsize


class IndexFile:
    """One hash table. All reads and writes are `pread` and `pwrite`: the file is sparse (see `segments`)."""

    def __init__(self, path: Path, slots: int, entries: int, *, writable: bool) -> None:
        self.path = path
        self._slots = slots
        self._capacity = entries
        self._entries_at = file_bytes(slots, 0)
        size = file_bytes(slots, entries)
        if path.stat().st_size != size:
            raise ConfigError(
                f"{path}: {path.stat().st_size} bytes, but maxHashSlotNum={slots} and maxIndexNum={entries} make "
                f"{size}; set both as the broker that wrote it has them, or delete the index"
            )
        self._file = SegmentFile(path, size, writable=writable)

    def header(self) -> Header:
        """The header as it is now; `next_entry` is at least 1."""
        values = _HEADER.unpack(self._file.read(0, _HEADER.size))
        header = dict(zip(INDEX_HEADER.names or (), values, strict=True))
        header["next_entry"] = min(max(header["next_entry"], INDEX_NO_ENTRY + 1), self._capacity)
        return header

    def append(self, hashes: npt.NDArray[np.int32], physical_offsets: Ints, timestamps: Ints) -> int:
        """File as many keys as fit, in order; returns how many. Arguments of shape (m,); timestamps in ms."""
        header = self.header()
        count = min(len(hashes), self._capacity - header["next_entry"])
        if count > _FEW_KEYS:
            self._append_all(header, hashes[:count], physical_offsets[:count], timestamps[:count])
        else:
            rows = zip(hashes.tolist(), physical_offsets.tolist(), timestamps.tolist(), strict=True)
            for row in islice(rows, count):
                self._append_one(header, *row)
        return count

    def _append_one(self, header: Header, hashed: int, physical_offset: int, timestamp: int) -> None:
        """File one key and bring `header` up to date."""
        number, begin = header["next_entry"], header["begin_timestamp"]
        slot = file_bytes(hashed % self._slots, 0)
        newest: int = _SLOT.unpack(self._file.read(slot, _SLOT.size))[0]
        is_new = not INDEX_NO_ENTRY < newest < number
        seconds = min(max((timestamp - begin) // _MS, 0), _MAX_INT) if begin > 0 else 0
        entry = _ENTRY.pack(hashed, physical_offset, seconds, INDEX_NO_ENTRY if is_new else newest)
        self._file.write(self._entries_at + number * _ENTRY.size, memoryview(entry))
        _count(header, (physical_offset, timestamp), (physical_offset, timestamp), 1, int(is_new))
        self.write_header(header)
        self._file.write(slot, memoryview(_SLOT.pack(number)))

    def _append_all(
        self, header: Header, hashes: npt.NDArray[np.int32], physical_offsets: Ints, timestamps: Ints
    ) -> None:
        """File keys that fit: what `_append_one` does, for all at once."""
        first, count = header["next_entry"], len(hashes)
        entries = np.empty(count, INDEX_ENTRY)
        entries["key_hash"] = hashes
        entries["physical_offset"] = physical_offsets
        entries["seconds"] = _seconds(timestamps, header)

        slots = _slots_of(entries, self._slots)
        order = np.argsort(slots, kind="stable")
        numbers = first + order
        heads, starts = np.unique(slots[order], return_index=True)
        table = _Slots(self._file, self._slots, heads)
        newest = table.values
        newest[(newest < INDEX_NO_ENTRY) | (newest >= first)] = INDEX_NO_ENTRY
        previous = np.empty(count, np.int64)
        previous[1:] = numbers[:-1]
        previous[starts] = newest
        entries["previous"][order] = previous

        self._file.write(self._entries_at + first * INDEX_ENTRY.itemsize, memoryview(entries.tobytes()))
        begin, end = ((int(physical_offsets[row]), int(timestamps[row])) for row in (0, -1))
        _count(header, begin, end, count, int(np.count_nonzero(newest == INDEX_NO_ENTRY)))
        self.write_header(header)
        table.write(numbers[np.append(starts[1:], count) - 1])

    def candidates(self, wanted: int, begin: int, end: int) -> Iterator[int]:
        """Commit log offsets of entries with hash `wanted`, newest first, stored in [begin, end] (ms, rounded)."""
        header = self.header()
        number: int = _SLOT.unpack(self._file.read(file_bytes(wanted % self._slots, 0), _SLOT.size))[0]
        limit = header["next_entry"]
        while INDEX_NO_ENTRY < number < limit:
            position = self._entries_at + number * _ENTRY.size
            hashed, physical_offset, seconds, previous = _ENTRY.unpack(self._file.read(position, _ENTRY.size))
            if number == INDEX_NO_ENTRY + 1:
                seconds = 0  # its own count from the file before (see `_seconds`)
            stored = header["begin_timestamp"] + seconds * _MS
            if stored + _MS <= begin:
                return
            if hashed == wanted and stored <= end:
                yield physical_offset
            limit, number = number, previous  # chains go back only, so that none can be endless

    def truncate(self, end_offset: int) -> None:
        """Drop the entries of records at commit log offset `end_offset` and after, which are the last ones."""
        header = self.header()
        limit = header["next_entry"]
        keep = self._first_from(end_offset, limit)
        if keep == limit:
            return
        dropped = self.entries(keep, limit)
        heads, oldest = np.unique(_slots_of(dropped, self._slots), return_index=True)
        restored = dropped["previous"][oldest].astype(np.int64)
        _Slots(self._file, self._slots, heads).write(restored)
        header["slots_used"] = max(0, header["slots_used"] - int(np.count_nonzero(restored == INDEX_NO_ENTRY)))
        header["next_entry"] = keep
        last = self.entries(keep - 1, keep)[0]
        header["end_offset"] = int(last["physical_offset"])
        header["end_timestamp"] = header["begin_timestamp"] + (int(last["seconds"]) + 1) * _MS - 1
        self.write_header(header)

    def entries(self, start: int, end: int) -> Entries:
        """Entries number [start, end), copied."""
        position = self._entries_at + start * INDEX_ENTRY.itemsize
        return np.frombuffer(self._file.read(position, (end - start) * INDEX_ENTRY.itemsize), INDEX_ENTRY)

    def write_header(self, header: Header) -> None:
        self._file.write(0, memoryview(_HEADER.pack(*header.values())))

    def flush(self) -> None:
        self._file.flush()

    def _first_from(self, end_offset: int, limit: int) -> int:
        """Number of the first entry below `limit` whose record is not before `end_offset`: they ascend."""
        low, high = INDEX_NO_ENTRY + 1, limit
        while low < high:
            middle = (low + high) // 2
            if self.entries(middle, middle + 1)[0]["physical_offset"] < end_offset:
                low = middle + 1
            else:
                high = middle
        return low


class _Slots:
    """Some slots of a file, read and written in the 4 KiB blocks they stand in: one call for neighbouring blocks."""

    def __init__(self, file: SegmentFile, slots: int, numbers: Ints) -> None:
        """`numbers`: ascending, each once."""
        self._file = file
        self._slots = slots
        blocks = np.unique(numbers // _BLOCK_SLOTS)
        self._runs = np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1)
        self._places = np.searchsorted(blocks, numbers // _BLOCK_SLOTS) * _BLOCK_SLOTS + numbers % _BLOCK_SLOTS
        read = bytearray().join(file.read(*self._extent(run)) for run in self._runs)
        self._table = np.frombuffer(read, INDEX_SLOT)

    @property
    def values(self) -> Ints:
        """Their values, a copy."""
        values: Ints = self._table[self._places].astype(np.int64)
        return values

    def write(self, values: Ints) -> None:
        before = self._table.tobytes()
        self._table[self._places] = values
        data, done = memoryview(self._table.tobytes()), 0
        for run in self._runs:
            position, length = self._extent(run)
            if data[done : done + length] != before[done : done + length]:  # or else a hole may stay one
                self._file.write(position, data[done : done + length])
            done += length

    def _extent(self, run: Ints) -> tuple[int, int]:
        """Byte position and length of a run of blocks; the last block of the table may be short."""
        start = int(run[0]) * _BLOCK_SLOTS
        stop = min((int(run[-1]) + 1) * _BLOCK_SLOTS, self._slots)
        return file_bytes(start, 0), (stop - start) * INDEX_SLOT.itemsize


def _slots_of(entries: Entries, slots: int) -> Ints:
    return np.asarray(entries["key_hash"].astype(np.int64) % slots)


def _count(header: Header, first: tuple[int, int], last: tuple[int, int], entries: int, new_slots: int) -> None:
    """Bring a header up to date with entries just written; `first` and `last` are (physical offset, timestamp)."""
    if header["next_entry"] == INDEX_NO_ENTRY + 1:
        header["begin_offset"], header["begin_timestamp"] = first
    header["end_offset"], header["end_timestamp"] = last
    header["next_entry"] += entries
    header["slots_used"] += new_slots


def _seconds(timestamps: Ints, header: Header) -> Ints:
    """Seconds since the file's begin; RocketMQ measures a file's first key from what the header held before."""
    is_first = header["next_entry"] == INDEX_NO_ENTRY + 1
    begins = np.full(len(timestamps), timestamps[0] if is_first else header["begin_timestamp"])
    begins[0] = header["begin_timestamp"]
    return np.where(begins <= 0, 0, np.clip((timestamps - begins) // _MS, 0, _MAX_INT))


# --- all files ------------------------------------------------------------------------------------------


class Index:
    """The files of a store's `index` directory. One process at a time may write; the store lock sees to that."""

    def __init__(self, root: Path, slots: int, entries: int, *, writable: bool, is_enabled: bool = True) -> None:
        """slots, entries: `maxHashSlotNum` and `maxIndexNum`, as existing files have them. is_enabled: file keys."""
        self.is_enabled = is_enabled
        self.directory = root / INDEX_DIR
        self._temporary = root / PREALLOCATE_FILE
        self._shape = slots, entries
        self._writable = writable
        self._file = lru_cache(maxsize=_OPEN_FILES)(self._open)

    @staticmethod
    def of(root: Path, config: StoreConfig, *, writable: bool) -> Index:
        """The index of a store with these settings."""
        shape = config.maxHashSlotNum, config.maxIndexNum
        return Index(root, *shape, writable=writable, is_enabled=config.messageIndexEnable)

    def names(self) -> list[str]:
        """File names, oldest first; others than those of times are passed over, as RocketMQ does."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.isascii() and name.isdigit())

    def end_offset(self) -> int:
        """Commit log offset of the newest record with a key, -1 without one; keys of older records are filed."""
        headers = (self._file(name).header() for name in reversed(self.names()))
        return next((header["end_offset"] for header in headers if header["next_entry"] > INDEX_NO_ENTRY + 1), -1)

    def append(self, hashes: npt.NDArray[np.int32], physical_offsets: Ints, timestamps: Ints) -> None:
        """File keys (see `key_hashes`), in the order of the log; all of shape (m,), timestamps in ms.

        As in RocketMQ, records before `end_offset` are skipped. Raises `StoreFull`, `ReadOnlyStore`.
        """
        if not self._writable:
            raise ReadOnlyStore(f"{self.directory}: the store is open with read_only=True")
        if not len(hashes) or not self.is_enabled:
            return
        names = self.names() or [self._create("")]
        done = int(np.searchsorted(physical_offsets, self._file(names[-1]).header()["end_offset"]))
        while True:
            file = self._file(names[-1])
            done += file.append(hashes[done:], physical_offsets[done:], timestamps[done:])
            if done == len(hashes):
                return
            file.flush()
            names.append(self._create(names[-1]))

    def candidates(self, topic: str, key: str, begin: int = 0, end: int = END_OF_TIME) -> Iterator[int]:
        """Commit log offsets of records that may have `key`, newest first; store time in [begin, end] (ms), give or
        take a second. Compare topic, key and time with the record's, and pass over offsets that are not published.
        """
        wanted = key_hash(topic, key)
        for name in reversed(self.names()):
            try:
                file = self._file(name)
            except FileNotFoundError:  # retention was faster
                continue
            header = file.header()
            if header["begin_timestamp"] <= end and header["end_timestamp"] >= begin:
                yield from file.candidates(wanted, begin, end)
            if header["begin_timestamp"] < begin:
                return

    def truncate(self, end_offset: int) -> None:
        """Drop everything about records at commit log offset `end_offset` and after: an append that died."""
        for name in reversed(self.names()):
            header = self._file(name).header()
            if header["next_entry"] > INDEX_NO_ENTRY + 1 and header["begin_offset"] < end_offset:
                self._file(name).truncate(end_offset)
                return
            self._delete(name)

    def distrust(self, safe_timestamp: int | None = None) -> int:
        """After a machine crash: delete what may not have reached the device; returns the commit log offset from
        which on keys must be filed again, 0 when nothing is left.

        safe_timestamp: `indexMsgTimestamp` (ms) of a RocketMQ checkpoint: files that end later go. None: the last
        file goes, because this store starts a file only when the one before is on the device.
        """
        names = self.names()
        if safe_timestamp is None:
            doubtful = names[-1:]
        else:
            doubtful = [name for name in names if self._file(name).header()["end_timestamp"] > safe_timestamp]
        for name in doubtful:
            self._delete(name)
        return max(0, self.end_offset())

    def expire(self, min_physical_offset: int) -> list[tuple[str, int]]:
        """Delete files, never the last, of which no record is left in the log.

        Returns the path of each and the bytes it took.
        """
        names = self.names()[:-1]
        expired = [name for name in names if self._file(name).header()["end_offset"] < min_physical_offset]
        return [(str(self.directory / name), self._delete(name)) for name in expired]

    def flush(self) -> None:
        """Bring the newest file to the device; the others were flushed when they were full."""
        for name in self.names()[-1:]:
            self._file(name).flush()

    def _create(self, last_name: str) -> str:
        """A new last file. Until its first key it holds the end of the one before, as RocketMQ's does."""
        name = _name_after(last_name)
        last = self._file(last_name).header() if last_name else {"end_timestamp": 0, "end_offset": 0}
        header = {
            "begin_timestamp": last["end_timestamp"],
            "end_timestamp": last["end_timestamp"],
            "begin_offset": last["end_offset"],
            "end_offset": last["end_offset"],
            "slots_used": 0,
            "next_entry": INDEX_NO_ENTRY + 1,
        }
        self.directory.mkdir(exist_ok=True)
        try:
            with self._temporary.open("wb") as file:
                file.truncate(file_bytes(*self._shape))
            IndexFile(self._temporary, *self._shape, writable=True).write_header(header)
            self._temporary.rename(self.directory / name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"{self.directory / name}: no space left for a new index file") from error
            raise
        return name

    def _open(self, name: str) -> IndexFile:
        return IndexFile(self.directory / name, *self._shape, writable=self._writable)

    def _delete(self, name: str) -> int:
        """Unlink a file; returns the bytes it took on the device."""
        path = self.directory / name
        taken = path.stat().st_blocks * BLOCK_BYTES
        path.unlink()
        self._file.cache_clear()
        return taken


def _name_after(last: str) -> str:
    """The local time as yyyyMMddHHmmssSSS, or one more than `last` where the clock has not passed it."""
    now = time.time()
    name = f"{time.strftime('%Y%m%d%H%M%S', time.localtime(now))}{int(now * _MS) % _MS:03d}"
    return name if name > last else f"{int(last) + 1:0{INDEX_NAME_DIGITS}d}"
