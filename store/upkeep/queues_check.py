"""`QueuesCheck`: compares queues with the log, in one walk of the log.

Queue offsets are contiguous, so an entry without a record shows as a gap.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from store.append.log_end import life_begin
from store.append.watch import POLL_SECONDS
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.consume_queues import ConsumeQueues, Ends, QueueName
from store.disk.dispatch import LogChunk, all_entries, with_delivery_times
from store.disk.queue_files import Entries
from store.format.layout import CQ_EXTENSION_BELOW
from store.format.record_view import Ints
from store.model.errors import CorruptSegment, CorruptStore, OffsetLost
from store.upkeep.findings import COPY, REPAIR, Report, misplaced, place_of

_ANEW = f"move the queue's folder away, then {REPAIR}"
_NOT_COMPARED = -1
_NO_ENTRY = "{count} messages have no entry in the queue"
_WRONG_ENTRY = "{count} entries are not what their records say"
_NO_RECORD = "{count} entries have no sound record in the log"
_TWICE = "{count} records have the queue offset of an earlier record"


@dataclass
class _Run:
    """Adjacent queue offsets with the same fault."""

    first: int
    count: int
    example: str


class QueuesCheck:
    """Reports faults of queues. Call `compare` for each chunk of the log in order, then `finish`."""

    def __init__(
        self,
        queues: ConsumeQueues,
        log: CommitLog,
        report: Report,
        is_compared: Callable[[str, int], bool],
        deletions: Mapping[str, int],
        patience: float,
    ) -> None:
        """Check the names and sizes of queue files. A queue with a bad or missing file is reported and not compared.

        is_compared: whether to compare a topic's record at a log offset; False for deleted topics and batch queues.
        deletions: see `Topics.deletions`.
        patience: total seconds to wait for a broker to write queue entries.
        """
        self._all_queues = queues
        self._log = log
        self._report = report
        self._is_compared = is_compared
        self._deletions = deletions
        self._patience = patience
        self._queues: dict[QueueName, ConsumeQueue] = {}
        self._life_begins: dict[QueueName, int] = {}
        self._restarted: dict[str, int] = {}  # log offset of a recreated topic's first record
        self._last_at: dict[QueueName, int] = {}  # of a queue without a folder: log offset of its last record
        self._begin: dict[QueueName, int] = {}
        self._next: dict[QueueName, int] = {}
        self._runs: dict[tuple[QueueName, str], _Run] = {}
        for name in queues.existing():
            queue = queues.of(*name)
            report.queues += 1
            try:
                queue.check()
            except CorruptStore as error:
                what = str(error).partition(";")[0]
                report.add(_name(name), what, _ANEW)
                self._next[name] = _NOT_COMPARED
            else:
                self._queues[name] = queue

    def compare(self, chunk: LogChunk, end: int) -> None:
        for topic, queue_id, offsets, entries, is_certain in all_entries(chunk, self._deletions):
            if not (is_certain or self._light_queue_has_record(topic, queue_id, offsets, entries)):
                continue
            count = int(np.searchsorted(entries["physical_offset"], end))
            if count and self._is_compared(topic, int(entries["physical_offset"][0])):
                self._compare(chunk, (topic, queue_id), offsets[:count], entries[:count])

    def forget_offsets(self) -> None:
        """Accept a gap before the next record of each queue, because retention deleted records before they were
        compared.
        """
        self._begin.clear()
        self._next = {name: offset for name, offset in self._next.items() if offset == _NOT_COMPARED}

    def next_record(self, at: int, end: int) -> int:
        """Return the log offset of the first record after `at` that has a queue entry, `end` if there is none."""
        known = (self._record_after(name, at, end) for name in self._queues)
        return min((offset for offset in known if offset > at), default=end)

    def finish(self, end: int, noted: Ends, is_gone: Callable[[str], bool], *, is_damaged: bool) -> None:
        """Check the entries after the last record, up to log offset `end`, and report all faults.

        noted: the recorded ends of queues. is_gone: whether a topic was deleted concurrently.
        """
        for name, queue in self._queues.items():
            try:
                is_damaged |= self._check_rest(name, queue, end, is_gone)
            except OffsetLost:
                if not is_gone(name[0]):
                    raise
        for name, had in noted.items():
            if (stop := self._next.get(name, 0)) != _NOT_COMPARED and not is_gone(name[0]):
                self._queues.setdefault(name, self._all_queues.of(*name))
                if (ends := max(stop, self._max_offset(name, end))) < had:
                    self._report.add(_name(name), f"it ends at {ends}, but had {had} entries", REPAIR)
        for (name, what), run in self._runs.items():
            if is_gone(name[0]):
                continue
            if name in self._last_at and self._last_at[name] < self._restarted.get(name[0], 0):
                continue  # the recreated topic has no such queue
            example = f"; {run.example}" if run.example else ""
            remedy = COPY if what == _TWICE or (what == _NO_RECORD and is_damaged) else REPAIR
            self._report.add(
                f"{_name(name)}, offset {run.first}", what.format(count=f"{run.count:,}") + example, remedy
            )

    def behind(self, end: int, *, of_records: bool = False) -> list[str]:
        """Return the places of entries after the queues' ends.

        of_records: only those whose record is at or after log offset `end`.
        """
        found = []
        for name, queue in self._queues.items():
            at = queue.stale(max(self._max_offset(name, end), self._next.get(name, 0)))
            if at is not None and not (of_records and queue.entries_or_zeros(at, at + 1)["physical_offset"][0] < end):
                found.append(f"{_name(name)}, offset {at}")
        return found

    def _light_queue_has_record(self, topic: str, queue_id: int, offsets: Ints, entries: Entries) -> bool:
        """Return whether a light queue has a record that names it. A client may name one that it must not use."""
        first, name = int(offsets[0]), (topic, queue_id)
        offset, size, _ = self._all_queues.of(*name).entries_or_zeros(first, first + 1)[0].item()
        if size:
            return bool(offset == entries["physical_offset"][0])
        return first == self._next.get(name, first if self._log.min_offset() else 0)

    def _compare(self, chunk: LogChunk, name: QueueName, offsets: Ints, entries: Entries) -> None:
        """Compare consecutive records of one queue with their entries.

        Records from before a recreation of the topic are ignored.
        """
        life_begin = self._life_begin(name)
        newest = int(np.searchsorted(entries["physical_offset"].astype(np.int64), life_begin))
        if newest and offsets[newest - 1] >= self._queues[name].first():  # recreated, or a file is lost
            self._restarted[name[0]] = min(life_begin, self._restarted.get(name[0], life_begin))
            offsets, entries = offsets[newest:], entries[newest:]
            if not len(offsets):
                return
        first, stop = int(offsets[0]), int(offsets[-1]) + 1
        expected = self._next.get(name, first)
        if expected == _NOT_COMPARED:
            return
        self._begin.setdefault(name, first)
        self._next[name] = max(expected, stop)
        if first > expected:
            self._note(name, _NO_RECORD, expected, first - expected)
        if first < expected:
            where = int(entries["physical_offset"][0])
            self._note(name, _TWICE, first, min(stop, expected) - first, f"the first is at log offset {where}")
            return
        found, entries = self._found(chunk, name, first, entries)
        while self._patience > 0 and (found != entries).any():
            time.sleep(POLL_SECONDS)
            self._patience -= POLL_SECONDS
            found, entries = self._found(chunk, name, first, entries)
        missing = found["size"] == 0
        wrong = (found["physical_offset"] != entries["physical_offset"]) | (found["size"] != entries["size"])
        extended = found["tags_code"] <= CQ_EXTENSION_BELOW
        wrong |= (found["tags_code"] != entries["tags_code"]) & ~extended
        wrong &= ~missing
        if missing.any():
            self._note(name, _NO_ENTRY, first + int(np.argmax(missing)), int(missing.sum()))
        if wrong.any():
            row = int(np.argmax(wrong))
            example = f"the first is {_fields(found[row])}, its record {_fields(entries[row])}"
            self._note(name, _WRONG_ENTRY, first + row, int(wrong.sum()), example)

    def _life_begin(self, name: QueueName) -> int:
        if name not in self._life_begins:
            self._life_begins[name] = life_begin(self._log, self._queues[name]) if name in self._queues else 0
        return self._life_begins[name]

    def _found(self, chunk: LogChunk, name: QueueName, first: int, expected: Entries) -> tuple[Entries, Entries]:
        """Return the queue's entries, and the expected entries with the queue's delivery times.

        Missing files give zeros. Entries whose records retention deleted count as correct.
        """
        if name not in self._queues:  # the queue is missing, or a broker created it concurrently
            self._queues[name] = self._all_queues.of(*name)
            self._last_at[name] = 0
        if name in self._last_at:
            self._last_at[name] = int(expected["physical_offset"][-1])
        found = self._queues[name].entries_or_zeros(first, first + len(expected))
        gone = (found["size"] == 0) & (expected["physical_offset"] < self._log.min_offset())
        found[gone] = expected[gone]
        return found, with_delivery_times(chunk, name[0], expected, found)

    def _max_offset(self, name: QueueName, end: int) -> int:
        try:
            return self._queues[name].max_offset(end)
        except CorruptSegment:
            return max(self._next.get(name, 0), self._queues[name].first())

    def _check_rest(self, name: QueueName, queue: ConsumeQueue, end: int, is_gone: Callable[[str], bool]) -> bool:
        """Return whether an entry before the first or after the last record reveals a damaged log."""
        max_offset = self._max_offset(name, end)
        try:
            min_offset = queue.min_offset(self._log.min_offset(), max_offset)
        except CorruptSegment as error:  # already reported, unless retention deleted the record
            min_offset = self._begin.get(name, max_offset)
            if all(name != noted for noted, _ in self._runs):
                self._report.add(_name(name), str(error).partition(";")[0], _ANEW)
        begin, stop = self._begin.get(name, max_offset), self._next.get(name, min_offset)
        if min_offset < min(begin, max_offset):
            self._note(name, _NO_RECORD, min_offset, min(begin, max_offset) - min_offset)
        stop = max(stop, begin, min_offset)
        if max_offset > stop:
            self._note(name, _NO_RECORD, stop, max_offset - stop)
        for index, record in islice(misplaced(self._log, self._all_queues, name, min(begin, max_offset), stop, end), 1):
            if is_gone(name[0]):
                break
            what = f"{place_of(record)}, and no other entry names it"
            self._report.add(f"{_name(name)}, offset {index}", what, COPY)
            return True
        return False

    def _note(self, name: QueueName, what: str, first: int, count: int, example: str = "") -> None:
        run = self._runs.setdefault((name, what), _Run(first, 0, example))
        run.count += count

    def _record_after(self, name: QueueName, at: int, end: int) -> int:
        queue = self._queues[name]
        first, max_offset = queue.first(), self._max_offset(name, end)

        def physical_offset(offset: int) -> int:
            return int(queue.entries(offset, offset + 1)[0]["physical_offset"])

        try:
            found = bisect_right(range(max_offset), at, first, max_offset, key=physical_offset)
            return physical_offset(found) if found < max_offset else end
        except OffsetLost:
            return end


def _name(name: QueueName) -> str:
    return f"topic {name[0]}, queue {name[1]}"


def _fields(entry: np.void) -> str:
    return f"{entry['size']} bytes at log offset {entry['physical_offset']}, tags code {entry['tags_code']}"
