"""Looking at every byte of a store that means something: does the log hold, and do queues and index say what it says?

The log is walked once, record by record; each record's queue entry is compared with what it has to be, and what the
queues have besides is found by their offsets being dense; its keys are looked for in the index (see `index_check`).
Memory is that of a few chunks of the log, one line for each queue, and the slots of an index file. A store may be
written to meanwhile: what is published later is not looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from store.errors import CorruptRecord, CorruptSegment, CorruptStore, OffsetLost
from store.files.config import StoreConfig
from store.files.consumer_offsets import ConsumerOffsets
from store.files.topics import Topics
from store.format.columns import LAST_MS
from store.format.layout import (
    ABORT_FILE,
    COMMIT_LOG_DIR,
    CONSUMER_OFFSETS_FILE,
    CQ_EXTENSION_BELOW,
    DELAY_OFFSETS_FILE,
    GROUPS_FILE,
    RECORD_HEADER,
    TOPICS_FILE,
)
from store.format.record_view import Ints
from store.format.stored_message import decode_record
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue, Entries
from store.log.consume_queues import ConsumeQueues, QueueName
from store.log.dispatch import LogChunk, index_keys, light_entries, queue_entries, walk, with_delivery_times
from store.publish.log_end import LogEnd, life_begin
from store.publish.watch import POLL_SECONDS
from store.system_errors import explained
from store.upkeep.compressed import broken_bodies
from store.upkeep.directory import Directory, lost_begin
from store.upkeep.findings import Enough, Report
from store.upkeep.index_check import IndexCheck
from store.upkeep.misplaced import misplaced, place_of

Progress = Callable[[int, int], None]  # bytes of log done, of all

_NOT_COMPARED = -1
_DISPATCH_SECONDS = 1.0  # how far the queues of a running broker are behind its log, at most
_SIZE_BYTES = RECORD_HEADER["total_size"].itemsize

_COPY = "restore the file from a copy"
_REPAIR = "verify --repair"
_NO_ENTRY = "{count} messages have no entry in the queue"
_WRONG_ENTRY = "{count} entries are not what their records say"
_NO_RECORD = "{count} entries have no sound record in the log"
_BAD_END = (
    "from here on there is no sound record, although whoever wrote last left in good order: one that died may have "
    f"left this, and {_REPAIR} cuts it off; if none did, messages are damaged"
)
_TWICE = "{count} records have a queue offset that an earlier one has"


@explained
def verify(
    path: str | os.PathLike[str],
    progress: Progress = lambda done, total: None,
    config: StoreConfig | str | os.PathLike[str] | None = None,
) -> Report:
    """Check a store, ours or a RocketMQ broker's, without changing anything.

    config: as `MessageStore.open` takes it; for the directory of a broker whose index has other sizes than RocketMQ's
    defaults. Raises `NotAStore` and `ConfigError`; whatever else is wrong is a finding.
    """
    directory = Directory.at(path)
    directory.must_be_store()
    verifier = _Verifier(directory, directory.configuration(config), progress)
    with suppress(Enough):
        try:
            verifier.run()
        except CorruptStore as error:
            verifier.add(str(directory.root), f"{error}; no more was looked at", _COPY)
    return verifier.report


@dataclass
class _Run:
    """Queue offsets of one queue with the same thing wrong: the first, how many, and what is said of the first."""

    first: int
    count: int
    example: str


class _Verifier:
    def __init__(self, directory: Directory, config: StoreConfig, progress: Progress) -> None:
        self.report = Report()
        self._root = directory.root
        self._directory = directory
        self._progress = progress
        self._config = config
        self._log = CommitLog(self._root, self._config.mappedFileSizeCommitLog, writable=False)
        self._queues: dict[QueueName, ConsumeQueue] = {}
        # By log offset: not so what deleted topics had, and batch queues.
        self._is_compared: Callable[[str, int], bool] = lambda topic, at: True
        self._is_damaged = False  # the log is
        self._patience = 0.0  # seconds left to wait for a broker's dispatch
        self._life_begins: dict[QueueName, int] = {}
        self._reborn: dict[str, int] = {}  # log offset where the newest life of a topic begins
        self._last_at: dict[QueueName, int] = {}  # log offset of the last record of a queue without folder
        self._begin: dict[QueueName, int] = {}  # queue offset of the first record seen
        self._next: dict[QueueName, int] = {}  # queue offset after the last record seen
        self._runs: dict[tuple[QueueName, str], _Run] = {}

    def add(self, where: str, what: str, remedy: str) -> None:
        self.report.add(where, what, remedy)

    def run(self) -> None:
        self._check_admin_files()
        with closing(LogEnd(self._root, self._log)) as log_end:
            begin, end = self._log.min_offset(), log_end.confirm_offset
            if log_end.log_begin is not None and log_end.log_begin < begin:
                self.add(COMMIT_LOG_DIR, *lost_begin(log_end.log_begin, begin).split("; "))
            size = self._config.mappedFileSizeConsumeQueue
            self._all_queues = ConsumeQueues(self._root, size, writable=False, is_message=log_end.is_message)
            self._open_queues()
            self._patience = _DISPATCH_SECONDS if log_end.by_log else 0.0
            index = Index.of(self._root, self._config, writable=False)
            index_check = IndexCheck(index, self._log, end, is_complete=not log_end.by_log)
            for chunk in self._walk(begin, end):
                self.report.records += int(np.searchsorted(chunk.offsets, end))
                self._check_times(chunk)
                self._check_bodies(chunk)
                keys, with_tags = index_keys(chunk, tags=False), index_keys(chunk, tags=True)
                index_check.compare(keys, with_tags, chunk.begin, min(chunk.end, end))
                light = (piece for piece in light_entries(chunk) if self._stands(*piece))
                for topic, queue_id, offsets, entries in chain(queue_entries(chunk), light):
                    count = int(np.searchsorted(entries["physical_offset"], end))
                    if count and self._is_compared(topic, int(entries["physical_offset"][0])):
                        self._compare(chunk, (topic, queue_id), offsets[:count], entries[:count])
                self._progress(min(chunk.end, end) - begin, end - begin)
            self.report.log_bytes = max(0, end - begin)
            for name, queue in self._queues.items():
                self._check_rest(name, queue, end)
            self._report_runs()
            index_check.finish()
            behind, is_left = self._behind(end), bool(self._left_in_log(end))
            is_closed = not (self._root / ABORT_FILE).exists()  # looked at after that, and before the end
            is_over = end == log_end.confirm_offset
            is_at_rest = log_end.is_at_rest and is_over
            if log_end.by_log and is_left and is_closed and is_over:
                self.add(self._place(end), _BAD_END, _COPY)
            if is_at_rest:  # or else it is an append under way, or one that died: the next one undoes it
                for where in behind:
                    self.add(where, "something is left behind the end", _REPAIR)
            for where, what in index_check.findings(is_at_rest=is_at_rest):
                self.add(where, what, _REPAIR)

    def _check_admin_files(self) -> None:
        groups = ConsumerOffsets(self._root)
        looks: tuple[tuple[str, Callable[[], object]], ...] = (
            (TOPICS_FILE, self._look_at_topics),
            (CONSUMER_OFFSETS_FILE, groups.all_offsets),
            (GROUPS_FILE, groups.all_settings),
            (DELAY_OFFSETS_FILE, groups.delay_offsets),
        )
        for name, look in looks:
            try:
                look()
            except CorruptStore as error:
                self.add(name, str(error), _COPY)

    def _look_at_topics(self) -> None:
        topics = Topics(self._root)
        topics.queue_counts()
        batches, is_there = topics.batches(), topics.are_there()
        self._is_compared = lambda topic, at: topic not in batches and is_there(topic, at)

    # --- the log ---------------------------------------------------------------------------------------

    def _walk(self, at: int, end: int) -> Iterator[LogChunk]:
        """All sound records of [at, end); what lies between them is a finding."""
        while at < end:
            for chunk in walk(self._log, at):
                yield chunk
                at = chunk.end
                if at >= end:
                    return
            first = self._log.min_offset()
            if at < first:  # retention was faster
                at = first
                self._forget_offsets()
                continue
            try:
                resume, what = self._resume(at, end), self._damage(at)
            except OffsetLost:  # likewise
                continue
            self._is_damaged = True
            self.add(self._place(at), f"{what}; {resume - at} bytes up to log offset {resume} cannot be read", _COPY)
            at = resume

    def _check_times(self, chunk: LogChunk) -> None:
        """No CRC covers a record's header. Its other fields are compared with queue and index, or mean nothing here."""
        times = chunk.records.field("store_timestamp")
        wrong = chunk.offsets[(times <= 0) | (times > LAST_MS)]
        if len(wrong):
            self.add(self._place(int(wrong[0])), f"{len(wrong)} records have no time that can be, from here on", _COPY)

    def _check_bodies(self, chunk: LogChunk) -> None:
        broken = broken_bodies(chunk, self._config.maxDecompressedMessageSize)
        if broken:
            what = f"{len(broken)} compressed bodies do not decompress, from here on; the first: {broken[0].what}"
            self.add(self._place(broken[0].at), what, _COPY)

    def _forget_offsets(self) -> None:
        """Records were passed over that are gone, and with them, for good reason, some offsets of the queues."""
        self._begin.clear()
        self._next = {name: offset for name, offset in self._next.items() if offset == _NOT_COMPARED}

    def _damage(self, at: int) -> str:
        """What is wrong with the record at log offset `at`."""
        segments = self._log.segments
        if not segments.exists(at):
            return "the segment is missing"
        size = int.from_bytes(segments.read(at, _SIZE_BYTES), "big", signed=True)
        if not self._log.can_be_record(at, size):
            return f"no record has a length of {size}"
        try:
            record = decode_record(segments.read(at, size), "")
        except CorruptRecord as error:
            return str(error).removeprefix(": ").partition(";")[0]
        if record.physical_offset != at:
            return f"the record names log offset {record.physical_offset}"
        return f"{record.topic!r} cannot be a topic"

    def _resume(self, at: int, end: int) -> int:
        """Where to go on: at the next record that a queue knows, or at the next segment."""
        following = next((start for start in self._log.segments.starts() if start > at), end)
        if not self._log.segments.exists(at):
            return min(end, following)
        known = (self._record_after(name, at, end) for name in self._queues)
        return min(end, following, *(offset for offset in known if offset > at))

    def _record_after(self, name: QueueName, at: int, end: int) -> int:
        queue = self._queues[name]
        low = queue.first()
        high = max_offset = self._max_offset(name, end)
        try:
            while low < high:
                middle = (low + high) // 2
                if queue.entries(middle, middle + 1)[0]["physical_offset"] <= at:
                    low = middle + 1
                else:
                    high = middle
            return int(queue.entries(low, low + 1)[0]["physical_offset"]) if low < max_offset else end
        except OffsetLost:  # one of its files is missing
            return end

    def _place(self, at: int) -> str:
        start = at - at % self._log.segments.size
        return f"{self._log.segments.path(start).relative_to(self._root)} @ {at - start}"

    # --- the queues ------------------------------------------------------------------------------------

    def _open_queues(self) -> None:
        """Those whose files have wrong names or lengths, or holes, are a finding, and not compared."""
        for name in self._all_queues.existing():
            queue = self._all_queues.of(*name)
            self.report.queues += 1
            try:
                queue.check()
            except CorruptStore as error:
                self.add(_name(name), str(error).partition(";")[0], f"move the queue's folder away, then {_REPAIR}")
                self._next[name] = _NOT_COMPARED
            else:
                self._queues[name] = queue

    def _stands(self, topic: str, queue_id: int, offsets: Ints, entries: Entries) -> bool:
        """Whether one record stands in a light queue where it says so, or should: a client may have made it up."""
        first, name = int(offsets[0]), (topic, queue_id)
        offset, size, _ = self._all_queues.of(*name).entries_left(first, first + 1)[0].item()
        if size:
            return bool(offset == entries["physical_offset"][0])
        return first == self._next.get(name, first if self._log.min_offset() else 0)

    def _compare(self, chunk: LogChunk, name: QueueName, offsets: Ints, entries: Entries) -> None:
        """Compare a queue's consecutive records in a chunk with its entries; without those of an older life."""
        life_begin = self._life_begin(name)
        born = int(np.searchsorted(entries["physical_offset"].astype(np.int64), life_begin))
        if born and offsets[born - 1] >= self._queues[name].first():  # it went back; or else a file of it is missing
            self._reborn[name[0]] = min(life_begin, self._reborn.get(name[0], life_begin))
            offsets, entries = offsets[born:], entries[born:]
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
        """See `log_end.life_begin`; 0 of a queue that is not there, or not compared."""
        if name not in self._life_begins:
            self._life_begins[name] = life_begin(self._log, self._queues[name]) if name in self._queues else 0
        return self._life_begins[name]

    def _found(self, chunk: LogChunk, name: QueueName, first: int, expected: Entries) -> tuple[Entries, Entries]:
        """The queue's entries from `first` on, and what they have to be.

        Zeros where it has no file, what is expected where retention took it.
        """
        if name not in self._queues:  # there is none, or a broker made it meanwhile
            self._queues[name] = self._all_queues.of(*name)
            self._last_at[name] = 0
        if name in self._last_at:
            self._last_at[name] = int(expected["physical_offset"][-1])
        found = self._queues[name].entries_left(first, first + len(expected))
        gone = (found["size"] == 0) & (expected["physical_offset"] < self._log.min_offset())
        found[gone] = expected[gone]
        return found, with_delivery_times(chunk, name[0], expected, found)

    def _max_offset(self, name: QueueName, end: int) -> int:
        """Of a queue; where an entry is damaged that of its records, with which it was compared."""
        try:
            return self._queues[name].max_offset(end)
        except CorruptSegment:
            return max(self._next.get(name, 0), self._queues[name].first())

    def _check_rest(self, name: QueueName, queue: ConsumeQueue, end: int) -> None:
        """Entries before the first and behind the last record of a queue."""
        max_offset = self._max_offset(name, end)
        try:
            min_offset = queue.min_offset(self._log.min_offset(), max_offset)
        except CorruptSegment:  # as was found out by its records
            min_offset = self._begin.get(name, max_offset)
        begin, stop = self._begin.get(name, max_offset), self._next.get(name, min_offset)
        if min_offset < min(begin, max_offset):
            self._note(name, _NO_RECORD, min_offset, min(begin, max_offset) - min_offset)
        stop = max(stop, begin, min_offset)
        if max_offset > stop:
            self._note(name, _NO_RECORD, stop, max_offset - stop)
        for index, record in islice(misplaced(self._log, self._all_queues, name, min(begin, max_offset), stop, end), 1):
            self._is_damaged = True
            self.add(f"{_name(name)}, offset {index}", f"{place_of(record)}, and no other entry knows it", _COPY)

    def _note(self, name: QueueName, what: str, first: int, count: int, example: str = "") -> None:
        run = self._runs.setdefault((name, what), _Run(first, 0, example))
        run.count += count

    def _report_runs(self) -> None:
        for (name, what), run in self._runs.items():
            if name in self._last_at and self._last_at[name] < self._reborn.get(name[0], 0):
                continue  # the queue ended with an older life of its topic
            example = f"; {run.example}" if run.example else ""
            remedy = _COPY if what == _TWICE or (what == _NO_RECORD and self._is_damaged) else _REPAIR
            self.add(f"{_name(name)}, offset {run.first}", what.format(count=f"{run.count:,}") + example, remedy)

    # --- behind the end --------------------------------------------------------------------------------

    def _behind(self, end: int) -> list[str]:
        """Where log and queues have something behind the end."""
        found = [self._place(at) for at in self._left_in_log(end)]
        for name, queue in self._queues.items():
            at = queue.stale(max(self._max_offset(name, end), self._next.get(name, 0)))
            found += [] if at is None else [f"{_name(name)}, offset {at}"]
        return found

    def _left_in_log(self, end: int) -> list[int]:
        """Log offset of the first byte behind the end that is not zero, if any."""
        segments = self._log.segments
        found = [segments.first_not_zero(end, start + segments.size) for start in segments.starts()[-1:]]
        return [at for at in found if at is not None]


def _name(name: QueueName) -> str:
    return f"topic {name[0]}, queue {name[1]}"


def _fields(entry: np.void) -> str:
    return f"{entry['size']} bytes at log offset {entry['physical_offset']}, tags code {entry['tags_code']}"
