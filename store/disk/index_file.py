"""One file of the key index: a hash table over the commit log, as in RocketMQ's IndexFile.

The write order is entries, header, slots. A killed process leaves entries without a count in the header, or without a
slot; `IndexFile.truncate` removes both.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from store.disk.segment_file import SegmentFile
from store.format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_NO_ENTRY, INDEX_SLOT, struct_of
from store.model.errors import ConfigError, system_errors

Ints = npt.NDArray[np.int64]

_PAGE = mmap.PAGESIZE


KeyColumn = Sequence[int] | npt.NDArray[np.integer[Any]]
Entries = npt.NDArray[np.void]  # dtype INDEX_ENTRY
Header = dict[str, int]  # the fields of INDEX_HEADER

_FEW_KEYS = 8  # so few are faster without numpy
_ROW_BITS = 32
_MAX_INT = (1 << 31) - 1
_MS = 1000

_HEADER, _ENTRY, _SLOT = struct_of(INDEX_HEADER), struct_of(INDEX_ENTRY), struct.Struct(">i")
assert (_HEADER.size, _ENTRY.size, _SLOT.size) == (INDEX_HEADER.itemsize, INDEX_ENTRY.itemsize, INDEX_SLOT.itemsize)


def file_bytes(slots: int, entries: int) -> int:
    """Return the size of a file. entries: includes entry 0, which is never used."""
    return INDEX_HEADER.itemsize + slots * INDEX_SLOT.itemsize + entries * INDEX_ENTRY.itemsize


class IndexSlots:
    """The slots of a file as a mapped array.

    Touching a page in a hole allocates disk space, and on a full device kills the process. So `reserve` first rewrites
    every page unchanged with `pwrite`, which fails with an error instead.
    """

    def __init__(self, file: SegmentFile, slots: int) -> None:
        self._file = file
        with system_errors(file.path):
            fd = os.open(file.path, os.O_RDWR)
            try:
                mapped = mmap.mmap(fd, INDEX_HEADER.itemsize + slots * INDEX_SLOT.itemsize)
            finally:
                os.close(fd)
        self._values = np.frombuffer(mapped, INDEX_SLOT, slots, INDEX_HEADER.itemsize)
        self._reserved = np.zeros(len(mapped) // _PAGE + 1, np.bool_)

    def reserve(self, slots: Ints) -> None:
        """Allocate disk space for ascending `slots`. Call under the store lock.

        Raises `StoreFull`, and `CorruptSegment` if the file was truncated.
        """
        self._file.read(self._file.size - 1, 1)  # raises if the file was truncated: touching its end would kill us
        pages = (slots * INDEX_SLOT.itemsize + INDEX_HEADER.itemsize) // _PAGE
        new = pages[~self._reserved[pages]]
        new = new[np.diff(new, prepend=-1) > 0]
        for run in np.split(new, np.flatnonzero(np.diff(new) > 1) + 1) if len(new) else ():
            where, length = int(run[0]) * _PAGE, len(run) * _PAGE
            self._file.write(where, self._file.read(where, length))
        self._reserved[new] = True

    def get(self, slots: Ints) -> Ints:
        return self._values[slots].astype(np.int64)

    def set(self, slots: Ints, numbers: Ints) -> None:
        """Set slots. The newest entry is set last, so if it is set, all are."""
        last = int(numbers.argmax())
        for part in (slice(last), slice(last + 1, None), slice(last, last + 1)):
            self._values[slots[part]] = numbers[part]


class IndexTable:
    def __init__(self, path: Path, slots: int, entries: int, *, writable: bool) -> None:
        self.path = path
        self.slots = slots
        self.capacity = entries
        self.entries_at = file_bytes(slots, 0)
        size = file_bytes(slots, entries)
        with system_errors(path):
            length = path.stat().st_size
        if length != size:
            raise ConfigError(
                f"{path}: {length} bytes instead of {size}, the size by the settings maxHashSlotNum={slots} and "
                f"maxIndexNum={entries}. Set both as in the settings of the broker that wrote the file, or delete the "
                "folder of the index"
            )
        self.file = SegmentFile(path, size, writable=writable)

    @property
    def is_deleted(self) -> bool:
        return self.file.is_deleted

    def header(self) -> Header:
        """Return the header. `next_entry` is limited to [1, capacity], because a damaged one may be outside."""
        values = _HEADER.unpack(self.file.read(0, _HEADER.size))
        header = dict(zip(INDEX_HEADER.names or (), values, strict=True))
        header["next_entry"] = min(max(header["next_entry"], INDEX_NO_ENTRY + 1), self.capacity)
        return header

    def write_header(self, header: Header) -> None:
        self.file.write(0, _HEADER.pack(*header.values()))

    def entries(self, start: int, end: int) -> Entries:
        position = self.entries_at + start * INDEX_ENTRY.itemsize
        return np.frombuffer(self.file.read(position, (end - start) * INDEX_ENTRY.itemsize), INDEX_ENTRY)

    def first_from(self, end_offset: int, limit: int) -> int:
        """Return the first entry whose record is at or after `end_offset`, `limit` if there is none."""

        def physical_at(number: int) -> int:
            return int(self.entries(number, number + 1)[0]["physical_offset"])

        return bisect_left(range(limit), end_offset, INDEX_NO_ENTRY + 1, limit, key=physical_at)

    def previous(self, number: int) -> int:
        if not INDEX_NO_ENTRY < number < self.capacity:
            return INDEX_NO_ENTRY
        found = int(self.entries(number, number + 1)[0]["previous"])
        return found if INDEX_NO_ENTRY < found < number else INDEX_NO_ENTRY

    def slots_of(self, entries: Entries) -> Ints:
        return np.asarray(entries["key_hash"].astype(np.int64) % self.slots)

    def slot_values(self, start: int, end: int) -> Ints:
        length = (min(end, self.slots) - start) * INDEX_SLOT.itemsize
        values: Ints = np.frombuffer(self.file.read(file_bytes(start, 0), length), INDEX_SLOT).astype(np.int64)
        return values

    def newest_of(self, slot: int) -> int:
        number: int = _SLOT.unpack(self.file.read(file_bytes(slot, 0), _SLOT.size))[0]
        return number

    def restore_slot(self, slot: int, number: int) -> None:
        """Set a slot unless it has this value: the slot may be in a hole, and writing would allocate disk space."""
        position, value = file_bytes(slot, 0), _SLOT.pack(number)
        if self.file.read(position, _SLOT.size) != value:
            self.file.write(position, value)

    @cached_property
    def slot_table(self) -> IndexSlots:
        return IndexSlots(self.file, self.slots)

    def flush(self) -> None:
        self.file.flush()


class IndexFile(IndexTable):
    def is_consistent(self, end: int) -> bool:
        """Return whether header and slots fit the entries. Otherwise a lookup would miss keys. Call this without
        writers.

        The slot of the last entry before log offset `end` must refer to that or a later entry, because an append sets
        it last.
        """
        header = self.header()
        if header["next_entry"] == INDEX_NO_ENTRY + 1:
            return True
        ends = (self.entries(n, n + 1)[0]["physical_offset"] for n in (INDEX_NO_ENTRY + 1, header["next_entry"] - 1))
        if [header["begin_offset"], header["end_offset"]] != list(map(int, ends)):
            return False
        last = self.first_from(end, header["next_entry"]) - 1
        slot = int(self.slots_of(self.entries(last, last + 1))[0])
        return last == INDEX_NO_ENTRY or int(self.slot_values(slot, slot + 1)[0]) >= last

    def has(self, physical_offset: int) -> bool:
        limit = self.header()["next_entry"]
        number = self.first_from(physical_offset, limit)
        return number < limit and self.entries(number, number + 1)[0]["physical_offset"] == physical_offset

    def last_before(self, end_offset: int) -> int | None:
        """Return the log offset of the last indexed record before `end_offset`."""
        number = self.first_from(end_offset, self.header()["next_entry"]) - 1
        return int(self.entries(number, number + 1)[0]["physical_offset"]) if number > INDEX_NO_ENTRY else None

    def append(self, hashes: KeyColumn, physical_offsets: KeyColumn, timestamps: KeyColumn) -> int:
        """Add keys in order, as many as fit, and return their number. timestamps: ms.

        As in RocketMQ, records before the file's newest record are skipped, and counted as added.
        """
        header = self.header()
        is_first = physical_offsets[0] >= header["end_offset"]  # usually
        first = 0 if is_first else int(np.searchsorted(physical_offsets, header["end_offset"]))
        end = min(len(hashes), first + self.capacity - header["next_entry"])
        columns = hashes[first:end], physical_offsets[first:end], timestamps[first:end]
        if end - first > _FEW_KEYS:
            self._append_all(header, *map(np.asarray, columns))
        else:
            for row in zip(*[map(int, column) for column in columns], strict=True):
                self._append_one(header, *row)
        return end

    def _append_one(self, header: Header, hashed: int, physical_offset: int, timestamp: int) -> None:
        number, begin = header["next_entry"], header["begin_timestamp"]
        slot = file_bytes(hashed % self.slots, 0)
        newest: int = _SLOT.unpack(self.file.read(slot, _SLOT.size))[0]
        is_new = not INDEX_NO_ENTRY < newest < number
        seconds = min(max((timestamp - begin) // _MS, 0), _MAX_INT) if begin > 0 else 0
        entry = _ENTRY.pack(hashed, physical_offset, seconds, INDEX_NO_ENTRY if is_new else newest)
        self.file.write(self.entries_at + number * _ENTRY.size, entry)
        _count(header, (physical_offset, timestamp), (physical_offset, timestamp), 1, int(is_new))
        self.write_header(header)
        self.file.write(slot, _SLOT.pack(number))

    def _append_all(
        self, header: Header, hashes: npt.NDArray[np.int32], physical_offsets: Ints, timestamps: Ints
    ) -> None:
        first, count = header["next_entry"], len(hashes)
        slots = hashes.astype(np.int64) % self.slots
        order = _stable_order(slots)
        slots, numbers = slots[order], first + order
        starts = np.flatnonzero(np.diff(slots, prepend=-1))  # of each slot
        heads = slots[starts]
        table = self.slot_table
        table.reserve(heads)
        newest = table.get(heads)
        newest[(newest < INDEX_NO_ENTRY) | (newest >= first)] = INDEX_NO_ENTRY
        previous = np.empty(count, np.int64)
        previous[1:] = numbers[:-1]
        previous[starts] = newest

        entries = np.empty(count, INDEX_ENTRY)
        entries["key_hash"] = hashes
        entries["physical_offset"] = physical_offsets
        entries["seconds"] = _seconds(timestamps, header)
        entries["previous"][order] = previous
        self.file.write(self.entries_at + first * INDEX_ENTRY.itemsize, entries.tobytes())
        begin, end = ((int(physical_offsets[row]), int(timestamps[row])) for row in (0, -1))
        _count(header, begin, end, count, int(np.count_nonzero(newest == INDEX_NO_ENTRY)))
        self.write_header(header)
        table.set(heads, numbers[np.append(starts[1:], count) - 1])

    def candidates(self, wanted: int, begin: float, end: float) -> Iterator[int]:
        """Yield the log offsets of entries with this hash and a time in [begin, end] (ms, rounded), newest first.

        Includes entries after `next_entry`: a broker sets the slot before the header.
        """
        header, slot = self.header(), wanted % self.slots
        number = first = self.newest_of(slot)
        limit = self.capacity
        while INDEX_NO_ENTRY < number < limit:
            position = self.entries_at + number * _ENTRY.size
            hashed, physical_offset, seconds, previous = _ENTRY.unpack(self.file.read(position, _ENTRY.size))
            if hashed % self.slots != slot and (newest := self.newest_of(slot)) != first:
                # Its append was undone, and another slot's entry replaced it.
                number, first, limit = newest, newest, self.capacity
                continue
            if number == INDEX_NO_ENTRY + 1:
                seconds = 0  # the first entry counts from the file before (see `_seconds`)
            stored = header["begin_timestamp"] + seconds * _MS
            if stored + _MS <= begin:
                return
            if hashed == wanted and stored <= end:
                yield physical_offset
            limit, number = number, previous  # the numbers descend, which ends a damaged chain

    def truncate(self, end_offset: int) -> None:
        header = self.header()
        limit = header["next_entry"]
        keep = self.first_from(end_offset, limit)
        if keep == limit:
            return
        dropped = self.entries(keep, limit)
        heads, oldest = np.unique(self.slots_of(dropped), return_index=True)
        restored = dropped["previous"][oldest].astype(np.int64)
        for slot, number in zip(heads.tolist(), restored.tolist(), strict=True):
            self.restore_slot(slot, number)
        slots_used = max(0, header["slots_used"] - int(np.count_nonzero(restored == INDEX_NO_ENTRY)))
        header["slots_used"] = min(slots_used, keep - INDEX_NO_ENTRY - 1)  # RocketMQ 4.3 counts one slot for each entry
        header["next_entry"] = keep
        last = self.entries(keep - 1, keep)[0]
        header["end_offset"] = int(last["physical_offset"])
        seconds = int(last["seconds"]) if keep - 1 > INDEX_NO_ENTRY + 1 else 0  # as in `candidates`
        header["end_timestamp"] = header["begin_timestamp"] + (seconds + 1) * _MS - 1
        self.write_header(header)


def _stable_order(values: Ints) -> Ints:
    """Argsort numbers from 0 to 2^31 - 1. It sorts pairs, because numpy sorts values faster than indices."""
    pairs = (values << _ROW_BITS) | np.arange(len(values))
    pairs.sort()
    return pairs & ((1 << _ROW_BITS) - 1)


def _count(header: Header, first: tuple[int, int], last: tuple[int, int], entries: int, new_slots: int) -> None:
    """Update a header. first, last: physical offset and store time of a record."""
    if header["next_entry"] == INDEX_NO_ENTRY + 1:
        header["begin_offset"], header["begin_timestamp"] = first
    header["end_offset"], header["end_timestamp"] = last
    header["next_entry"] += entries
    header["slots_used"] += new_slots


def _seconds(timestamps: Ints, header: Header) -> Ints:
    """Return the times of entries in seconds after the header's begin.

    As in RocketMQ, the first entry of a file counts from the begin time that the header had before the entry.
    """
    is_first = header["next_entry"] == INDEX_NO_ENTRY + 1
    seconds = seconds_since(int(timestamps[0]) if is_first else header["begin_timestamp"], timestamps)
    seconds[:1] = seconds_since(header["begin_timestamp"], timestamps[:1])
    return seconds


def seconds_since(begin: int, timestamps: Ints) -> Ints:
    """begin, timestamps: ms."""
    if begin <= 0:
        return np.zeros(len(timestamps), np.int64)
    return np.clip((timestamps - begin) // _MS, 0, _MAX_INT)
