"""One append, from the lock to the publication; and the repair of one that died.

The order is the promise (see `published_end`): announce and write records, a piece at a time; flush them if asked;
write queue entries, file keys; publish once. Whatever happens before the last step, readers see nothing of it and the
next append undoes it first.

What is flushed is there as a whole or not at all after a crash of the machine, too, whose recovery walks the log: the
head of the first record, without which the log ends there, is written when all the rest is on the device. So it is
with several pieces that are not flushed, or readers that look at the log would walk over all that there is of them.
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
from store.index.index import Index
from store.log.commit_log import CommitLog, Stretches
from store.log.consume_queues import ConsumeQueues, QueueName
from store.log.dispatch import walk
from store.log.queues_in_log import Ranges, Unflushed, ranges_of
from store.model.errors import MessageRefused, UnknownTopic
from store.publish.locks import StoreLock
from store.publish.placing import AppendResult, NextOffsets, Placed, Result, Where, place_few, place_many
from store.publish.published_end import PublishedEnd


@dataclass(eq=False, slots=True)
class WaitingAppend:
    """What one thread appends. result: set when, and only when, readers see it."""

    records: Sequence[EncodedRecord]
    result: list[Where] | None = None


class Together:
    """The threads of one process that wait for their turn to append to one store."""

    def __init__(self, lock: StoreLock) -> None:
        self._lock = lock
        self._waiting: dict[WaitingAppend, None] = {}  # in their order; each step at it is one of the dictionary

    def append(self, records: Sequence[EncodedRecord], append: Callable[[list[WaitingAppend]], None]) -> list[Where]:
        """Append records, in this thread's turn or in another's. Raises as `StoreLock.held`, and `append`.

        append: the same in all calls. Called under the lock; gives each its result, or raises and gives none to any.
        """
        self._lock.must_be_open()  # not later: another thread may append these before it closes the store
        own = WaitingAppend(records)
        self._waiting[own] = None
        try:
            with self._lock.among_threads() as since:
                if own.result is None:
                    with self._lock.among_processes(since):
                        self._lead(own, append)
        finally:
            self._withdraw(own)
        assert own.result is not None
        return own.result

    def _lead(self, own: WaitingAppend, append: Callable[[list[WaitingAppend]], None]) -> None:
        self._withdraw(own)
        taken = [own, *(each for each in list(self._waiting) if self._withdraw(each))]
        try:
            append(taken)
        except (MessageRefused, UnknownTopic):  # there is no place for one of them: the others try again, by themselves
            if len(taken) == 1:
                raise
            append([own])

    def _withdraw(self, own: WaitingAppend) -> bool:
        """Let it wait no longer; whether it still did."""
        return self._waiting.pop(own, own) is None


FAR_MS = 3_600_000  # more than clocks are set back as a rule
Condition = Callable[[], bool]
Piece = EncodedRecords | list[EncodedRecord]  # many, or a few
_Piece = TypeVar("_Piece")


class _Appended(NamedTuple, Generic[Result]):
    """[begin, end) of the log, which is all there, with its queue entries and keys, and not published yet."""

    begin: int
    end: int
    ranges: Ranges
    next_offsets: NextOffsets
    results: list[Result]


class Appender:
    """Appends records to one store. Any number of them, in any processes and threads, take turns by the lock."""

    def __init__(
        self,
        lock: StoreLock,
        published: PublishedEnd,
        log: CommitLog,
        index: Index,
        queues: ConsumeQueues,
        unflushed: Unflushed,
        finish_deletion: Callable[[], None],
        *,
        sync_flush: bool,
    ) -> None:
        """finish_deletion: called under the lock where a process died that deleted a topic; it ends the deletion."""
        self._lock = lock
        self._published_end = published
        self._log = log
        self._index = index
        self._queues = queues
        self._unflushed = unflushed
        self._finish_deletion = finish_deletion
        self._sync_flush = sync_flush
        self._seen_end = published.confirm_offset
        self._next_offsets: NextOffsets | None = None
        self._given: dict[QueueName, int] = {}  # what these were, of each queue that was put into here
        self._deletions = 0  # up to then
        self._together = Together(lock)

    def append(
        self, pieces: Iterable[Piece], *, flush: bool = False, unless: Condition | None = None
    ) -> AppendResult | None:
        """Append the records of all pieces, one after the other, under one publication; without any, do nothing.

        The first two pieces are made before the lock is taken, so that short ones keep nobody waiting. One of a few
        messages is appended as `append_few` does it. flush: they are on the device when this returns, all or none, as
        with `sync_flush`. unless: asked under the lock, before anything is written; where it is true nothing is, and
        the answer is None.

        Raises `StoreFull`, `MessageRefused`, `FlushFailed`, `UnknownTopic` where a topic was deleted since its records
        were made, and what making a piece raises; nothing is visible then.
        """
        following = iter(pieces)
        begun = list(islice(following, 2))
        if not begun:
            return AppendResult.concatenate([])
        several = len(begun) > 1
        if isinstance(begun[0], list) and not (several or flush or unless):
            return AppendResult.of(self.append_few(begun[0]))

        with self._lock.held():
            self.repair()
            if unless is not None and unless():
                return None
            flushed = flush or self._sync_flush
            hidden = several or (flushed and len(begun[0]) > 1)
            columns = map(as_columns, chain(begun, following))
            appended = self._write(place_many, columns, flush=flushed, hidden=hidden)
            self._publish(appended)
            return AppendResult.concatenate(appended.results)

    def append_few(self, records: Sequence[EncodedRecord]) -> list[Where]:
        """Append a few records, one at least, published together with those of other threads that wait.

        Raises `StoreFull`, `MessageRefused`, `FlushFailed`, `UnknownTopic`; nothing is visible then.
        """
        return self._together.append(records, self._append_together)

    def _append_together(self, waiting: list[WaitingAppend]) -> None:
        """Append what several threads wait for, and give them their results. Call under the lock. Raises as `append`.

        Who is interrupted behind the publication tells the others all the same: they would append theirs again.
        """
        self.repair()
        records = list(chain.from_iterable(each.records for each in waiting))
        flush = self._sync_flush
        appended = self._write(place_few, (records,), flush=flush, hidden=flush and len(records) > 1)
        try:
            self._publish(appended)
        finally:
            if self._published_end.confirm_offset == appended.end:
                self._tell(waiting, appended.results[0])

    def _tell(self, waiting: list[WaitingAppend], results: list[Where]) -> None:
        first = 0
        for each in waiting:
            last = first + len(each.records)
            each.result = results[first:last]
            first = last

    def _write(
        self,
        place: Callable[[CommitLog, _Piece, int, NextOffsets, int], tuple[Placed[Result], Stretches]],
        pieces: Iterable[_Piece],
        *,
        flush: bool,
        hidden: bool,
    ) -> _Appended[Result]:
        begin = end = self._published_end.confirm_offset
        next_offsets = self._take_next_offsets(begin)
        last = self._published_end.store_timestamp
        store_timestamp = _store_time(last)
        if store_timestamp < last:
            self._published_end.order_from(begin)
        written: list[Placed[Result]] = []
        recording_failure = self._published_end.recording_failure()
        for records in pieces:  # outside of `recording_failure`: what makes a piece may flush another store
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

    def _finish_records(self, written: list[Placed[Result]], end: int, *, flush: bool, hidden: bool) -> None:
        if flush:
            # Not only our own bytes: recovery walks up to them through everything before.
            self._log.segments.flush(self._published_end.flushed_offset, end)
        if hidden:
            self._log.show(*written[0].head, flush=flush)
        if flush:
            self._published_end.check_device()  # the system tells each failure to one of those who flush, or to some

    def _write_entries(self, written: list[Placed[Result]]) -> Ranges:
        ranges: Ranges = {}
        for placed in written:
            for name, (start, entries) in placed.entries.items():
                if not self._queues.of(*name).write(start, entries):
                    self._published_end.note_loss()
                ranges[name] = ranges.get(name, (start,))[0], start + len(entries) // CQ_ENTRY.itemsize
            self._index.append(*placed.keys)
        return ranges

    def _publish(self, appended: _Appended[Result]) -> None:
        begin, end = appended.begin, appended.end
        if not self._index.is_enabled:
            self._published_end.file_from(end)
        self._published_end.publish(end)
        self._seen_end = end
        self._unflushed.note(begin, end, appended.ranges)
        self._given.update((name, stop) for name, (_, stop) in appended.ranges.items())
        appended.next_offsets.confirm_offset = end
        self._next_offsets = appended.next_offsets

    def repair(self) -> None:
        """Undo an append that died: zero what it announced, drop its queue entries and keys. Call under the lock. And
        finish a deletion that died, before anything is put into a topic of that name.

        Raises `FlushFailed` when there was one: nothing is undone then, nor appended; and as `_must_be_newer`.

        Nothing of it was published. Stale bytes must go all the same: later appends move the confirm offset
        over them, and then a stale entry would count and a stale record would parse. The log goes last: without its
        records RocketMQ takes the first entry of an empty queue file for a message, should this die on the way.
        """
        self._published_end.check_device()
        if self._published_end.deletions % 2:
            self._finish_deletion()
        confirm, announced = self._published_end.confirm_offset, self._published_end.announced_end
        if confirm != self._seen_end:  # others appended
            self._must_be_newer()
        self._seen_end = confirm
        if announced <= confirm:
            return
        with self._published_end.recording_failure():
            self._undo(confirm, announced)
        # A later time, so that a reader which saw something of it in between notices that it is undone.
        self._published_end.announce(confirm, self._published_end.store_timestamp + 1)

    def _undo(self, confirm: int, announced: int) -> None:
        # Entries follow the records: where a record is not whole there are none of this append.
        for name in ranges_of(self._log, confirm, announced) or self._queues.existing():
            self._queues.of(*name).truncate(self._queues.of(*name).max_offset(confirm))
        self._index.truncate(confirm)
        self._log.clear(confirm, announced)
        self._log.segments.flush_names()

    def _must_be_newer(self) -> None:
        """Raises `CorruptStore` where the published end is older than the log."""
        behind = self._published_end.written_end
        if self._log.may_go_on(behind) and next(walk(self._log, behind), None) is not None:
            raise self._published_end.is_older()

    def _take_next_offsets(self, confirm: int) -> NextOffsets:
        """Those that are known, if nobody else appended, or deleted; forgotten here until this append is through."""
        known, self._next_offsets = self._next_offsets, None
        deletions = self._published_end.deletions
        if known is not None and (known.confirm_offset, known.deletions) == (confirm, deletions):
            return known
        if deletions != self._deletions:
            self._given, self._deletions = {}, deletions
        return NextOffsets(self._queues, confirm, deletions, self._given)


def _store_time(last: int) -> int:
    """What an append is stamped with after one with `last`; both ms since 1970.

    It does not step back with the clock, for a search by time counts on that; unless `last` is so far ahead that it
    must have been wrong, and all later times would be as wrong. A search may then miss the messages that have it.
    """
    now = int(time.time() * 1000)
    if last - now <= FAR_MS:
        return max(now, last)
    warnings.warn(
        f"the newest message was stored {(last - now) / 1000:,.0f} s later than this machine's clock says now: it was "
        "wrong then, or is now; messages are stored with the time that it says. Set the clock where it is wrong now",
        RuntimeWarning,
        stacklevel=2,
    )
    return now
