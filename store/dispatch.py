"""From commit log records to ConsumeQueue entries: RocketMQ's reput, for catching up with a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from store.commit_log import CommitLog
from store.consume_queue import Entries
from store.filters import java_hash
from store.layout import (
    BLANK,
    CQ_ENTRY,
    MAGIC_BLANK,
    MIN_RECORD_BYTES,
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    SCHEDULE_DELAYS_MS,
    SCHEDULE_TOPIC,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from store.property_columns import PropertyColumns
from store.record_view import Ints, RecordView
from store.segments import Bytes

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Consecutive sound records of the log, as they were found by walking it.

    begin: log offset of the first. end: log offset after the last, or after the blank behind it.
    records: their view, shape (n,); offsets: their log offsets, int64, shape (n,).
    """

    begin: int
    end: int
    records: RecordView
    offsets: Ints


def walk(log: CommitLog, begin: int, *, check_crc: bool = True) -> Iterator[LogChunk]:
    """Walk the log from record boundary `begin` to the first thing that is no record, as RocketMQ's recovery does.

    Length, magic, physical offset, parts and (by `check_crc`) body CRC must hold. Chunks are non-empty or carry
    a blank.
    """
    at = begin
    while log.segments.exists(at):
        chunk = _chunk(log, at, check_crc=check_crc)
        if chunk.end == at:
            return
        yield chunk
        at = chunk.end


def _chunk(log: CommitLog, at: int, *, check_crc: bool) -> LogChunk:
    data = _read(log, at, _CHUNK_BYTES)
    positions, sizes, position = _hop(data)
    if not positions:
        wanted = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < wanted <= log.next_segment(at) - at:  # one record larger than a chunk
            data = _read(log, at, wanted)
            positions, sizes, position = _hop(data)
    starts = np.array(positions, np.int64)
    view = np.frombuffer(data, np.uint8)
    records = _measured(view, starts, np.array(sizes, np.int64))
    good = records.sound & (records.field("physical_offset") == starts + at) if len(starts) else records.sound
    records = _first(records, good)
    if check_crc and len(records):
        records = _first(records, records.crc_matches())
    end = int(at + records.positions[-1] + records.sizes[-1]) if len(records) else at
    if len(records) == len(starts) and _is_blank(
        data[position : position + BLANK.itemsize], log.next_segment(at) - at - position
    ):
        end = log.next_segment(at)
    return LogChunk(at, end, records, records.positions + at)


def _read(log: CommitLog, at: int, length: int) -> bytes:
    return log.segments.read(at, min(length, log.next_segment(at) - at))


def _hop(data: bytes) -> tuple[list[int], list[int], int]:
    """Positions and sizes of the records that lie wholly in `data`, by their lengths alone, and where it ends.

    The one loop over records here: each length is known only when the one before it is.
    """
    positions, sizes, position, length = [], [], 0, len(data)
    from_bytes = int.from_bytes
    while position + 8 <= length:
        size = from_bytes(data[position : position + 4], "big", signed=True)
        if size < MIN_RECORD_BYTES or position + size > length:
            break
        if from_bytes(data[position + 4 : position + 8], "big", signed=True) == MAGIC_BLANK:
            break
        positions.append(position)
        sizes.append(size)
        position += size
    return positions, sizes, position


def _is_blank(data: bytes, left: int) -> bool:
    if len(data) < BLANK.itemsize:
        return False
    blank = np.frombuffer(data, BLANK)[0]
    return int(blank["magic"]) == MAGIC_BLANK and int(blank["length"]) == left


def _first(records: RecordView, good: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> RecordView:
    """The records before the first that is not good."""
    if good.all():
        return records
    stop = int(np.argmin(good))
    return _measured(records.view, records.positions[:stop], records.sizes[:stop])


def _measured(view: Bytes, positions: Ints, sizes: Ints) -> RecordView:
    records = RecordView(view, positions, sizes)
    records.measure_topics()
    return records


def queue_entries(chunk: LogChunk) -> Iterator[tuple[str, int, Ints, Entries]]:
    """(topic, queue id, queue offsets int64 (k,), entries (k,)) of every queue in the chunk, in log order.

    Prepared and rolled-back records have no entry. In SCHEDULE_TOPIC_XXXX the tags code is the delivery time.
    """
    records = chunk.records
    if not len(records):
        return
    topics = records.slices(records.topic_starts, records.topic_lengths).cast(pa.string()).dictionary_encode()
    topic_ids = topics.indices.to_numpy().astype(np.int64)
    queue_ids = records.field("queue_id")
    entries = np.empty(len(records), CQ_ENTRY)
    entries["physical_offset"], entries["size"] = chunk.offsets, records.sizes
    entries["tags_code"] = _tags_codes(records, topics)
    transaction = records.field("sys_flag") & SYS_TRANSACTION_MASK
    rows = np.flatnonzero((transaction != SYS_TRANSACTION_PREPARED) & (transaction != SYS_TRANSACTION_ROLLBACK))
    queue_offsets = records.field("queue_offset")
    order = rows[np.lexsort((rows, queue_ids[rows], topic_ids[rows]))]
    cuts = np.flatnonzero(np.diff(topic_ids[order]) | np.diff(queue_ids[order])) + 1
    for part in np.split(order, cuts):
        if len(part):
            topic = topics.dictionary[int(topic_ids[part[0]])].as_py()
            yield topic, int(queue_ids[part[0]]), queue_offsets[part], entries[part]


def _tags_codes(records: RecordView, topics: pa.DictionaryArray) -> Ints:
    properties = PropertyColumns(records.properties)
    codes = java_hash(properties.value(PROPERTY_TAGS)).astype(np.int64)
    scheduled = [index for index, topic in enumerate(topics.dictionary.to_pylist()) if topic == SCHEDULE_TOPIC]
    if scheduled:
        rows = np.flatnonzero(topics.indices.to_numpy() == scheduled[0])
        levels = properties.value(PROPERTY_DELAY).to_pylist()
        times = records.field("store_timestamp")
        for row in rows:
            level = int(levels[row]) if levels[row] and levels[row].isdecimal() else 0
            if level > 0:
                codes[row] = times[row] + SCHEDULE_DELAYS_MS[min(level, len(SCHEDULE_DELAYS_MS)) - 1]
    return codes
