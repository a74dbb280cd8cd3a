"""Whether a queue begins where its files do: a first file that is lost looks like one that retention took.

Retention takes no file of which the log has a record. So where the record of a queue's first entry is not the log's
first, the log tells: it has no older message of that queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from store.format.entering import in_own_queue
from store.format.layout import CONSUME_QUEUE_DIR, CQ_PRE_BLANK_SIZE, LIGHT_PREFIX
from store.log.commit_log import CommitLog
from store.log.consume_queue import MAKE_ANEW, ConsumeQueue
from store.log.consume_queues import QueueName
from store.log.dispatch import LogChunk, light_entries, walk
from store.log.unflushed import NOTHING
from store.model.errors import CorruptSegment, OffsetLost
from store.model.integers import LONG_MAX


class Begin(NamedTuple):
    """The first entry of a queue that counts: its queue offset, and the log offset and size that it says."""

    offset: int
    at: int
    size: int

    @staticmethod
    def of(queue: ConsumeQueue) -> Begin:
        """Of a queue that has files. Raises `OffsetLost` where retention takes the first one meanwhile."""
        first = queue.first()
        at, size, _ = queue.entries(first, first + 1)[0].item()
        return Begin(first, at, size)


def first_left(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """Queue offset `offset`, or where the queue begins, if that is behind it: then retention took what was before.

    Raises `CorruptSegment` where it did not, for the log has it still; or where the log is damaged and cannot tell.
    """
    while (first := queue.first()) > offset:
        with suppress(OffsetLost):  # or else retention was faster
            if must_begin(log, {(queue.topic, queue.queue_id): Begin.of(queue)}):
                return first
            raise CorruptSegment(
                f"{queue}: no entry before {first}, and the log is damaged before that one's record, so nothing tells "
                f"whether there was any; look with 'pyspark-mq verify'"
            )
    return offset


def behind_lost(log: CommitLog, queue: ConsumeQueue, offset: int, lost: OffsetLost) -> int:
    """Where to go on in a queue of which `lost` was raised from queue offset `offset` on: where it begins by now.

    Raises `CorruptSegment` as `first_left`, and where another file is gone than the first ones.
    """
    first = first_left(log, queue, offset)
    if first == offset:
        raise CorruptSegment(f"{queue}: a file is lost: {lost}; or {MAKE_ANEW}") from lost
    return first


def must_begin(
    log: CommitLog, begins: Mapping[QueueName, Begin], deleted: Mapping[str, int] = NOTHING, most: int = LONG_MAX
) -> bool:
    """Whether the log tells that queues begin so; it does not where it ends before, for it is damaged.

    deleted: topics and the log offsets where they were deleted: what stands before went with its queues. most: bytes of
    the log that are walked at most. Raises `CorruptSegment` where it has an older message of one of them.
    """
    while True:
        at = first = log.min_offset()  # asked behind the files: segments go before they do
        late = {
            name: begin for name, begin in begins.items() if begin.offset and begin.at > first and not _is_blank(begin)
        }
        end = max((begin.at for begin in late.values()), default=first)
        for chunk in walk(log, first, until=min(end, first + most), check_crc=False):
            for name, begin in late.items():
                _must_have_none(log, chunk, name, begin, deleted.get(name[0], 0))
            at = chunk.end
        if at >= end or log.min_offset() == first:  # or else retention was faster
            return at >= end


def _is_blank(begin: Begin) -> bool:
    """Whether what stands there says only that the queue begins behind it."""
    return begin.size == CQ_PRE_BLANK_SIZE


def _must_have_none(log: CommitLog, chunk: LogChunk, name: QueueName, begin: Begin, deleted: int) -> None:
    (topic, queue_id), older = name, list[int]()
    if topic in chunk.topic_names:
        offsets = chunk.records.field("queue_offset")
        rows = (chunk.topic_ids == chunk.topic_names.index(topic)) & (chunk.records.field("queue_id") == queue_id)
        rows &= (offsets < begin.offset) & (chunk.offsets >= deleted) & in_own_queue(chunk.records.field("sys_flag"))
        older += offsets[rows].tolist()
    if topic.startswith(LIGHT_PREFIX):
        entering = (piece for piece in light_entries(chunk) if piece[:2] == name)
        older += [
            int(at[0]) for _, _, at, entry in entering if at < begin.offset and entry["physical_offset"] >= deleted
        ]
    if older:
        folder = log.segments.directory.parent / CONSUME_QUEUE_DIR / topic / str(queue_id)
        raise CorruptSegment(
            f"{folder}: no sound entry before {begin.offset}, but the log has the message of offset {older[0]}; "
            f"{MAKE_ANEW}"
        )
