"""Records that say they stand elsewhere, or nowhere, than the one queue entry says that knows them.

No checksum covers a record's header, as a rule. What is damaged there may move a message to another queue or topic, or
out of all of them; the queue that has it still is then all that is left of the truth, and must not be made anew from
the log.
"""

from __future__ import annotations

from collections.abc import Iterator

from store.format.stored_message import StoredMessage, decode_record
from store.format.topic_names import is_folder_name
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue
from store.log.consume_queues import ConsumeQueues, QueueName
from store.model.errors import CorruptRecord, CorruptSegment, OffsetLost


def misplaced(
    log: CommitLog, queues: ConsumeQueues, name: QueueName, begin: int, max_offset: int, safe: int
) -> Iterator[tuple[int, StoredMessage]]:
    """Queue offset and record of each entry outside of [begin, max_offset), what the log says of a queue, whose record
    the log has before log offset `safe`, and of which no other entry knows. The queue's files must be whole.
    """
    queue = queues.of(*name)
    for index in _before(queue, begin, log.min_offset()):
        if (record := _known_here_alone(log, queues, name, index, safe)) is not None:
            yield index, record
    left = queue.stale(max_offset)
    while left is not None:
        if (record := _known_here_alone(log, queues, name, left, safe)) is not None:
            yield left, record
        left = queue.stale(left + 1)


def _before(queue: ConsumeQueue, begin: int, first_byte: int) -> range:
    """Entries before `begin` of records from `first_byte` on."""
    try:
        return range(queue.min_offset(first_byte, begin), begin)
    except OffsetLost:  # it does not go so far
        return range(0)
    except CorruptSegment:
        return range(queue.first(), begin)


def place_of(record: StoredMessage) -> str:
    """What a record says of the place that it has."""
    return (
        f"the record at log offset {record.physical_offset} says topic {record.topic}, queue {record.queue_id}, "
        f"offset {record.queue_offset}, flags {record.sys_flag:#x}"
    )


def _known_here_alone(
    log: CommitLog, queues: ConsumeQueues, name: QueueName, index: int, safe: int
) -> StoredMessage | None:
    """The record that an entry names; None for an entry that names none, or one that the queue has which it says."""
    offset, size, _ = queues.of(*name).entries_left(index, index + 1)[0].item()
    if not (log.min_offset() <= offset and 0 < size <= safe - offset):
        return None
    try:
        if not log.can_be_record(offset, size):
            return None
        record = decode_record(log.segments.read(offset, size), "", check_crc=False)
    except (OffsetLost, CorruptRecord):
        return None
    if record.physical_offset != offset:
        return None
    said = record.topic, record.queue_id
    if (*said, record.queue_offset) == (*name, index) or not is_folder_name(record.topic):
        return record
    other = queues.of(*said).entries_left(record.queue_offset, record.queue_offset + 1)[0]
    return None if (int(other["physical_offset"]), int(other["size"])) == (offset, size) else record
