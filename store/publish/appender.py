"""One append, from the lock to the publication; and the repair of one that died.

The order is the promise (see `watermark`): announce, write records, write queue entries, file keys, flush if asked,
publish.
Whatever happens before the last step, readers see nothing of it and the next append undoes it first.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from store.format.records import Records
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.consume_queue import ConsumeQueue
from store.log.unflushed import Unflushed, ranges_of
from store.publish.locks import StoreLock
from store.publish.watermark import Watermark

_FAR_MS = 3_600_000  # more than clocks are set back as a rule


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where n messages went, in their order.

    queue_ids: int32, queue_offsets and physical_offsets: int64, each of shape (n,).
    """

    queue_ids: npt.NDArray[np.int32]
    queue_offsets: npt.NDArray[np.int64]
    physical_offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.queue_ids)

    @staticmethod
    def concatenate(results: list[AppendResult]) -> AppendResult:
        """Several appends as one result."""
        return AppendResult(
            np.concatenate([np.empty(0, np.int32), *(result.queue_ids for result in results)]),
            np.concatenate([np.empty(0, np.int64), *(result.queue_offsets for result in results)]),
            np.concatenate([np.empty(0, np.int64), *(result.physical_offsets for result in results)]),
        )


class Tails(NamedTuple):
    """The next queue offset of some queues, exact as long as the confirm offset is this one."""

    confirm_offset: int
    of: dict[tuple[str, int], int]


class Appender:
    """Appends records to one store. Any number of them, in any processes and threads, take turns by the lock."""

    def __init__(
        self,
        lock: StoreLock,
        watermark: Watermark,
        log: CommitLog,
        index: Index,
        queue: Callable[[str, int], ConsumeQueue],
        existing_queues: Callable[[], list[tuple[str, int]]],
        unflushed: Unflushed,
        *,
        sync_flush: bool,
    ) -> None:
        self._lock = lock
        self._watermark = watermark
        self._log = log
        self._index = index
        self._queue = queue
        self._existing_queues = existing_queues
        self._unflushed = unflushed
        self._sync_flush = sync_flush
        self._tails = Tails(-1, {})

    def append(self, records: Records) -> AppendResult:
        """Append all records under one publication.

        Raises `StoreFull`, `MessageRefused` and `FlushFailed`; nothing of `records` is visible then.
        """

        def append() -> AppendResult:
            with self._watermark.noting_failure():  # under the lock: nobody goes on behind it
                return self._append(records)

        return self._lock.exclusively(append)

    def _append(self, records: Records) -> AppendResult:
        self.repair()
        begin = self._watermark.confirm_offset
        placement = self._log.place(begin, records.sizes)
        queues = _by_queue(records)
        tails = self._take_tails(begin)
        queue_offsets = np.empty(len(records), np.int64)
        for name, rows in queues:
            if name not in tails:
                tails[name] = self._queue(*name).tail(begin)
            queue_offsets[rows] = np.arange(tails[name], tails[name] + len(rows))
        store_timestamp = _store_time(self._watermark.store_timestamp)
        records.stamp(queue_offsets, placement.physical_offsets, store_timestamp)
        self._watermark.announce(placement.end, store_timestamp)
        self._log.write(placement, records.encoded)
        entries = records.entries(placement.physical_offsets)
        for name, rows in queues:
            self._queue(*name).write(tails[name], entries[rows])
        key_offsets = placement.physical_offsets[records.key_rows]
        self._index.append(records.key_hashes, key_offsets, np.full(len(key_offsets), store_timestamp))
        if self._sync_flush:
            # Not only our own bytes: recovery walks up to them through everything before.
            self._log.segments.flush(self._watermark.flushed_offset, placement.end)
            self._watermark.check_device()  # the system tells each failure to one of those who flush, or to some
        self._watermark.publish(placement.end)
        ranges = {name: (tails[name], tails[name] + len(rows)) for name, rows in queues}
        self._unflushed.note(begin, placement.end, ranges)
        tails.update({name: end for name, (_, end) in ranges.items()})
        self._tails = Tails(placement.end, tails)
        ids = np.array([queue_id for _, queue_id in records.destinations], np.int32)
        return AppendResult(ids[records.queues], queue_offsets, placement.physical_offsets)

    def repair(self) -> None:
        """Undo an append that died: zero what it announced, drop its queue entries and keys. Call under the lock.

        Raises `FlushFailed` when there was one: nothing is undone then, nor appended.

        Nothing of it was published. Stale bytes must go all the same: later appends move the confirm offset
        over them, and then a stale entry would count and a stale record would parse. The log goes last: without its
        records RocketMQ takes the first entry of an empty queue file for a message, should this die on the way.
        """
        self._watermark.check_device()
        confirm, announced = self._watermark.confirm_offset, self._watermark.announced_end
        if announced <= confirm:
            return
        # Entries follow the records: where a record is not whole there are none of this append.
        names = ranges_of(self._log, confirm, announced) or self._existing_queues()
        for name in names:
            self._queue(*name).truncate(self._queue(*name).tail(confirm))
        self._index.truncate(confirm)
        self._log.segments.zero(confirm, announced)
        self._log.segments.flush_names()
        # A later time, so that a reader which saw something of it in between notices that it is undone.
        self._watermark.announce(confirm, self._watermark.store_timestamp + 1)

    def _take_tails(self, confirm: int) -> dict[tuple[str, int], int]:
        """The tails that are known, if nobody else appended; forgotten here until this append is through."""
        known, self._tails = self._tails, Tails(-1, {})
        return known.of if known.confirm_offset == confirm else {}


def _store_time(last: int) -> int:
    """What an append is stamped with after one with `last`; both ms since 1970.

    It does not step back with the clock, for a search by time counts on that; unless `last` is so far ahead that it
    must have been wrong, and all later times would be as wrong. A search may then miss the messages that have it.
    """
    now = int(time.time() * 1000)
    if last - now <= _FAR_MS:
        return max(now, last)
    warnings.warn(
        f"the newest message was stored {(last - now) / 1000:,.0f} s later than this machine's clock says now: it was "
        "wrong then, or is now; messages are stored with the time that it says. Set the clock where it is wrong now",
        RuntimeWarning,
        stacklevel=2,
    )
    return now


def _by_queue(records: Records) -> list[tuple[tuple[str, int], npt.NDArray[np.int64]]]:
    """Each destination with the rows that go there, ascending."""
    queues = records.queues.astype(np.min_scalar_type(len(records.destinations)))  # small ones are sorted faster
    order = np.argsort(queues, kind="stable")
    bounds = np.searchsorted(queues[order], np.arange(len(records.destinations) + 1))
    return [
        (destination, order[bounds[index] : bounds[index + 1]])
        for index, destination in enumerate(records.destinations)
    ]
