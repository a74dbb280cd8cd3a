"""Walk the commit log, and build ConsumeQueue and index entries from its records: RocketMQ's reput."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from store.disk.commit_log import CommitLog
from store.disk.queue_files import Entries
from store.format.arrays import Bytes, arrow, numbers
from store.format.columns import LAST_MS
from store.format.entering import delivery_times, in_index, in_own_queue, light_places, tags_codes
from store.format.hashes import KeyHashes, key_hashes
from store.format.layout import (
    BLANK,
    CQ_ENTRY,
    MAGIC_BLANK,
    MAX_RETRY_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_HEADER,
    SCHEDULE_TOPIC,
    SECTOR_BYTES,
)
from store.format.properties import PropertyColumns
from store.format.record_view import Ints, Mask, RecordView, crc_matches
from store.format.topic_names import is_folder_name
from store.model.errors import OffsetLost

# A walk behind a growing log finds only a few new records.
_FIRST_CHUNK_BYTES = 64 << 10
_CHUNK_BYTES = 8 << 20
_NO_END = 1 << 63
_BEGIN = struct.Struct(">ii").unpack_from  # total_size and magic of a record, or length and magic of a blank
SIZE_BYTES = RECORD_HEADER["total_size"].itemsize


@dataclass(frozen=True)
class LogChunk:
    """Consecutive valid records of the log.

    begin, end: log offsets, including a blank after the last record.
    records, offsets (in the log), topics: n of each.
    """

    begin: int
    end: int
    records: RecordView
    offsets: Ints
    topics: pa.DictionaryArray

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.records.properties)

    @cached_property
    def topic_names(self) -> list[str]:
        return [name.decode("utf-8", "replace") for name in self.topics.dictionary.to_pylist()]

    @cached_property
    def topic_ids(self) -> Ints:
        """Indices into `topic_names`, shape (n,)."""
        return numbers(self.topics.indices).astype(np.int64)

    @cached_property
    def entries(self) -> Entries:
        """Queue entries, shape (n,)."""
        made = np.empty(len(self.records), CQ_ENTRY)
        made["physical_offset"], made["size"] = self.offsets, self.records.sizes
        made["tags_code"] = _tags_codes(self)
        return made


def walk(
    log: CommitLog, begin: int, *, until: int | None = None, check_crc: bool = True, torn_from: int | None = None
) -> Iterator[LogChunk]:
    """Yield the log's records in chunks, from record boundary `begin` to the first invalid record, as RocketMQ
    recovers.

    A chunk has records, a blank, or both. until: record boundary at which to stop.

    torn_from: log offset after which a machine crash may have lost sectors. After it, a record with a sector of zeros
    in its properties is invalid, unless a checksum covers the properties.
    """
    at, chunk_bytes = begin, _FIRST_CHUNK_BYTES
    stop, torn = (_NO_END if offset is None else offset for offset in (until, torn_from))
    while at < stop and log.segments.exists(at):
        try:
            length = int.from_bytes(_read(log, at, SIZE_BYTES), "big", signed=True)
            wanted = min(max(length if log.can_be_record(at, length) else 0, chunk_bytes), stop - at)
            # 0 at the end of an idle log
            chunk = _chunk(log, at, wanted, check_crc=check_crc, torn_from=torn) if length > 0 else None
        except OffsetLost:  # deleted by retention
            return
        if chunk is None or chunk.end == at:
            log.forget_if_empty(at)
            return
        yield chunk
        at, chunk_bytes = chunk.end, min(2 * chunk_bytes, _CHUNK_BYTES)


def _chunk(log: CommitLog, at: int, length: int, *, check_crc: bool, torn_from: int) -> LogChunk:
    data = _read(log, at, length)
    positions, sizes, position = split_records(data)
    starts = np.array(positions, np.int64)
    records = _measured(np.frombuffer(data, np.uint8), starts, np.array(sizes, np.int64))
    records = _first(records, records.sound & (records.field("physical_offset") == starts + at))
    topics = records.slices(records.topic_starts, records.topic_lengths).dictionary_encode()
    records = _first(records, _are_names(topics))
    if check_crc:
        records = _first(records, crc_matches(records))
    if len(records) and at + records.positions[-1] >= torn_from:
        whole = _have_no_lost_sector(records, at % log.segments.size) | (records.positions + at < torn_from)
        records = _first(records, whole | (records.have_property_crc & check_crc))
    end = int(at + records.positions[-1] + records.sizes[-1]) if len(records) else at
    blank = data[position : position + BLANK.itemsize]
    if len(records) == len(starts) and _is_blank(blank, log.next_segment(at) - at - position):
        end = log.next_segment(at)
    return LogChunk(at, end, records, records.positions + at, topics[: len(records)])


def _have_no_lost_sector(records: RecordView, at: int) -> Mask:
    """Return a mask of the records whose properties, which no body CRC covers, have no sector of zeros.

    at: position of the records' view in its segment.
    """
    whole = np.ones(len(records), np.bool_)
    begins, ends = records.properties_starts, records.properties_starts + records.properties_lengths
    sectors = -(-(begins + at) // SECTOR_BYTES) * SECTOR_BYTES - at
    while len(rows := np.flatnonzero(sectors < ends)):
        for row in rows[records.view[sectors[rows]] == 0].tolist():
            begin = int(sectors[row])
            whole[row] &= records.view[begin : min(begin + SECTOR_BYTES, int(ends[row]))].any()
        sectors += SECTOR_BYTES
    return whole


def _read(log: CommitLog, at: int, length: int) -> bytes:
    return log.segments.read(at, min(length, log.next_segment(at) - at))


def split_records(data: bytes) -> tuple[list[int], list[int], int]:
    """Return positions and sizes of the complete records, and the position after the last."""
    positions, sizes, position, last = [], [], 0, len(data) - MIN_RECORD_BYTES
    while position <= last:
        size, magic = _BEGIN(data, position)
        if size < MIN_RECORD_BYTES or position + size > len(data) or magic == MAGIC_BLANK:
            break
        positions.append(position)
        sizes.append(size)
        position += size
    return positions, sizes, position


def _are_names(topics: pa.DictionaryArray) -> Mask:
    good = [_is_text(name) and is_folder_name(name.decode()) for name in topics.dictionary.to_pylist()]
    mask: Mask = np.array(good, np.bool_)[numbers(topics.indices)]
    return mask


def _is_text(name: bytes) -> bool:
    try:
        return len(name) <= MAX_RETRY_TOPIC_BYTES and bool(name.decode())
    except UnicodeDecodeError:
        return False


def _is_blank(data: bytes, left: int) -> bool:
    if len(data) < BLANK.itemsize:
        return False
    blank = np.frombuffer(data, BLANK)[0]
    return int(blank["magic"]) == MAGIC_BLANK and int(blank["length"]) == left


def _first(records: RecordView, good: Mask) -> RecordView:
    if good.all():
        return records
    stop = int(np.argmin(good))
    return _measured(records.view, records.positions[:stop], records.sizes[:stop])


def _measured(view: Bytes, positions: Ints, sizes: Ints) -> RecordView:
    records = RecordView(view, positions, sizes)
    records.measure_topics()
    return records


def queue_entries(chunk: LogChunk) -> Iterator[tuple[str, int, Ints, Entries]]:
    """Yield topic, queue id, consecutive queue offsets and entries (shape (k,) each), each queue's in log order.

    Leaves out light queues.
    """
    records = chunk.records
    if not len(records):
        return
    topics, topic_ids, entries = chunk.topic_names, chunk.topic_ids, chunk.entries
    queue_ids, queue_offsets = records.field("queue_id"), records.field("queue_offset")
    rows = np.flatnonzero(in_own_queue(records.field("sys_flag")))
    order = rows[np.lexsort((rows, queue_ids[rows], topic_ids[rows]))]
    same_queue = (np.diff(topic_ids[order]) == 0) & (np.diff(queue_ids[order]) == 0)
    cuts = np.flatnonzero(~same_queue | (np.diff(queue_offsets[order]) != 1)) + 1
    for part in np.split(order, cuts):
        if len(part):
            yield topics[topic_ids[part[0]]], int(queue_ids[part[0]]), queue_offsets[part], entries[part]


def light_entries(chunk: LogChunk) -> Iterator[tuple[str, int, Ints, Entries]]:
    """Yield light queues' entries as `queue_entries`, one at a time. A client may have forged them."""
    if len(chunk.records):
        queued = in_own_queue(chunk.records.field("sys_flag"))
        for row, (topic, queue_id, offset) in light_places(chunk.properties, chunk.topic_names, chunk.topic_ids):
            if queued[row]:
                yield topic, queue_id, np.array([offset]), chunk.entries[row : row + 1]


def all_entries(chunk: LogChunk, deleted: Mapping[str, int]) -> Iterator[tuple[str, int, Ints, Entries, bool]]:
    """Yield `queue_entries` (certain: True) and `light_entries` (certain: False), each queue's in log order.

    deleted: see `Topics.deletions`.
    """
    certain, light = ((*piece, True) for piece in queue_entries(chunk)), [*light_entries(chunk)]
    pieces: Iterable[tuple[str, int, Ints, Entries, bool]] = certain
    if light:
        both = [*certain, *((*piece, False) for piece in light)]
        pieces = sorted(both, key=lambda piece: int(piece[3]["physical_offset"][0]))
    for topic, queue_id, offsets, entries, is_certain in pieces:
        first = int(np.searchsorted(entries["physical_offset"].astype(np.int64), deleted.get(topic, 0)))
        if first < len(entries):
            yield topic, queue_id, offsets[first:], entries[first:], is_certain


def with_delivery_times(chunk: LogChunk, topic: str, entries: Entries, found: Entries) -> Entries:
    """Give rebuilt entries of delayed messages the delivery times of the queue's own entries `found`, shape (k,) each.

    The broker's `messageDelayLevel` is unknown, so every time that is not before the store time is accepted.
    """
    if topic != SCHEDULE_TOPIC:
        return entries
    rows = np.searchsorted(chunk.offsets, entries["physical_offset"].astype(np.int64))
    stored, times = chunk.records.field("store_timestamp")[rows], found["tags_code"]
    same = (found["physical_offset"] == entries["physical_offset"]) & (found["size"] == entries["size"])
    same &= (entries["tags_code"] >= stored) & (times >= stored) & (times <= LAST_MS)
    kept = entries.copy()
    kept["tags_code"][same] = times[same]
    return kept


def index_keys(chunk: LogChunk, *, tags: bool) -> tuple[KeyHashes, Ints, Ints]:
    """Return hashes, log offsets and store times (ms) of all keys. tags: include tags."""
    topics = chunk.topics.cast(pa.binary()).cast(pa.string())
    unique_keys, keys = map(chunk.properties.value, (PROPERTY_UNIQ_KEY, PROPERTY_KEYS))
    hashes, rows = key_hashes(topics, unique_keys, keys, chunk.properties.value(PROPERTY_TAGS) if tags else None)
    filed = in_index(chunk.records.field("sys_flag"))[rows]
    hashes, rows = hashes[filed], rows[filed]
    return hashes, chunk.offsets[rows], chunk.records.field("store_timestamp")[rows]


def _tags_codes(chunk: LogChunk) -> Ints:
    codes = tags_codes(chunk.properties.value(PROPERTY_TAGS))
    if SCHEDULE_TOPIC in chunk.topic_names:
        rows = np.flatnonzero(chunk.topic_ids == chunk.topic_names.index(SCHEDULE_TOPIC))
        levels = chunk.properties.value(PROPERTY_DELAY).take(arrow(rows))
        times = delivery_times(levels, chunk.records.field("store_timestamp")[rows])
        codes[rows] = np.where(times, times, codes[rows])
    return codes
