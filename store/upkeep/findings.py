"""What a check of a whole store finds: its report, and records that are wrong although their checksums are right.

Usually no checksum covers a record's header. Damage there may move a message to another queue or topic, or out of all
of them. The queue that still has it is then the only one that knows, and must not be rebuilt from the log. A compressed
body has a checksum of its stored bytes, which does not tell whether it inflates.
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
from store.model.errors import CorruptRecord, CorruptSegment, MessageTooLarge, OffsetLost, UnreadableBody
from store.model.html_table import html_table, html_text
from store.model.integers import counted


def misplaced(
    log: CommitLog, queues: ConsumeQueues, name: QueueName, begin: int, max_offset: int, safe: int
) -> Iterator[tuple[int, StoredMessage]]:
    """Yield queue offset and record of entries outside of [begin, max_offset) that alone know of a sound record.

    [begin, max_offset): what the log says of the queue. safe: log offset before which records count. The queue's files
    must be whole.
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
    """Return the entries before `begin` of records from `first_byte` on."""
    try:
        return range(queue.min_offset(first_byte, begin), begin)
    except OffsetLost:  # it does not go so far
        return range(0)
    except CorruptSegment:
        return range(queue.first(), begin)


def place_of(record: StoredMessage) -> str:
    """Return what a record says of its place."""
    return (
        f"the record at log offset {record.physical_offset} says topic {record.topic}, queue {record.queue_id}, "
        f"offset {record.queue_offset}, flags {record.sys_flag:#x}"
    )


def _known_here_alone(
    log: CommitLog, queues: ConsumeQueues, name: QueueName, index: int, safe: int
) -> StoredMessage | None:
    """Return the record that an entry names, None if there is none or the queue that it names has it."""
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
    """A body that does not inflate: log offset of its record, and what is wrong."""

    at: int
    what: str


def broken_bodies(chunk: LogChunk, max_bytes: int) -> list[Broken]:
    """Return those of a chunk, in order. A body counts as good once it exceeds `max_bytes`: no more is inflated."""
    flags = chunk.records.field("sys_flag")
    rows = np.flatnonzero(flags & SYS_COMPRESSED)
    if not len(rows):
        return []
    starts, lengths = chunk.records.body_starts[rows], chunk.records.body_lengths[rows]
    bodies = chunk.records.slices(starts, lengths).to_pylist()
    found = []
    for body, flag, at in zip(bodies, flags[rows].tolist(), chunk.offsets[rows].tolist(), strict=True):
        try:
            decompress(body, flag, max_bytes)
        except MessageTooLarge:
            continue
        except UnreadableBody as error:
            found.append(Broken(at, str(error)))
    return found


MAX_FINDINGS = 200
COPY = "restore the file from a copy"
UNREADABLE = 'none: its producer sent it so. Read on with unreadable="null"; consumers make it a dead letter'
REPAIR = "verify --repair"


class Enough(Exception):
    """Raised when there are `MAX_FINDINGS`."""


class Finding(NamedTuple):
    """What is wrong, where, and the remedy."""

    where: str
    what: str
    remedy: str


@dataclass
class Report:
    """What was checked, and what was found: at most `MAX_FINDINGS`, then the check ends."""

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    log_bytes: int = 0
    queues: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether the store is: unreadable bodies are mistakes of producers."""
        return any(finding.remedy != UNREADABLE for finding in self.findings)

    def __repr__(self) -> str:
        found = counted(len(self.findings), "finding")
        checked = counted(self.records, "record"), counted(self.log_bytes, "byte"), counted(self.queues, "queue")
        return f"<Report of {', '.join(checked)}: {found}{', damaged' if self.is_damaged else ''}>"

    def _repr_html_(self) -> str:
        return html_table(repr(self), Finding._fields, self.findings) if self.findings else html_text(repr(self))

    def add(self, where: str, what: str, remedy: str) -> None:
        """Add a finding. Raises `Enough`."""
        self.findings.append(Finding(where, what, remedy))
        if len(self.findings) >= MAX_FINDINGS:
            raise Enough
