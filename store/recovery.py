"""What is true of a directory when no watermark of this boot says so: a decision table, and its execution.

A recovery walks the log, checks every record as RocketMQ's does, and writes the queue entries that follow from it.
The first bad record ends the log, unless everything up to some later point is known to be on the device: then it
is damage, and an error, for what lies behind it must not be thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from enum import Enum, auto
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from store.checkpoint import read_checkpoint, read_index_checkpoint
from store.columns import LAST_MS
from store.commit_log import CommitLog
from store.consume_queue import OPEN_QUEUE_FILES, ConsumeQueue
from store.dispatch import index_keys, queue_entries, walk
from store.errors import CorruptRecord
from store.index import Index
from store.layout import CHECKPOINT_MARGIN_MS
from store.log_end import is_message, last_segment
from store.segments import OpenFiles
from store.watermark import Watermark

_REMEDY = "restore the segment from a copy, or read what is left with read_only=True"


class Evidence(NamedTuple):
    """What is found in a directory."""

    watermark: bool
    current: bool  # it was made since the machine came up, and the log does not go on behind it
    queues: bool  # there are queues, or the watermark says that there is nothing in them
    abort: bool  # a writer, ours or RocketMQ, did not leave in good order
    checkpoint: bool  # RocketMQ's has a time


class Point(Enum):
    """A log offset."""

    FIRST_BYTE = auto()
    FLUSHED = auto()  # the watermark's flushed offset
    LAST_SEGMENT = auto()  # the last one that begins with a record
    CHECKPOINT = auto()  # the last one whose first record is 3 s older than the checkpoint, as in RocketMQ


class Filed(Enum):
    """Index files that are known to be whole; keys of records behind `begin` may be missing all the same."""

    NONE = auto()
    ALL = auto()
    FULL = auto()  # all but the last: it is begun when the one before is on the device
    CHECKPOINT = auto()  # those that end before RocketMQ's checkpoint of the index


class Plan(NamedTuple):
    """Walk the log from `begin`; below `trusted` all is on the device. Keys that `filed` lacks are filed again."""

    begin: Point
    trusted: Point
    filed: Filed = Filed.NONE


Y, N, X = True, False, None  # yes, no, no matter
CASES: list[tuple[tuple[bool | None, ...], Plan | None]] = [
    # watermark, current, queues, abort, checkpoint
    ((Y, Y, Y, X, X), None),  # what a dead writer left is undone by the next append
    ((Y, N, Y, N, X), Plan(Point.FLUSHED, Point.FLUSHED, Filed.ALL)),  # the machine came up, or a broker appended
    ((Y, N, Y, Y, X), Plan(Point.FLUSHED, Point.FLUSHED, Filed.FULL)),  # the machine died
    ((Y, X, N, N, X), Plan(Point.FIRST_BYTE, Point.FLUSHED, Filed.ALL)),  # somebody deleted the queues
    ((Y, X, N, Y, X), Plan(Point.FIRST_BYTE, Point.FLUSHED, Filed.FULL)),
    # A broker's directory. Its queues are made anew: a part may be missing, and stale entries stay after its crashes.
    ((N, X, X, N, X), Plan(Point.FIRST_BYTE, Point.LAST_SEGMENT, Filed.ALL)),
    ((N, X, X, Y, Y), Plan(Point.FIRST_BYTE, Point.CHECKPOINT, Filed.CHECKPOINT)),
    ((N, X, X, Y, N), Plan(Point.FIRST_BYTE, Point.FIRST_BYTE, Filed.NONE)),
]


def plan_for(evidence: Evidence) -> Plan | None:
    """The first case that matches; None when there is nothing to recover."""
    for pattern, plan in CASES:
        if all(wanted in (None, found) for wanted, found in zip(pattern, evidence, strict=True)):
            return plan
    raise AssertionError(f"CASES has none for {evidence}")


def recover(
    root: Path,
    log: CommitLog,
    index: Index,
    queue_file_size: int,
    existing_queues: Sequence[tuple[str, int]],
    plan: Plan,
) -> None:
    """Make log, queues and index agree, and write a clean watermark. Call as the only writer.

    Entries are written over those that are there, so that readers lose sight of none; what lies behind the log's
    end goes, in all three. Raises `ConfigError`, `CorruptSegment`, and `CorruptRecord` before anything went.
    """
    starts = log.segments.check()
    first_byte, files_end = (starts[0], starts[-1] + log.segments.size) if starts else (0, 0)
    begin, trusted = (_offset(point, root, log) for point in plan[:2])
    if plan.filed is not Filed.ALL:
        _file_keys(index, log, max(first_byte, _distrust(index, plan.filed, root)), begin)
    files = OpenFiles(OPEN_QUEUE_FILES)
    counts = partial(is_message, log)  # pages of a queue may be lost, and an entry with half of itself

    @cache
    def queue(topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(root, topic, queue_id, queue_file_size, writable=True, is_message=counts, files=files)

    tails = {name: queue(*name).tail(begin) for name in existing_queues}
    written = dict(tails)
    end, store_timestamp = begin, _last_timestamp(root)
    for chunk in walk(log, begin):
        end = chunk.end
        if len(chunk.records):
            times = chunk.records.field("store_timestamp")
            store_timestamp = max(store_timestamp, int(times[times <= LAST_MS].max(initial=0)))  # no CRC covers it
        index.append(*index_keys(chunk))
        for topic, queue_id, queue_offsets, entries in queue_entries(chunk):
            name, offset = (topic, queue_id), int(queue_offsets[0])
            tail = tails.get(name, 0)
            head_was_cut = first_byte > 0 and tail == queue(*name).first()
            if offset != tail and not head_was_cut:
                if begin > first_byte:  # entries before it are missing
                    again = Plan(Point.FIRST_BYTE, plan.trusted, Filed.ALL)
                    return recover(root, log, index, queue_file_size, existing_queues, again)
                at = int(entries["physical_offset"][0])
                raise CorruptRecord(
                    f"{log.segments.directory}: the record at log offset {at} says topic {topic}, queue {queue_id}, "
                    f"offset {offset}, but {tail} is the next there; {_REMEDY}"
                )
            if head_was_cut:
                queue(*name).begin_at(offset, first_byte)
            queue(*name).write(offset, entries)
            written[name] = min(written.get(name, offset), offset)
            tails[name] = offset + len(entries)
    if end < trusted:
        raise CorruptRecord(
            f"{log.segments.directory}: no sound record at log offset {end}, although all is safe up to {trusted}; "
            f"{_REMEDY}"
        )
    log.segments.zero(end, files_end)
    log.segments.flush(begin, files_end)
    for name, tail in tails.items():
        queue(*name).truncate(tail)
        queue(*name).flush(written[name], tail)
    index.truncate(end)
    Watermark.create(root, end, store_timestamp)
    return None


def _distrust(index: Index, filed: Filed, root: Path) -> int:
    """Delete index files that may not be whole; the log offset from which on keys are to be filed again."""
    if filed is Filed.FULL:
        return index.distrust()
    return index.distrust(read_index_checkpoint(root) if filed is Filed.CHECKPOINT else -1)


def _file_keys(index: Index, log: CommitLog, begin: int, end: int) -> None:
    """File the keys of records in [begin, end), and maybe of a few behind: they are passed over the second time."""
    if index.is_enabled and begin < end:
        for chunk in walk(log, begin, check_crc=False):
            index.append(*index_keys(chunk))
            if chunk.end >= end:
                return


def _offset(point: Point, root: Path, log: CommitLog) -> int:
    first_byte = log.min_offset()
    if point is Point.FLUSHED:
        with closing(Watermark(root, writable=False)) as watermark:
            return max(watermark.flushed_offset, first_byte)
    if point is Point.LAST_SEGMENT:
        return last_segment(log)
    if point is Point.CHECKPOINT:
        return last_segment(log, stored_by=(read_checkpoint(root) or 0) - CHECKPOINT_MARGIN_MS)
    return first_byte


def _last_timestamp(root: Path) -> int:
    try:
        with closing(Watermark(root, writable=False)) as watermark:
            return watermark.store_timestamp
    except FileNotFoundError:
        return 0
