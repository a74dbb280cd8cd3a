"""Recovery: find the log's end, and rebuild queues and index from the log.

The log ends before its first bad record. If the log is known to be on the device beyond that record, recovery raises an
error, because cutting the log there would lose sound records.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from store.append.log_end import failed_append_start, is_message, last_segment
from store.append.published_end import PublishedEnd, published_end_of
from store.disk.checkpoint import read_checkpoint, read_index_checkpoint
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues, QueueName
from store.disk.dispatch import LogChunk, all_entries, index_keys, walk, with_delivery_times
from store.disk.index import Index
from store.disk.queue_ends import QueueEnds
from store.disk.queues_in_log import QueueInLog, QueuesInLog
from store.disk.topic_table import TopicTable
from store.disk.topics import Topics
from store.format.columns import LAST_MS
from store.format.layout import CHECKPOINT_MARGIN_MS, CONSUME_QUEUE_DIR, QUEUE_ENDS_FILE
from store.format.record_view import Ints
from store.model.errors import CorruptRecord, CorruptSegment, CorruptStore
from store.model.integers import counted
from store.upkeep.findings import misplaced, place_of
from store.upkeep.plans import Plan, Point, SoundIndexFiles

_REMEDY = "Restore the segment from a copy, or open the store with read_only=True to read the undamaged messages"


class RecoveryDecision(NamedTuple):
    """The changes that a recovery will write.

    begin, end: log offsets of the walk.
    queues: the ranges and entries of queues according to the log; later entries are cut.
    index_files: the files to keep.
    keys_added_from: log offset from which keys are added to the index.
    times_from, keys_from: see `PublishedEnd`.
    """

    begin: int
    end: int
    store_timestamp: int
    queues: dict[QueueName, QueueInLog]
    index_files: list[str]
    keys_added_from: int
    times_from: int
    keys_from: int


class _Times:
    def __init__(self, begin: int) -> None:
        self._from, self._last = begin, 0

    def follow(self, offsets: Ints, times: Ints) -> None:
        """Add the store times of the next records.

        offsets: log offsets. times: store times, ms. Both int64 of shape (n,), n > 0.
        """
        back = np.flatnonzero(np.diff(times, prepend=self._last) < 0)
        self._from = int(offsets[back[-1]]) if len(back) else self._from
        self._last = int(times[-1])

    def ascend_from(self, end: int, least: int) -> int:
        """Return the log offset from which store times ascend.

        This is the walk's end if the record there may have an earlier time than the last record before it.
        least: the earliest store time (ms) that the record at `end` can have.
        """
        return self._from if self._last <= least else end


class Recovery:
    """Makes log, queues and index of a directory consistent. Call `decide`, then `carry_out`, as the only writer."""

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        index: Index,
        queue_file_size: int,
    ) -> None:
        self._root = root
        self._log = log
        self._index = index
        self._was = published_end_of(root)
        self._is_there = TopicTable(root).is_there
        self._deletions = Topics(root).deletions()
        self._queues = ConsumeQueues(root, queue_file_size, writable=True)
        self._existing_queues = self._queues.existing()

    def decide(self, plan: Plan, ends: Mapping[QueueName, int] = MappingProxyType({})) -> RecoveryDecision:
        """Walk the log by a plan and return the changes. Writes nothing, so a failure leaves the directory unchanged.

        ends: the end of each queue at the flushed offset; used if the plan begins there. Searching a queue for its end
        could take a damaged entry for it, and lose the entries after it.

        Raises `ConfigError` if index files have other sizes, `CorruptStore` if the table of topics is damaged,
        `CorruptSegment`, `CorruptRecord`.
        """
        Topics(self._root).queue_counts()
        segments = self._log.segments
        starts = segments.check()
        first_byte = starts[0] if starts else 0
        begin, trusted = (self._offset(point) for point in plan[:2])
        must_reach(self._log, begin)
        queues = QueuesInLog(self._queues, partial(is_message, self._log), first_byte)
        for name in self._existing_queues:
            queue = self._queues.of(*name)
            queue.check()
            # At the first byte `ends` may be outdated: a broker's retention may have deleted records.
            is_known = plan.begin is Point.FLUSHED and begin > first_byte
            queues.begin(name, ends.get(name, queue.begin) if is_known else queue.max_offset(begin))
        end, times = begin, _Times(begin)
        store_timestamp = 0 if self._was is None else self._was.store_timestamp
        until = trusted if plan.trusted is Point.CONFIRMED else self._refused_from()
        torn_from = trusted if plan.trusted is Point.FLUSHED and self._may_be_torn() else None
        for chunk in walk(self._log, begin, until=until, torn_from=torn_from):
            end = chunk.end
            if len(chunk.records):
                stored = chunk.records.field("store_timestamp")
                store_timestamp = max(
                    store_timestamp, int(stored[stored <= LAST_MS].max(initial=0))
                )  # no CRC covers it
                times.follow(chunk.offsets, stored)
            if not self._follow(queues, chunk, is_all=begin == first_byte):
                return self.decide(plan._replace(begin=Point.FIRST_BYTE))
        if end < trusted:
            raise CorruptRecord(
                f"{segments.directory}: the record at log offset {end} is damaged, although the log was flushed up "
                f"to {trusted}. {_REMEDY}"
            )
        if plan.begin is Point.FIRST_BYTE:
            self._refuse_misplaced(queues.found, end if plan.trusted is Point.LAST_SEGMENT else trusted)
        self._warn_of_cuts(plan, end, queues.found)
        queues.warn_of_passed_over()
        if begin == first_byte > 0:
            self._remember(queues.found)
        queues.leave_out_deleted(self._existing_queues)
        index_files, keys_added_from = _KeptIndex(self._root, self._log, self._index).decide(plan, begin, end)
        known = self._known(begin, end, times.ascend_from(end, store_timestamp), index_files, keys_added_from)
        return RecoveryDecision(begin, end, store_timestamp, queues.found, index_files, keys_added_from, *known)

    def _follow(self, queues: QueuesInLog, chunk: LogChunk, *, is_all: bool) -> bool:
        """Add a chunk's entries to the queues. Return False if earlier entries of a queue may be missing.

        is_all: none can be missing, because the walk began at the first byte of the log.
        """
        for topic, queue_id, offsets, entries, is_certain in all_entries(chunk, self._deletions):
            name, at = (topic, queue_id), int(entries["physical_offset"][0])
            if not self._is_there(topic, at) or queues.add(name, offsets, entries):
                continue
            if not is_all:
                return False
            if is_certain:
                raise self._out_of_step(name, int(offsets[0]), queues.found[name], at)
            queues.pass_over(name, int(offsets[0]), at)
        return True

    def _refuse_misplaced(self, found: Mapping[QueueName, QueueInLog], safe: int) -> None:
        """Raise an error if a record before `safe` names a wrong queue: a rebuild would lose its message."""
        for name in self._existing_queues:
            said = found[name].begin, found[name].max_offset
            for index, record in misplaced(self._log, self._queues, name, *said, safe):
                topic, queue_id = name
                folder = f"{CONSUME_QUEUE_DIR}/{topic}/{queue_id}"
                raise CorruptRecord(
                    f"{self._log.segments.directory}: {place_of(record)}, but topic {topic}, queue {queue_id} has "
                    f"it at offset {index}. {_REMEDY}. If the queue is wrong, move {folder} out of the store instead"
                )

    def _warn_of_cuts(self, plan: Plan, end: int, found: Mapping[QueueName, QueueInLog]) -> None:
        """Warn of cuts that neither a crash nor a killed writer explains."""
        segments = self._log.segments
        start = end - end % segments.size
        if plan.closed_cleanly and segments.first_not_zero(end, start + segments.size) is not None:
            what = (
                f"{segments.path(start)}: there is no sound record from byte {end - start} on (log offset {end}), "
                "although the last writer closed the store. These bytes are truncated. If a writer was killed, it "
                "may have left them. Otherwise messages are damaged: restore the file from a copy"
            )
        elif (plan.closed_cleanly or plan.trusted not in (Point.FLUSHED, Point.CONFIRMED)) and (
            known := [name for name in self._existing_queues if self._knows_more(name, found[name].max_offset, end)]
        ):
            (topic, queue_id), offset = known[0], found[known[0]].max_offset
            what = (
                f"{segments.directory}: sound records end at log offset {end}, but {len(known)} queues have entries "
                f"after it, which are truncated: topic {topic}, queue {queue_id} from offset {offset} on. A machine "
                "crash may have lost the records. If there was none, the log is damaged, or segments are missing: "
                "restore them from a copy"
            )
        else:
            return
        warnings.warn(what, RuntimeWarning, stacklevel=2)

    def _knows_more(self, name: QueueName, max_offset: int, end: int) -> bool:
        queue = self._queues.of(*name)
        left = queue.stale(max_offset)
        return left is not None and bool(queue.entries_or_zeros(left, left + 1)["physical_offset"][0] >= end)

    def _known(
        self, begin: int, end: int, times_from: int, index_files: list[str], keys_added_from: int
    ) -> tuple[int, int]:
        """Return `times_from` and `keys_from`.

        Earlier values still hold if nothing was appended after the last flush. Otherwise a broker may have appended
        without completing the index.
        """
        keys_from = keys_added_from if self._index.is_enabled and not index_files else end
        if self._was is not None and begin == end:
            if self._was.times_from is not None:
                times_from = min(times_from, self._was.times_from)
            if self._was.keys_from is not None and self._index.is_enabled:
                keys_from = min(keys_from, self._was.keys_from)
        return times_from, keys_from

    def _remember(self, found: dict[QueueName, QueueInLog]) -> None:
        """Take the ends of queues without records from the file of queue ends."""
        ends, topics = QueueEnds.read(self._root), Topics(self._root).queue_counts()
        bare = [(topic, n) for topic, count in topics.items() for n in range(count) if (topic, n) not in found]
        if ends is None and bare and (file := self._root / QUEUE_ENDS_FILE).exists():
            queues = counted(len(bare), "queue")
            raise CorruptStore(
                f"{file}: this file is damaged. Only this file records the ends of {queues} without files, such as "
                f"topic {bare[0][0]}, queue {bare[0][1]}. Restore it from a copy. Without a copy, delete it: "
                "these queues then begin at offset 0, even if they had messages before"
            )
        for name, end in ends.of.items() if ends is not None else ():
            queue = found.get(name)
            if name[0] in topics and (queue is None or (queue.max_offset < end and not queue.lives)):
                found[name] = QueueInLog(end, is_cut=True, is_remembered=True)

    def carry_out(self, decision: RecoveryDecision) -> None:
        """Execute a decision. Raises `StoreFull`.

        The published end is written last, after log, queues and index. If this process dies before that, the next
        recovery decides the same. Entries are overwritten in place, so that readers miss none.
        """
        restarted = [name for name, it in decision.queues.items() if it.begin < self._queues.of(*name).begin]
        if restarted:
            Topics(self._root).restarted(restarted)
            self._queues.forget()
        published = published_end_of(self._root, writable=True)
        if published is None:
            self._write(decision)
            return
        with closing(published), published.recording_failure():
            if published.has_failed:
                self._log.segments.rewrite(published.flushed_offset, published.written_end)
                for name, queue in decision.queues.items():
                    # First: readers have the files open, and would see rejected entries once the log grows.
                    self._queues.of(*name).truncate(queue.max_offset)
                    self._queues.of(*name).rewrite(queue.begin)
            published.note_keys_from(decision.end)  # readers must not search an incomplete index
            self._write(decision)

    def _write(self, decision: RecoveryDecision) -> None:
        segments, end, queues, first_byte = self._log.segments, decision.end, decision.queues, self._log.min_offset()
        self._index.keep(decision.index_files)
        files_end = max(segments.starts(), default=0) + segments.size
        for name, queue in queues.items():
            if queue.is_remembered:
                self._queues.of(*name).begin_empty(queue.max_offset)
            elif queue.begin > self._queues.of(*name).begin and (queue.is_cut or decision.begin == first_byte):
                self._queues.of(*name).begin_at(queue.begin, first_byte)
        for chunk in walk(self._log, decision.keys_added_from, until=decision.begin, check_crc=False):
            self._index.append(*index_keys(chunk, tags=self._index.has_tags))
        for chunk in walk(self._log, decision.begin, until=end, check_crc=False):
            self._index.append(*index_keys(chunk, tags=self._index.has_tags))
            for topic, queue_id, offsets, entries, _ in all_entries(chunk, self._deletions):
                name = topic, queue_id
                if name not in queues:
                    continue
                rows = queues[name].counting(offsets, entries)
                if rows.start < rows.stop:
                    first, target = int(offsets[rows.start]), self._queues.of(*name)
                    found = target.entries_or_zeros(first, first + rows.stop - rows.start)
                    target.write(first, with_delivery_times(chunk, topic, entries[rows], found))
        segments.zero(end, files_end)
        segments.flush(decision.begin, files_end)
        segments.flush_names()
        for name, queue in queues.items():
            self._queues.of(*name).truncate(queue.max_offset)
            self._queues.of(*name).flush(queue.begin, queue.max_offset)
            # Finish an interrupted clean-up: RocketMQ expects a queue's first valid entry in its first file.
            self._queues.of(*name).expire(first_byte)
        self._index.truncate(end)
        known = decision.times_from, decision.keys_from
        PublishedEnd.create(self._root, end, decision.store_timestamp, *known)
        ends = {name: queue.max_offset for name, queue in queues.items() if queue.max_offset}
        QueueEnds(end, ends).write(self._root, self._index)

    def _out_of_step(self, name: QueueName, offset: int, queue: QueueInLog, at: int) -> CorruptRecord:
        why = None
        if 0 <= offset < queue.max_offset:
            why = "the topic was deleted and created again"
        elif not queue.lives and self._log.min_offset():
            why = "the queue's files are older than the log's first record"
        topic, queue_id = name
        folder = f"{CONSUME_QUEUE_DIR}/{topic}/{queue_id}"
        or_move = f". If {why}, move {folder} out of the store instead" if why else ""
        return CorruptRecord(
            f"{self._log.segments.directory}: the record at log offset {at} says topic {topic}, queue {queue_id}, "
            f"offset {offset}, but the queue's next offset is {queue.max_offset}. {_REMEDY}{or_move}"
        )

    def _may_be_torn(self) -> bool:
        return self._was is not None and (self._was.has_failed or not self._was.same_boot)

    def _refused_from(self) -> int | None:
        return None if self._was is None else failed_append_start(self._root, self._log, self._was)

    def _offset(self, point: Point) -> int:
        first_byte = self._log.min_offset()
        if point in (Point.FLUSHED, Point.CONFIRMED):
            assert self._was is not None, "no plan names these without it"
            return max(self._was.confirm_offset if point is Point.CONFIRMED else self._was.flushed_offset, first_byte)
        if point is Point.LAST_SEGMENT:
            return last_segment(self._log)
        if point is Point.CHECKPOINT:
            return last_segment(self._log, stored_by=(read_checkpoint(self._root) or 0) - CHECKPOINT_MARGIN_MS)
        return first_byte


class _KeptIndex:
    def __init__(self, root: Path, log: CommitLog, index: Index) -> None:
        self._root = root
        self._log = log
        self._index = index

    def decide(self, plan: Plan, begin: int, end: int) -> tuple[list[str], int]:
        """Return the files to keep, and the log offset from which keys are added again.

        Keys can only be added after the last file. If earlier keys are missing, as after a broker's recovery, no file
        is kept.
        """
        names = self._trusted(plan.filed)
        if begin == self._log.min_offset():  # drop zeroed files: all keys would be added to the last one again
            names = [name for name in names if self._index.spans([name])]
        spans, first_byte = self._index.spans(names), self._log.min_offset()
        if (plan.filed is SoundIndexFiles.ALL and begin > first_byte) or not self._index.is_enabled:
            return names, begin
        if begin == first_byte and not (self._index.are_consistent(names, end) and self._have_all_keys(spans)):
            names, spans = [], []
        return names, min(begin, max(first_byte, spans[-1][1] if spans else 0))

    def _trusted(self, filed: SoundIndexFiles) -> list[str]:
        if filed is SoundIndexFiles.ALL:
            return self._index.names()
        if filed is SoundIndexFiles.FULL:
            return self._index.trusted()
        return self._index.trusted(read_index_checkpoint(self._root) if filed is SoundIndexFiles.CHECKPOINT else -1)

    def _have_all_keys(self, spans: list[tuple[int, int]]) -> bool:
        """Return whether these files have all keys up to their end, and the log has their last record."""
        at = self._log.min_offset()
        filed = at - 1
        for begin, end in spans:
            for chunk in walk(self._log, at, until=begin, check_crc=False):
                if (index_keys(chunk, tags=False)[1] > filed).any():
                    return False
                at = chunk.end
            if at < begin:
                return False
            at, filed = max(at, end), max(filed, end)
        return not spans or next(walk(self._log, at), None) is not None


def must_reach(log: CommitLog, end: int) -> None:
    """Raise `CorruptSegment` if the segment before log offset `end` is missing or does not begin with a record.

    An append would leave a hole there, and the next recovery would lose all records after the hole.
    """
    start = (end - 1) - (end - 1) % log.segments.size
    if end > log.min_offset() and next(walk(log, start, until=end, check_crc=False), None) is None:
        raise CorruptSegment(
            f"{log.segments.path(start)}: this segment is missing, or empty at its begin, but the log goes up to "
            f"{end}. Restore it from a copy, or open the store with read_only=True to read the other messages"
        )
