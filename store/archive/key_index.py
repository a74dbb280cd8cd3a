"""The key index of an archive, in the format of RocketMQ's compacted index files.

A lookup returns candidates, because hashes of keys collide.

Objects are never overwritten. A small last segment is rewritten, with more items, under a new name; the old object is
deleted once the metadata name the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from store.archive.catalog import INDEX, INDEX_SLOTS, Catalog, Segment, Segments, index_path, segment_path
from store.archive.flat import FlatFile
from store.format.hashes import key_hashes
from store.format.layout import (
    ARCHIVE_INDEX_HEADER,
    ARCHIVE_INDEX_ITEM,
    ARCHIVE_INDEX_MAGIC,
    ARCHIVE_INDEX_SLOT,
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
)
from store.model.errors import CorruptSegment
from store.model.log_protocol import Int64s, Queue
from store.objects.any_objects import ByteReader
from store.read.scan import CheckedBlock

Items = npt.NDArray[Any]  # dtype ARCHIVE_INDEX_ITEM

_MOST_ITEMS = 1 << 21  # in one segment: 56 MiB
_SMALL = 1 << 19  # a smaller last segment is rewritten
_MS = 1000
_WRONG = "the object was changed or truncated: restore it from a copy, or scan the topic instead"


def segment_bytes(items: Items, begin: int, end: int, slots: int = INDEX_SLOTS) -> bytes:
    """Encode a segment.

    items: ordered by offset in each queue.
    begin: store time (ms) to which the `seconds` of the items are relative.
    end: the latest store time, ms.
    """
    items = items[::-1]
    slot = items["key_hash"].astype(np.int64) % slots
    order = np.lexsort((-items["seconds"].astype(np.int64), slot))
    lengths = np.bincount(slot, minlength=slots) * ARCHIVE_INDEX_ITEM.itemsize
    table = np.empty(slots, ARCHIVE_INDEX_SLOT)
    first = ARCHIVE_INDEX_HEADER.itemsize + table.nbytes
    table["position"], table["length"] = first + np.cumsum(lengths) - lengths, lengths
    header = np.array((ARCHIVE_INDEX_MAGIC, begin, end, np.count_nonzero(lengths), len(items)), ARCHIVE_INDEX_HEADER)
    return header.tobytes() + table.tobytes() + items[order].astype(ARCHIVE_INDEX_ITEM).tobytes()


class KeyIndexWriter:
    def __init__(self) -> None:
        self._items: list[Items] = []
        self._times: list[Int64s] = []

    def add(self, queue: Queue, topic_id: int, checked: CheckedBlock, at: int) -> None:
        """Add the keys of a block of records. at: offset of the first record in the queue's log."""
        block, sizes = checked.block, checked.entries.sizes
        hashes, rows = key_hashes(queue.topic, block.value(PROPERTY_UNIQ_KEY), block.value(PROPERTY_KEYS))
        if not len(hashes):
            return
        items = np.zeros(len(hashes), ARCHIVE_INDEX_ITEM)
        items["key_hash"], items["topic_id"], items["queue_id"] = hashes, topic_id, queue.queue_id
        items["physical_offset"], items["size"] = (at + np.cumsum(sizes) - sizes)[rows], sizes[rows]
        self._items.append(items)
        self._times.append(np.maximum(block.field("store_timestamp")[rows], 0))

    def take(self, other: KeyIndexWriter) -> None:
        self._items += other._items
        self._times += other._times

    def write(
        self, catalog: Catalog, existing: KeyIndex, write: Callable[[str, bytes], None], first: int = 0
    ) -> tuple[Segments, list[str]]:
        """Write the keys to new segments. Return all segments of the index, and the paths of objects that they replace.

        The caller deletes these objects after it saved the metadata.

        first: the lowest offset for a new segment. Raises as `write`, and `OffsetLost`, `CorruptSegment`,
        `ObjectsUnavailable`.
        """
        if not self._items:
            return catalog.index, []
        index, replaced = catalog.index, []
        base, begin, end = max(first, index[-1].stop if index else 0), None, 0
        if index and not index[-1].sealed and index[-1].size < _bytes_of(_SMALL):
            *kept, last = index
            index, begin, end = tuple(kept), last.begin, last.end
            replaced = [segment_path(index_path(catalog.broker), INDEX, last.base)]
            items = existing.all_items(last)[::-1]
            self._items.insert(0, items)
            self._times.insert(0, last.begin + items["seconds"].astype(np.int64) * _MS)
        items, times = np.concatenate(self._items), np.concatenate(self._times)
        self._items, self._times = [], []
        for row in range(0, len(items), _MOST_ITEMS):
            part, stored = items[row : row + _MOST_ITEMS], times[row : row + _MOST_ITEMS]
            if begin is None:
                before = index[-1].begin if index else 0
                begin = max(int(stored.min()), before + 1)  # unique, because RocketMQ identifies segments by it
            end = max(end, int(stored.max()))
            part["seconds"] = (stored - begin) // _MS
            data = segment_bytes(part, begin, end)
            write(segment_path(index_path(catalog.broker), INDEX, base), data)
            index = (*index, Segment(base, len(data), begin, end, len(part) >= _SMALL))
            base, begin = base + len(data), None
        return index, replaced


class KeyIndex:
    def __init__(self, objects: ByteReader, folder: str, path: str, segments: Segments) -> None:
        """folder: the cluster's folder. path: an `index_path`."""
        self._segments = [_Segment(FlatFile(objects, folder, path, INDEX, (each,)), each) for each in segments]
        self._at_once = 1 + objects.ahead

    def candidates(self, hashes: Sequence[int], begin: int = 0) -> list[tuple[Items, Int64s]]:
        """Return the items with these hashes and their store times (ms, rounded to seconds), the newest segment first.

        begin: skip segments in which all messages are older (ms). Raises `OffsetLost` if a segment was deleted,
        `CorruptSegment`, `ObjectsUnavailable`.
        """
        asked = [each for each in reversed(self._segments) if each.named.end >= begin]
        if self._at_once == 1 or len(asked) == 1:
            return [each.candidates(hashes) for each in asked]
        with ThreadPoolExecutor(self._at_once) as pool:
            return list(pool.map(lambda each: each.candidates(hashes), asked))

    def all_items(self, segment: Segment) -> Items:
        return next(each for each in self._segments if each.named == segment).all_items()


class _Segment:
    def __init__(self, file: FlatFile, named: Segment) -> None:
        self._file = file
        self.named = named
        self._slots = 0

    def candidates(self, hashes: Iterable[int]) -> tuple[Items, Int64s]:
        found = [items[items["key_hash"] == each] for each in hashes for items in self._of_slot(each)]
        items = np.concatenate([np.empty(0, ARCHIVE_INDEX_ITEM), *found])
        return items, self.named.begin + items["seconds"].astype(np.int64) * _MS

    def all_items(self) -> Items:
        begin = self._slot_at(self._slot_count())
        items = self._items(begin, self.named.size - begin)
        self._must_be(bool((np.diff(self._slots_of(items)) >= 0).all()))
        return items

    def _of_slot(self, hashed: int) -> Iterator[Items]:
        number = hashed % self._slot_count()
        at = self._slot_at(number)
        slot = np.frombuffer(self._read(at, ARCHIVE_INDEX_SLOT.itemsize), ARCHIVE_INDEX_SLOT)[0]
        self._must_be(int(slot["position"]) >= self._slot_at(self._slot_count()))
        if slot["length"]:
            items = self._items(int(slot["position"]), int(slot["length"]))
            self._must_be(bool((self._slots_of(items) == number).all()))
            yield items

    def _slot_at(self, number: int) -> int:
        return ARCHIVE_INDEX_HEADER.itemsize + number * ARCHIVE_INDEX_SLOT.itemsize

    def _slots_of(self, items: Items) -> Int64s:
        return items["key_hash"].astype(np.int64) % self._slot_count()

    def _must_be(self, is_sound: bool) -> None:
        """Raise `CorruptSegment` if a check failed. Without checks, a zeroed segment would seem to lack the key."""
        if not is_sound:
            raise CorruptSegment(f"{self._file.where}: some keys are in a wrong slot; {_WRONG}")

    def _items(self, at: int, length: int) -> Items:
        if length % ARCHIVE_INDEX_ITEM.itemsize:
            raise CorruptSegment(f"{self._file.where}: {length} bytes are no whole number of index items; {_WRONG}")
        return np.frombuffer(self._read(at, length), ARCHIVE_INDEX_ITEM) if length else np.empty(0, ARCHIVE_INDEX_ITEM)

    def _slot_count(self) -> int:
        """Return the number of slots. The first slot's position tells it, because its items follow the last slot."""
        if not self._slots:
            head = self._read(0, ARCHIVE_INDEX_HEADER.itemsize + ARCHIVE_INDEX_SLOT.itemsize)
            header = np.frombuffer(head, ARCHIVE_INDEX_HEADER, 1)[0]
            first = np.frombuffer(head, ARCHIVE_INDEX_SLOT, 1, ARCHIVE_INDEX_HEADER.itemsize)[0]
            count, left = divmod(int(first["position"]) - ARCHIVE_INDEX_HEADER.itemsize, ARCHIVE_INDEX_SLOT.itemsize)
            if header["magic"] != ARCHIVE_INDEX_MAGIC or left or count < 1:
                raise CorruptSegment(f"{self._file.where}: this is no index; {_WRONG}")
            self._slots = count
        return self._slots

    def _read(self, at: int, length: int) -> bytes:
        if not 0 <= at <= at + length <= self.named.size:
            raise CorruptSegment(f"{self._file.where}: bytes {at} to {at + length} are outside of the index; {_WRONG}")
        return self._file.read(self.named.base + at, self.named.base + at + length)


def _bytes_of(items: int) -> int:
    slots = INDEX_SLOTS * ARCHIVE_INDEX_SLOT.itemsize
    return ARCHIVE_INDEX_HEADER.itemsize + slots + items * ARCHIVE_INDEX_ITEM.itemsize
