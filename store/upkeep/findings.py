"""Records that say they stand elsewhere, or nowhere, than the one queue entry says that knows them.

No checksum covers a record's header, as a rule. What is damaged there may move a message to another queue or topic, or
out of all of them; the queue that has it still is then all that is left of the truth, and must not be made anew from
the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from store.format.inflating import decompress
from store.format.layout import SYS_COMPRESSED
from store.format.stored_message import StoredMessage, decode_record
from store.format.topic_names import is_folder_name
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue
from store.log.consume_queues import ConsumeQueues, QueueName
from store.log.dispatch import LogChunk
from store.model.errors import CorruptRecord, CorruptSegment, MessageTooLarge, OffsetLost


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


class Broken(NamedTuple):
    """A body that does not decompress: log offset of its record, and what is wrong."""

    at: int
    what: str


def broken_bodies(chunk: LogChunk, max_bytes: int) -> list[Broken]:
    """Those of a chunk, in order. One that becomes more than `max_bytes` is good so far: it is not done further."""
    flags = chunk.records.field("sys_flag")
    rows = np.flatnonzero(flags & SYS_COMPRESSED)
    if not len(rows):
        return []
    starts, lengths = chunk.records.body_starts[rows], chunk.records.body_lengths[rows]
    bodies = chunk.records.slices(starts, lengths).to_pylist()
    found = []
    for body, flag, at in zip(bodies, flags[rows].tolist(), chunk.offsets[rows].tolist(), strict=True):
        try:
            decompress(body, flag, "", max_bytes)
        except CorruptRecord as error:
            found.append(Broken(at, str(error).removeprefix(": ")))
        except MessageTooLarge:
            continue
    return found


MAX_FINDINGS = 200
COPY = "restore the file from a copy"
REPAIR = "verify --repair"


class Enough(Exception):
    """There are `MAX_FINDINGS`."""


class Finding(NamedTuple):
    """What is wrong, where, and what helps."""

    where: str
    what: str
    remedy: str


@dataclass
class Report:
    """What was looked at, and what was found; at most `MAX_FINDINGS`, then it ends early."""

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    log_bytes: int = 0
    queues: int = 0

    def add(self, where: str, what: str, remedy: str) -> None:
        """One more. Raises `Enough`."""
        self.findings.append(Finding(where, what, remedy))
        if len(self.findings) >= MAX_FINDINGS:
            raise Enough
