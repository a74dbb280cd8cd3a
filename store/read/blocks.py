"""Messages of one queue as a block: the stretch of the log that its entries name."""

from __future__ import annotations

import numpy as np

from store.format.arrays import Bytes
from store.format.columns import Block, LightBlock
from store.format.layout import CQ_PRE_BLANK_SIZE, LIGHT_PREFIX, MIN_RECORD_BYTES
from store.log.consume_queue import MAKE_ANEW, Entries
from store.log.sources import EntryQueue, RecordLog
from store.model.errors import CorruptRecord, OffsetLost
from store.model.log_protocol import Bools, Int64s, MessageFilter


def block_of(
    log: RecordLog,
    queue: EntryQueue,
    queue_offsets: Int64s,
    physical_offsets: Int64s,
    sizes: Int64s,
    *,
    with_bodies: bool = True,
    with_trailers: bool = True,
) -> Block:
    """The messages at these offsets, all in one segment, n >= 1; with_bodies, with_trailers: as `Block` takes them.

    Raises `CorruptRecord`, `OffsetLost`.
    """
    kind = LightBlock if queue.topic.startswith(LIGHT_PREFIX) else Block
    view, begin = _stretch(log, queue, queue_offsets, physical_offsets, sizes), int(physical_offsets[0])
    where = queue.topic, queue.queue_id, view, begin, queue_offsets, physical_offsets, sizes
    return kind(*where, with_bodies=with_bodies, with_trailers=with_trailers or kind is LightBlock)


def may_match(entries: Entries, message_filter: MessageFilter) -> Bools:
    """Where the message of an entry may pass the filter, shape (n,).

    An empty entry may: it is damaged, and who reads its message is told. Its tags code would say that it has no tag.
    """
    return message_filter.match_codes(entries["tags_code"].astype(np.int64)) | (entries["size"] <= 0)


def _stretch(log: RecordLog, queue: EntryQueue, queue_offsets: Int64s, physical: Int64s, sizes: Int64s) -> Bytes:
    """The log from the first to the last of these records."""
    begin, end = int(physical[0]), int(physical[-1] + sizes[-1])
    ascending = (physical[1:] > physical[:-1]).all()
    if (sizes == CQ_PRE_BLANK_SIZE).any():
        raise OffsetLost(
            f"{queue.topic}, queue {queue.queue_id}: offsets {queue_offsets[0]} to {queue_offsets[-1]} are gone, for "
            "the topic was deleted"
        )
    if not ascending or begin < 0 or end > log.next_segment(begin) or sizes.min() < MIN_RECORD_BYTES:
        raise CorruptRecord(
            f"{queue.topic}, queue {queue.queue_id}, offsets {queue_offsets[0]} to {queue_offsets[-1]}: the queue's "
            f"entries are no records in ascending order; {MAKE_ANEW}"
        )
    return log.segments.view(begin, end - begin)
