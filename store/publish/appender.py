"""One append, from the lock to the publication; and the repair of one whose process died.

The order is the promise (see `published_end`): announce and write records, a piece at a time; flush them if asked;
write queue entries and keys; publish once. If an append fails before the last step, readers see nothing of it, and the
next append undoes it first.

After a crash of the machine, a flushed append is there as a whole or not at all. Recovery walks the log, so the head
of the first record is written last, when the rest is on the device: without it the log ends there. An append of several
pieces is written in the same way, because some readers walk the log.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from store.format.layout import CQ_ENTRY
from store.format.records import EncodedRecord, EncodedRecords, as_columns
from store.key_index.index import Index
from store.log.commit_log import CommitLog, Stretches
from store.log.consume_queues import ConsumeQueues, QueueName
from store.log.dispatch import walk
from store.log.queues_in_log import Ranges, Unflushed, ranges_of
from store.model.errors import MessageRefused, UnknownTopic
from store.publish.locks import StoreLock
from store.publish.placing import AppendResult, NextOffsets, Placed, Result, Where, place_few, place_many
from store.publish.published_end import PublishedEnd

FAR_MS = 3_600_000  # clocks are rarely set back by more
Condition = Callable[[], bool]
Piece = EncodedRecords | list[EncodedRecord]  # many, or a few
_Piece = TypeVar("_Piece")


class Appender:
    """Appends records to one store. Threads and processes that append take turns by the lock."""

    def __init__(self, lock: StoreLock, tail: LogTail, *, sync_flush: bool) -> None:
        self._lock = lock
        self._tail = tail
        self._sync_flush = sync_flush
        self._group_commit = GroupCommit(lock, self._append_waiting)

    def append(
        self, pieces: Iterable[Piece], *, flush: bool = False, unless: Condition | None = None
    ) -> AppendResult | None:
        """Append the records of all pieces under one publication; without any, do nothing.

        The first two pieces are made before the lock is taken, so that short appends do not hold it for long. A single
        piece of a few messages goes through `append_few`. flush: they are on the device when this returns, all or none,
        as with `sync_flush`. unless: called under the lock, before anything is written; if it returns true, nothing is
        written, and the result is None.

        Raises `StoreFull`, `MessageRefused`, `FlushFailed`, `UnknownTopic` if a topic was deleted since its records
        were made, and any error of making a piece; nothing is visible then.
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
        """Append a few records, at least one, under one publication with those of other threads that wait.

        Raises `StoreFull`, `MessageRefused`, `FlushFailed`, `UnknownTopic`; nothing is visible then.
        """
        return self._group_commit.append(records)

    def repair(self) -> None:
        """`LogTail.repair`. Call under the lock."""
        self._tail.repair()

    def _append_waiting(self, waiting: list[WaitingAppend]) -> None:
        """Append the records of several threads, and set their results. Call under the lock. Raises as `append`.

        An interrupt after the publication must not keep the results from the other threads: they would append again.
        """
        self._tail.repair()
        records = list(chain.from_iterable(each.records for each in waiting))
        flush = self._sync_flush
        appended = self._tail.write(place_few, (records,), flush=flush, hidden=flush and len(records) > 1)
        try:
            self._tail.publish(appended)
        finally:
            if self._tail.is_published(appended):
                results = iter(appended.results[0])
                for each in waiting:
                    each.result = list(islice(results, len(each.records)))


@dataclass(eq=False, slots=True)
class WaitingAppend:
    """The append of one thread. result: set when, and only when, readers see it."""

    records: Sequence[EncodedRecord]
    result: list[Where] | None = None


class GroupCommit:
    """Small appends of several threads under one publication: the thread that gets the lock appends for all that wait.

    A turn takes about as long for the messages of ten threads as for one. Each append is whole, and its thread gets its
    result or error, as if it had been alone.
    """

    def __init__(self, lock: StoreLock, append: Callable[[list[WaitingAppend]], None]) -> None:
        """append: called under the lock. It sets each result, or raises and sets none."""
        self._lock = lock
        self._append = append
        self._waiting: dict[WaitingAppend, None] = {}  # ordered, and each change is one atomic call

    def append(self, records: Sequence[EncodedRecord]) -> list[Where]:
        """Append records, in this thread's turn or in another's. Raises as `StoreLock.held`, and the append."""
        self._lock.must_be_open()  # not later: another thread may append these before it closes the store
        own = WaitingAppend(records)
        self._waiting[own] = None
        try:
            with self._lock.among_threads() as since:
                if own.result is None:
                    with self._lock.among_processes(since):
                        self._append_all(own)
        finally:
            self._withdraw(own)
        assert own.result is not None
        return own.result

    def _append_all(self, own: WaitingAppend) -> None:
        self._withdraw(own)
        taken = [own, *(each for each in list(self._waiting) if self._withdraw(each))]
        try:
            self._append(taken)
        except (MessageRefused, UnknownTopic):  # of one of them: the other threads try again, each alone
            if len(taken) == 1:
                raise
            self._append([own])

    def _withdraw(self, append: WaitingAppend) -> bool:
        """Remove an append from those that wait, and return whether it did wait."""
        return self._waiting.pop(append, append) is None


class _Appended(NamedTuple, Generic[Result]):
    """An append whose records, queue entries and keys are written to log bytes [begin, end), and not published."""

    begin: int
    end: int
    ranges: Ranges
    next_offsets: NextOffsets
    results: list[Result]


class LogTail:
    """Writes behind the published end: log, queues and index. Call its methods under the lock."""

    def __init__(
        self,
        published: PublishedEnd,
        log: CommitLog,
        index: Index,
        queues: ConsumeQueues,
        unflushed: Unflushed,
        finish_deletion: Callable[[], None],
    ) -> None:
        """finish_deletion: finishes the deletion of a topic whose process died."""
        self._published_end = published
        self._log = log
        self._index = index
        self._queues = queues
        self._unflushed = unflushed
        self._finish_deletion = finish_deletion
        self._seen_end = published.confirm_offset
        self._next_offsets: NextOffsets | None = None
        self._used: dict[QueueName, int] = {}  # the end of each queue that this wrote to
        self._deletions = 0  # their number when `_used` was begun

    def write(
        self,
        place: Callable[[CommitLog, _Piece, int, NextOffsets, int], tuple[Placed[Result], Stretches]],
        pieces: Iterable[_Piece],
        *,
        flush: bool,
        hidden: bool,
    ) -> _Appended[Result]:
        """Write everything of an append but its publication. hidden: write the head of its first record last."""
        begin = end = self._published_end.confirm_offset
        next_offsets = self._known_next_offsets(begin)
        last = self._published_end.store_timestamp
        store_timestamp = _store_time(last)
        if store_timestamp < last:
            self._published_end.note_times_from(begin)
        written: list[Placed[Result]] = []
        recording_failure = self._published_end.recording_failure()
        for records in pieces:  # outside of `recording_failure`: making a piece may flush another store
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
        self._used.update((name, stop) for name, (_, stop) in appended.ranges.items())
        appended.next_offsets.confirm_offset = end
        self._next_offsets = appended.next_offsets

    def is_published(self, appended: _Appended[Result]) -> bool:
        """Return whether an append is published, and nothing behind it."""
        return self._published_end.confirm_offset == appended.end

    def repair(self) -> None:
        """Undo an append whose process died: zero its announced bytes, drop its queue entries and keys. And finish a
        deletion whose process died, before anything is put into a topic of that name.

        Raises `FlushFailed` if a flush ever failed, and `CorruptStore` if the published end is older than the log;
        nothing is undone or appended then.

        Nothing of that append was published. Its bytes must go all the same: later appends move the confirm offset
        over them, and then a stale entry would count and a stale record would parse. The log goes last: without its
        records RocketMQ takes the first entry of an empty queue file for a message, if this process dies here.
        """
        self._published_end.check_device()
        if self._published_end.deletions % 2:
            self._finish_deletion()
        confirm, announced = self._published_end.confirm_offset, self._published_end.announced_end
        if confirm != self._seen_end:  # another process appended
            self._must_be_newer()
        self._seen_end = confirm
        if announced <= confirm:
            return
        with self._published_end.recording_failure():
            self._undo(confirm, announced)
        # With a later time, so that a reader which saw some of it notices that it is undone.
        self._published_end.announce(confirm, self._published_end.store_timestamp + 1)

    def _undo(self, confirm: int, announced: int) -> None:
        # Entries follow the records: if a record is not whole, the append wrote none.
        for name in ranges_of(self._log, confirm, announced) or self._queues.existing():
            self._queues.of(*name).truncate(self._queues.of(*name).max_offset(confirm))
        self._index.truncate(confirm)
        self._log.clear(confirm, announced)
        self._log.segments.flush_names()

    def _must_be_newer(self) -> None:
        """Raises `CorruptStore` if the published end is older than the log."""
        behind = self._published_end.written_end
        if self._log.may_go_on(behind) and next(walk(self._log, behind), None) is not None:
            raise self._published_end.is_older()

    def _finish_records(self, written: list[Placed[Result]], end: int, *, flush: bool, hidden: bool) -> None:
        if flush:
            # Not only our own bytes: recovery walks the log up to them.
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
        """Return those of the last append, if no other process appended or deleted since; else new ones.

        Those of the last append are forgotten until this append is through.
        """
        known, self._next_offsets = self._next_offsets, None
        deletions = self._published_end.deletions
        if known is not None and (known.confirm_offset, known.deletions) == (confirm, deletions):
            return known
        if deletions != self._deletions:
            self._used, self._deletions = {}, deletions
        return NextOffsets(self._queues, confirm, deletions, self._used)


def _store_time(last: int) -> int:
    """Return the store time of an append after one stored at `last`; both ms since 1970.

    It does not step back with the clock, because a search by time counts on that. If `last` is far ahead, the clock was
    wrong then, and all later times would be as wrong: the time steps back, and a search may miss those messages.
    """
    now = int(time.time() * 1000)
    if last - now <= FAR_MS:
        return max(now, last)
    warnings.warn(
        f"the newest message was stored {(last - now) / 1000:,.0f} s later than this machine's clock says now. The "
        "clock was wrong then, or is wrong now: set it if it is wrong now. Messages are stored with its time",
        RuntimeWarning,
        stacklevel=2,
    )
    return now
