"""`IndexCheck`: checks that each index file is a valid hash table, and that its entries match the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from store.disk.commit_log import CommitLog
from store.disk.index import Index
from store.disk.index_file import Entries, Header, IndexFile, seconds_since
from store.format.hashes import KeyHashes
from store.format.layout import INDEX_DIR, INDEX_NO_ENTRY
from store.model.errors import ConfigError

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Keys = tuple[KeyHashes, Ints, Ints]

_ENTRIES_AT_ONCE = 1 << 18
_SLOTS_AT_ONCE = 1 << 18
_MS = 1000
_FIRST = INDEX_NO_ENTRY + 1

_NOT_FILED = "{count} keys are not in the index; the first is one of the record at log offset {first}"
_NO_KEY = "{count} entries belong to no key in the log; the first is entry {first}"
_ORDER = "{count} entries are not in the order of the log; the first is entry {first}"
_SECONDS = "{count} entries have another time than their records; the first is entry {first}"
_CHAIN = "{count} entries name a wrong previous one; the first is entry {first}"
_SLOT = "{count} slots do not name their newest entry; the first is slot {first}"
_BEHIND = "{count} entries name records behind the end of the log; the first is entry {first}"
_SLOT_BEHIND = "{count} slots name an entry that does not exist; the first is slot {first}"
_WHEN_AT_REST = (_BEHIND, _SLOT_BEHIND)


class _Entries(NamedTuple):
    file: str
    header: Header
    numbers: Ints
    entries: Entries

    def rows(self, start: int, end: int) -> _Entries:
        return self._replace(numbers=self.numbers[start:end], entries=self.entries[start:end])


class IndexCheck:
    """Compares index and log. Call `compare` for each range of the log in order, then `finish`, then `findings`."""

    def __init__(self, index: Index, log: CommitLog, end: int, *, is_complete: bool) -> None:
        """Check records up to log offset `end`.

        is_complete: every key must be in the index; a broker's index may have gaps between files.
        """
        self._index = index
        self._log = log
        self._end = end
        self._is_complete = is_complete
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}  # (file, problem) to (count, first)
        self._other: list[tuple[str, str]] = []
        self._spans: list[tuple[int, int]] = []  # log offsets of first and last record of each file
        self._pieces = self._read_files()
        self._piece = next(self._pieces, None)

    def compare(self, keys: Keys, with_tags: Keys, begin: int, end: int) -> None:
        """Compare the records in log bytes [begin, end) with the index.

        keys: must be in the index, see `dispatch.index_keys`. with_tags: may be in it. A gap before `begin` is a
        damaged part of the log; its index entries are skipped.
        """
        for _ in self._until(begin):
            pass
        records, first = np.unique(with_tags[1], return_index=True)
        timestamps, known = with_tags[2], _pairs(records, with_tags[1], with_tags[0])
        published = keys[1] < self._end
        offsets = keys[1][published]
        wanted = _pairs(records, offsets, keys[0][published])
        found = [np.empty(0, np.int64)]
        for piece in self._until(end):
            filed = piece.entries["physical_offset"].astype(np.int64)
            pairs = _pairs(records, filed, piece.entries["key_hash"])
            right = np.isin(filed, records) & _isin(pairs, known)
            self._add(piece.file, _NO_KEY, piece.numbers[~right])
            pairs, piece = pairs[right], piece._replace(numbers=piece.numbers[right], entries=piece.entries[right])
            self._check_times(piece, timestamps[first[pairs >> 32]])
            found.append(pairs)
        missing = offsets[~_isin(wanted, np.concatenate(found))]
        self._add(INDEX_DIR, _NOT_FILED, missing[self._must_be_indexed(missing)])

    def finish(self) -> None:
        for _ in self._until(self._end):
            pass

    def findings(self, *, is_at_rest: bool) -> Iterator[tuple[str, str]]:
        """Yield (place, problem). is_at_rest: no append is running, so entries after the end are errors."""
        yield from self._other
        for (where, what), (count, first) in self._counts.items():
            if is_at_rest or what not in _WHEN_AT_REST:
                yield where, what.format(count=f"{count:,}", first=first)

    def _check_times(self, piece: _Entries, timestamps: Ints) -> None:
        """Compare the store times of entries with the log.

        The first entry has no time, so the file's header is compared instead.
        """
        begin, numbers = piece.header["begin_timestamp"], piece.numbers
        expected = seconds_since(begin, timestamps)
        wrong = np.where(numbers == _FIRST, timestamps != begin, piece.entries["seconds"] != expected)
        end, last = piece.header["end_timestamp"], timestamps[numbers == piece.header["next_entry"] - 1]
        # After a killed append the header's end time is rounded, and at least the begin time if the clock went back.
        wrong[len(wrong) - len(last) :] |= ((end - last) // _MS != 0) & ((end - np.maximum(last, begin)) // _MS != 0)
        self._add(piece.file, _SECONDS, numbers[wrong])

    def _must_be_indexed(self, offsets: Ints) -> Mask:
        there = offsets >= self._log.min_offset()
        if self._is_complete or not there.any():
            return there & self._index.is_enabled
        inside = np.zeros(len(offsets), np.bool_)
        for begin, end in self._spans:
            inside |= (begin <= offsets) & (offsets < end)
        return there & inside

    def _until(self, end: int) -> Iterator[_Entries]:
        while self._piece is not None:
            piece = self._piece
            stop = int(np.searchsorted(piece.entries["physical_offset"].astype(np.int64), end))
            if stop:
                yield piece.rows(0, stop)
            if stop < len(piece.numbers):
                self._piece = piece.rows(stop, len(piece.numbers))
                return
            self._piece = next(self._pieces, None)

    def _read_files(self) -> Iterator[_Entries]:
        reached = -1
        for name in self._index.names():
            where = f"{INDEX_DIR}/{name}"
            try:
                file = self._index.file(name)
            except FileNotFoundError:  # by retention
                continue
            except ConfigError as error:
                self._other.append((where, str(error)))
                continue
            for piece in self._read(where, file):
                offsets = piece.entries["physical_offset"].astype(np.int64)
                offsets[offsets >= self._end] = -2
                highest = np.maximum.accumulate(np.append(reached, offsets))
                reached, in_order = int(highest[-1]), offsets >= highest[:-1]
                self._add(where, _ORDER, piece.numbers[~in_order])
                yield piece._replace(numbers=piece.numbers[in_order], entries=piece.entries[in_order])

    def _read(self, where: str, file: IndexFile) -> Iterator[_Entries]:
        header = _steady_header(file)
        limit = last = header["next_entry"]
        if header["end_offset"] >= self._end:
            limit = file.first_from(self._end, last)
        self._add(where, _BEHIND, np.arange(limit, last))
        if limit > _FIRST:
            self._spans.append((header["begin_offset"], header["end_offset"]))
        newest = np.zeros(file.slots, np.int32)
        used = 0
        for start in range(_FIRST, limit, _ENTRIES_AT_ONCE):
            entries = file.entries(start, min(start + _ENTRIES_AT_ONCE, limit))
            numbers = np.arange(start, start + len(entries))
            previous = _chain(newest, file.slots_of(entries), numbers)
            used += int(np.count_nonzero(previous == INDEX_NO_ENTRY))
            self._add(where, _CHAIN, numbers[entries["previous"] != previous])
            yield _Entries(where, header, numbers, entries)
        if _FIRST < limit == last:
            self._check_header(where, file, header, used)
        self._check_slots(where, file, newest, limit)

    def _check_header(self, where: str, file: IndexFile, header: Header, used: int) -> None:
        last = header["next_entry"] - 1
        begin_offset, end_offset = (int(file.entries(n, n + 1)[0]["physical_offset"]) for n in (_FIRST, last))
        # RocketMQ before 4.7 counted a slot once for each entry, and another writer may have continued the file.
        slots_used = min(max(header["slots_used"], used), last)
        expected = {"begin_offset": begin_offset, "end_offset": end_offset, "slots_used": slots_used}
        wrong = [
            f"{name} {header[name]}, expected {value}" for name, value in expected.items() if header[name] != value
        ]
        if wrong:
            self._other.append((where, f"its header is wrong: {'; '.join(wrong)}"))

    def _check_slots(self, where: str, file: IndexFile, newest: npt.NDArray[np.int32], limit: int) -> None:
        for start in range(0, file.slots, _SLOTS_AT_ONCE):
            expected = newest[start : start + _SLOTS_AT_ONCE]
            values = file.slot_values(start, start + _SLOTS_AT_ONCE)
            wrong = _before(file, values, limit) != expected
            if wrong.any():  # read again: a write may have been in progress
                wrong &= _before(file, file.slot_values(start, start + _SLOTS_AT_ONCE), limit) != expected
            self._add(where, _SLOT, start + np.flatnonzero(wrong))
            self._add(where, _SLOT_BEHIND, start + np.flatnonzero(values >= limit))

    def _add(self, where: str, what: str, these: Ints) -> None:
        if len(these):
            count, first = self._counts.get((where, what), (0, int(these[0])))
            self._counts[where, what] = count + len(these), first


def _pairs(records: Ints, offsets: Ints, hashes: npt.NDArray[np.generic]) -> Ints:
    return np.searchsorted(records, offsets) << 32 | hashes.astype(np.int64)


def _isin(these: Ints, those: Ints) -> Mask:
    return np.ones(len(these), np.bool_) if np.array_equal(these, those) else np.isin(these, those)


def _chain(newest: npt.NDArray[np.int32], slots: Ints, numbers: Ints) -> Ints:
    """Return the previous entry of each entry in its slot's chain.

    newest: the newest entry of each slot; it is updated.
    """
    order = np.argsort(slots, kind="stable")
    heads, starts = np.unique(slots[order], return_index=True)
    previous = np.empty(len(numbers), np.int64)
    ordered = np.empty(len(numbers), np.int64)
    ordered[1:] = numbers[order][:-1]
    ordered[starts] = newest[heads]
    previous[order] = ordered
    newest[heads] = numbers[order][np.append(starts[1:], len(numbers)) - 1]
    return previous


def _before(file: IndexFile, slots: Ints, limit: int) -> Ints:
    """Return the values that the slots had before the entries from `limit` on were added."""
    values = slots.copy()
    late = np.flatnonzero(values >= limit)
    while len(late):
        values[late] = [file.previous(number) for number in values[late].tolist()]
        late = late[values[late] >= limit]
    return values


def _steady_header(file: IndexFile) -> Header:
    """Read the header until two reads agree, because a write may be in progress."""
    header = file.header()
    while (again := file.header()) != header:
        header = again
    return header
