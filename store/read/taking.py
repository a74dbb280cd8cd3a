"""Taking stored messages out of the log, by where their records begin, to put them again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from store.format.layout import MIN_RECORD_BYTES, RECORD_HEADER
from store.format.record_copies import RecordCopies
from store.format.record_view import RecordView
from store.log.commit_log import CommitLog
from store.model.errors import CorruptRecord, OffsetNotYet
from store.model.log_protocol import Int64s

_RESTORE = "run 'pyspark-mq verify', and restore the segment from a copy"


def taken(log: CommitLog, physical_offsets: Int64s, sizes: Int64s) -> RecordCopies:
    """The messages whose records begin at these log offsets, all different, and are so long, in this order; n >= 1.

    Raises `CorruptRecord` naming the first that is no sound record, `OffsetLost` where a segment is gone.
    """
    order = np.argsort(physical_offsets, kind="stable")
    offsets, lengths = physical_offsets[order], sizes[order]
    segments = offsets // log.segments.size
    cuts = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(offsets)]
    copies = RecordCopies.concatenate([_in_segment(log, offsets[a:b], lengths[a:b]) for a, b in pairwise(cuts)])
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return copies if (back == np.arange(len(order))).all() else copies.take(back)


def sizes_at(log: CommitLog, physical_offsets: Int64s, confirm_offset: int) -> Int64s:
    """How long the records say they are that begin at these log offsets, shape (n,). For a few: it loops.

    Raises `OffsetNotYet` beyond the confirm offset, `OffsetLost` where a segment is gone.
    """
    width = RECORD_HEADER["total_size"].itemsize
    if len(physical_offsets) and physical_offsets.max() > confirm_offset - MIN_RECORD_BYTES:
        raise OffsetNotYet(f"commit log offset {physical_offsets.max()}: published up to {confirm_offset} only")
    heads = b"".join(log.segments.read(offset, width) for offset in physical_offsets.tolist())
    return np.frombuffer(heads, RECORD_HEADER["total_size"]).astype(np.int64)


def _in_segment(log: CommitLog, offsets: Int64s, sizes: Int64s) -> RecordCopies:
    begin, end = int(offsets[0]), int(offsets[-1] + sizes[-1])
    if begin < 0 or end > log.next_segment(begin) or sizes.min() < MIN_RECORD_BYTES:
        raise CorruptRecord(f"commit log offsets {begin} to {end}: no records of one segment; {_RESTORE}")
    records = RecordView(log.segments.view(begin, end - begin), offsets - begin, sizes)
    records.measure_topics()
    sound = records.sound & (records.field("physical_offset") == offsets)
    if sound.all():
        sound &= records.crc_matches()
    if not sound.all():
        raise CorruptRecord(f"commit log offset {offsets[np.argmin(sound)]}: no sound record; {_RESTORE}")
    return RecordCopies.of(records)
