"""Append records: acquire the lock, write, publish. Undo an append whose process died.

The order of the steps makes an append atomic (see `published_end`): announce and write records, piece by piece; flush
them if asked; write queue entries and keys; publish once.

After a crash of the machine, the log has a flushed append completely or not at all: recovery stops at the first invalid
record, and the size of an append's first record is written last, after the other bytes were synced. Some readers follow
the log in the same way, so an append of several pieces is always written so.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from store.append.locks import StoreLock
from store.append.placing import AppendResult, NextOffsets, Placed, Result, Where, place_few, place_many
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog, Stretches
from store.disk.consume_queues import ConsumeQueues, QueueName
from store.disk.dispatch import walk
from store.disk.index import Index
from store.disk.queues_in_log import Ranges, UnflushedEntries, ranges_of
from store.format.layout import CQ_ENTRY
from store.format.records import EncodedRecord, EncodedRecords, as_columns
from store.model.errors import MessageRefused, UnknownTopic

FAR_MS = 3_600_000  # clocks are rarely set back by more
Condition = Callable[[], bool]
Piece = EncodedRecords | list[EncodedRecord]
_Piece = TypeVar("_Piece")


class Appender:
    def __init__(self, lock: StoreLock, tail: LogTail, *, sync_flush: bool) -> None:
        self._lock = lock
        self._tail = tail
        self._sync_flush = sync_flush
        self._group_commit = GroupCommit(lock, self._append_waiting)

    def append(
        self, pieces: Iterable[Piece], *, flush: bool = False, unless: Condition | None = None
    ) -> AppendResult | None:
        """Append the records of all pieces atomically. If this raises an error, nothing is published.

        The first two pieces are encoded before the lock is acquired, so that short appends hold it only briefly.

        flush: sync the records before publishing them. unless: called under the lock before the first write. If it
        returns true, nothing is written, and the result is None.

        Raises `StoreFull`, `MessageRefused`, `FlushFailed`, `UnknownTopic` if a topic was deleted concurrently, and any
        error of the iterator.
        """
        following = iter(pieces)
        begun = list(islice(following, 2))
        if not begun:
            return AppendResult.concatenate([])
        several = len(begun) > 1
        if isinstance(begun[0], list) and not (several or flush or unless):
            return AppendResult.of(self.append_few(begun[0]))

        with self._lock.held():
            self._tail.repair()
            if unless is not None and unless():
                return None
            flushed = flush or self._sync_flush
            hidden = several or (flushed and len(begun[0]) > 1)
            columns = map(as_columns, chain(begun, following))
            appended = self._tail.write(place_many, columns, flush=flushed, hidden=hidden)
            self._tail.publish(appended)
            return AppendResult.concatenate(appended.results)

    def append_few(self, records: Sequence[EncodedRecord]) -> list[Where]:
        """Append at least one record, together with the records of other waiting threads. Raises as `append`."""
        return self._group_commit.append(records)

    def repair(self) -> None:
        """Undo an append whose process died, see `LogTail.repair`. The caller must hold the lock."""
        self._tail.repair()

    def _append_waiting(self, waiting: list[WaitingAppend]) -> None:
        self._tail.repair()
        records = [record for each in waiting for record in each.records]
        flush = self._sync_flush
        appended = self._tail.write(place_few, (records,), flush=flush, hidden=flush and len(records) > 1)
        try:
            self._tail.publish(appended)
        finally:
            if self._tail.is_published(appended):
                results = iter(appended.results[0])
                # Set the results even if an interrupt follows the publication: a thread without a result appends again.
                for each in waiting:
                    each.result = list(islice(results, len(each.records)))


@dataclass(eq=False, slots=True)
class WaitingAppend:
    """The records of one waiting thread. result: set if and only if the append was published."""

    records: Sequence[EncodedRecord]
    result: list[Where] | None = None


class GroupCommit:
    """Combines small appends of several threads: the thread that acquires the lock appends for all of them.

    Each thread's append is atomic and gets its own result or error.
    """

    def __init__(self, lock: StoreLock, append: Callable[[list[WaitingAppend]], None]) -> None:
        """append: called under the lock. It sets all results, or raises and sets none."""
        self._lock = lock
        self._append = append
        self._waiting: dict[WaitingAppend, None] = {}  # ordered; each change is one atomic call

    def append(self, records: Sequence[EncodedRecord]) -> list[Where]:
        self._lock.must_be_open()  # first: another thread may append these records, then close the store
        own = WaitingAppend(records)
        self._waiting[own] = None
        try:
            since = time.monotonic()
            with self._lock.threads:
                if own.result is None:
                    holding = self._lock.holding(since)
                    try:
                        next(holding)
                        self._append_all(own)
                    finally:  # Python can raise an interrupt between the end of a `with` block and its exit in Python
                        holding.close()
        finally:
            self._waiting.pop(own, None)
        assert own.result is not None
        return own.result

    def _append_all(self, own: WaitingAppend) -> None:
        self._waiting.pop(own, None)
        taken = [own]
        for each in list(self._waiting):
            if self._waiting.pop(each, own) is None:  # else its thread gave up concurrently
                taken.append(each)
        try:
            self._append(taken)
        except (MessageRefused, UnknownTopic):  # one thread's records are at fault: each thread retries alone
            if len(taken) == 1:
                raise
            self._append([own])


class _Appended(NamedTuple, Generic[Result]):
    begin: int
    end: int
    ranges: Ranges
    next_offsets: NextOffsets
    results: list[Result]


class LogTail:
    """The end of the log, queues and index, where appends write. The caller must hold the lock."""

    def __init__(
        self,
        published: PublishedEnd,
        log: CommitLog,
        index: Index,
        queues: ConsumeQueues,
        unflushed: UnflushedEntries,
        finish_deletion: Callable[[], None],
    ) -> None:
        """finish_deletion: completes a topic deletion whose process died."""
        self._published_end = published
        self._log = log
        self._index = index
        self._queues = queues
        self._unflushed = unflushed
        self._finish_deletion = finish_deletion
        self._seen_end = published.confirm_offset
        self._next_offsets: NextOffsets | None = None
        self._used: dict[QueueName, int] = {}  # ends of queues that this wrote to
        self._deletions = 0  # when `_used` was last cleared

    def write(
        self,
        place: Callable[[CommitLog, _Piece, int, NextOffsets, int], tuple[Placed[Result], Stretches]],
        pieces: Iterable[_Piece],
        *,
        flush: bool,
        hidden: bool,
    ) -> _Appended[Result]:
        """Write pieces after the published end, without publishing them.

        hidden: write the size of the first record last.
        """
        begin = end = self._published_end.confirm_offset
        next_offsets = self._known_next_offsets(begin)
        last = self._published_end.store_timestamp
        store_timestamp = _store_time(last)
        if store_timestamp < last:
            self._published_end.note_times_from(begin)
        written: list[Placed[Result]] = []
        recording_failure = self._published_end.recording_failure()
        for records in pieces:  # outside of `recording_failure`: encoding a piece may flush another store
            placed, stretches = place(self._log, records, end, next_offsets, store_timestamp)
            self._published_end.announce(placed.end, store_timestamp)
            with recording_failure:
                self._log.write(stretches, begin, hidden=placed.head[0] if hidden and end == begin else None)
            written.append(placed)
            end = placed.end
        with recording_failure:
            self._finish_records(written, end, flush=flush, hidden=hidden)
            ranges = self._write_entries(written)
        return _Appended(begin, end, ranges, next_offsets, [placed.result for placed in written])

    def publish(self, appended: _Appended[Result]) -> None:
        begin, end = appended.begin, appended.end
        if not self._index.is_enabled:
            self._published_end.note_keys_from(end)
        self._published_end.publish(end)
        self._seen_end = end
        self._unflushed.note(begin, end, appended.ranges)
        for name, (_, stop) in appended.ranges.items():
            self._used[name] = stop
        appended.next_offsets.confirm_offset = end
        self._next_offsets = appended.next_offsets

    def is_published(self, appended: _Appended[Result]) -> bool:
        return self._published_end.confirm_offset == appended.end

    def repair(self) -> None:
        """Undo an append whose process died, and complete a topic deletion whose process died.

        The announced bytes of the append are zeroed, and its queue entries and keys dropped. Otherwise later appends
        would move the confirm offset past them: then a stale entry would count, and a stale record would be read. The
        log is changed last: if this process died before, RocketMQ would otherwise take the first entry of an empty
        queue file for a message.

        Call this before each append, because the append may be to a topic whose deletion is not complete.
        """
        self._published_end.check_device()
        if self._published_end.deletions % 2:
            self._finish_deletion()
        confirm, announced = self._published_end.confirm_offset, self._published_end.announced_end
        if confirm != self._seen_end:
            self._must_be_newer()
        self._seen_end = confirm
        if announced <= confirm:
            return
        with self._published_end.recording_failure():
            self._undo(confirm, announced)
        # It tells a reader that saw part of the append that it was undone.
        self._published_end.announce(confirm, self._published_end.store_timestamp + 1)

    def _undo(self, confirm: int, announced: int) -> None:
        # Entries are written after all records.
        for name in ranges_of(self._log, confirm, announced) or self._queues.existing():
            self._queues.of(*name).truncate(self._queues.of(*name).max_offset(confirm))
        self._index.truncate(confirm)
        self._log.clear(confirm, announced)
        self._log.segments.flush_names()

    def _must_be_newer(self) -> None:
        behind = self._published_end.written_end
        if self._log.is_written_at(behind) and next(walk(self._log, behind), None) is not None:
            raise self._published_end.is_older()

    def _finish_records(self, written: list[Placed[Result]], end: int, *, flush: bool, hidden: bool) -> None:
        if flush:
            # Recovery walks the log from the flushed offset.
            self._log.segments.flush(self._published_end.flushed_offset, end)
        if hidden:
            self._log.show(*written[0].head, flush=flush)
        if flush:
            self._published_end.check_device()  # the kernel reports a failure to one of several descriptors only

    def _write_entries(self, written: list[Placed[Result]]) -> Ranges:
        ranges: Ranges = {}
        for placed in written:
            for name, (start, entries) in placed.entries.items():
                if not self._queues.of(*name).write(start, entries):
                    self._published_end.note_loss()
                ranges[name] = ranges.get(name, (start,))[0], start + len(entries) // CQ_ENTRY.itemsize
            self._index.append(*placed.keys)
        return ranges

    def _known_next_offsets(self, confirm: int) -> NextOffsets:
        # cleared, so that a failed append leaves no wrong offsets
        known, self._next_offsets = self._next_offsets, None
        deletions = self._published_end.deletions
        if known is not None and (known.confirm_offset, known.deletions) == (confirm, deletions):
            return known
        if deletions != self._deletions:
            self._used, self._deletions = {}, deletions
        return NextOffsets(self._queues, confirm, deletions, self._used)


def _store_time(last: int) -> int:
    """Return the store time (ms since 1970) of an append. last: the store time of the append before.

    If the clock was set back, this returns `last`, because a search by time needs ascending times. If `last` is far
    ahead, the clock was wrong when it was stored, and this returns the present time.
    """
    now = int(time.time() * 1000)
    if last - now <= FAR_MS:
        return max(now, last)
    warnings.warn(
        f"The store time of the newest message is {(last - now) / 1000:,.0f} s after the present time of this "
        "machine. This message is stored with the present time. Check the machine's clock, and set it if it is wrong",
        RuntimeWarning,
        stacklevel=2,
    )
    return now
