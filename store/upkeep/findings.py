"""`Report`: the findings of `verify`. `misplaced` and `broken_bodies` find damage that checksums do not detect.

Usually no checksum covers a record's header. If the header has a wrong topic or queue, only the entry in the right
queue shows the damage. That queue must not be rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.consume_queues import ConsumeQueues, QueueName
from store.disk.dispatch import LogChunk
from store.format.inflating import decompress
from store.format.layout import SYS_COMPRESSED
from store.format.stored_message import StoredMessage, decode_record
from store.format.topic_names import is_folder_name
from store.model.errors import CorruptRecord, CorruptSegment, MessageTooLarge, OffsetLost, UnreadableBody
from store.model.html_table import html_table, html_text
from store.model.integers import counted


def misplaced(
    log: CommitLog, queues: ConsumeQueues, name: QueueName, begin: int, max_offset: int, safe: int
) -> Iterator[tuple[int, StoredMessage]]:
    """Yield entries of a queue that the log contradicts: queue offset and record.

    Such an entry is outside [begin, max_offset), the queue's range according to the log, but its record is sound and no
    other queue has it.

    safe: log offset after which records are ignored. The queue must have all its files.
    """
    queue = queues.of(*name)
    for index in _before(queue, begin, log.min_offset()):
        if (record := _record_only_here(log, queues, name, index, safe)) is not None:
            yield index, record
    left = queue.stale(max_offset)
    while left is not None:
        if (record := _record_only_here(log, queues, name, left, safe)) is not None:
            yield left, record
        left = queue.stale(left + 1)


def _before(queue: ConsumeQueue, begin: int, first_byte: int) -> range:
    try:
        return range(queue.min_offset(first_byte, begin), begin)
    except OffsetLost:
        return range(0)
    except CorruptSegment:
        return range(queue.first(), begin)


def place_of(record: StoredMessage) -> str:
    return (
        f"the record at log offset {record.physical_offset} says topic {record.topic}, queue {record.queue_id}, "
        f"offset {record.queue_offset}, flags {record.sys_flag:#x}"
    )


def _record_only_here(
    log: CommitLog, queues: ConsumeQueues, name: QueueName, index: int, safe: int
) -> StoredMessage | None:
    """Return the record of an entry. Return None if it is not sound, or is also in the queue that its header names."""
    offset, size, _ = queues.of(*name).entries_or_zeros(index, index + 1)[0].item()
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
    other = queues.of(*said).entries_or_zeros(record.queue_offset, record.queue_offset + 1)[0]
    return None if (int(other["physical_offset"]), int(other["size"])) == (offset, size) else record


class BrokenBody(NamedTuple):
    """A body that cannot be decompressed; its checksum is right. at: log offset of its record."""

    at: int
    what: str


def broken_bodies(chunk: LogChunk, max_bytes: int) -> list[BrokenBody]:
    """Return the broken bodies of a chunk. Only the first `max_bytes` of each body are decompressed."""
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
            found.append(BrokenBody(at, str(error)))
    return found


MAX_FINDINGS = 200
COPY = "restore the file from a copy"
UNREADABLE = 'none: its producer sent it so. Read on with unreadable="null"; consumers make it a dead letter'
REPAIR = "verify --repair"


class Enough(Exception): ...


class Finding(NamedTuple):
    """A problem that `verify` found. where: file or queue, and offset."""

    where: str
    what: str
    remedy: str


@dataclass
class Report:
    """Result of `verify`, which stops after `MAX_FINDINGS` findings.

    records, log_bytes, queues: how many were checked.
    """

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    log_bytes: int = 0
    queues: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether the store is damaged. Unreadable bodies alone are no damage: their producers sent them so."""
        return any(finding.remedy != UNREADABLE for finding in self.findings)

    def __repr__(self) -> str:
        found = counted(len(self.findings), "finding")
        checked = counted(self.records, "record"), counted(self.log_bytes, "byte"), counted(self.queues, "queue")
        return f"<Report of {', '.join(checked)}: {found}{', damaged' if self.is_damaged else ''}>"

    def _repr_html_(self) -> str:
        return html_table(repr(self), Finding._fields, self.findings) if self.findings else html_text(repr(self))

    def add(self, where: str, what: str, remedy: str) -> None:
        """Add a finding. Raises `Enough` at `MAX_FINDINGS`."""
        self.findings.append(Finding(where, what, remedy))
        if len(self.findings) >= MAX_FINDINGS:
            raise Enough
