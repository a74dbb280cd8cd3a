"""`Epochs`: the real-time batches of one run of a query.

A micro-batch query uses it, too, because a query can switch modes with the same checkpoint.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from functools import cached_property, partial
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_mq.errors import LedgerError
from pyspark_mq.offsets.stream_offsets import EpochOffset, StreamOffset, to_json
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.held_reading import HeldReader, HeldTask
from pyspark_mq.source.ledger import Ledger, TaskName
from pyspark_mq.source.reading import RangeReader
from store.append.published_end import current_boot_id
from store.model.log_protocol import Fingerprints, Positions

_log = logging.getLogger("pyspark_mq")


class Epochs:
    def __init__(self, options: SourceOptions) -> None:
        """Do not open the ledger, because tasks unpickle this object."""
        self._options = options
        self._reader_id = uuid4().hex
        self._warned = False
        self._slots: int | None = None  # Spark's task slots, as reported by the tasks of the last batch

    def following(self, begin: StreamOffset, before: StreamOffset | EpochOffset) -> EpochOffset:
        """Return the real-time batch after the batch `before`. It begins at `begin`. Raises `LedgerError`."""
        number, planner = (before.epoch + 1, before.reader) if isinstance(before, EpochOffset) else (0, None)
        if planner != self._reader_id:
            self._ledger.prepare(self._reader_id)
        tasks = distribute_queues(begin.next, self._options.real_time_partitions or self._slots or os.cpu_count() or 1)
        return EpochOffset(number, self._reader_id, tasks, begin.last)

    def partitions(self, epoch: EpochOffset, member: str | None) -> list[InputPartition]:
        """Return the tasks of a batch, which depend only on its offset.

        If the query no longer has `realTime`, replayed tasks read the present messages without waiting.
        """
        seconds = self._options.batch_duration_seconds if self._options.real_time else 0.0
        now, boot_id = time.monotonic(), current_boot_id()
        name = partial(TaskName, epoch.reader, epoch.epoch)
        return [
            InputPartition(HeldTask(name(number), begin, seconds, now, boot_id, epoch.last_of(begin), member))
            for number, begin in enumerate(epoch.tasks)
        ]

    def read(self, task: HeldTask, range_reader: RangeReader) -> Iterator[pa.RecordBatch]:
        return HeldReader(self._options, range_reader, self._ledger).read(task)

    def resolve(self, epoch: EpochOffset) -> StreamOffset:
        """Return the end of a committed batch. Raises `LedgerError` if a record is missing."""
        reached: Positions = {}
        last: Fingerprints = {}
        starved = 0
        for number, begin in enumerate(epoch.tasks):
            record = self._ledger.find(TaskName(epoch.reader, epoch.epoch, number), begin)
            if record is None:
                raise self._missing_record(epoch, number)
            reached |= record.next
            last |= record.last
            starved += record.starved
            self._slots = record.slots or self._slots
        if starved:
            self._warn_of_starvation(starved, len(epoch.tasks))
        return StreamOffset(reached, starts=reached, last=last)

    def mark_passed(self, before: EpochOffset, end: StreamOffset | EpochOffset) -> None:
        """Note that the query has continued after the run of `before`, if another run planned `end`.

        Call this when Spark has logged `end`.
        """
        if not isinstance(end, EpochOffset) or end.reader != before.reader:
            self._ledger.mark_passed(before.reader)
            self._ledger.prune()

    def forget_before(self, committed: EpochOffset) -> None:
        if committed.reader == self._reader_id:
            self._ledger.forget_before(committed.reader, committed.epoch)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self._options.ledger_directory())

    def _missing_record(self, epoch: EpochOffset, task: int) -> LedgerError:
        begin = str(to_json(epoch.begin)).replace("'", '"')
        why = "" if self._ledger.knows(epoch.reader) else "nothing of this query is here, so there is "
        return LedgerError(
            f"{self._ledger}: {why}no record of task {task} of the committed real-time batch {epoch.epoch}. Without "
            "the record, the end of that batch is unknown. If a foreachBatch function did not read all rows, make it "
            "read them. Otherwise restore the directory or the bucket, or set ledgerPath to its new place. To "
            "continue without the record, use a new checkpoint and startingOffsets "
            f"{begin}, where that batch began: its messages are read again"
        )

    def _warn_of_starvation(self, starved: int, tasks: int) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "%d of %d real-time tasks started only after other tasks had ended: Spark has too few task slots to "
                "run all at once. Set realTimePartitions to %d or less, or give Spark more cores",
                starved,
                tasks,
                tasks - starved,
            )


def distribute_queues(begin: Positions, tasks: int) -> tuple[Positions, ...]:
    """Distribute queues over at most `tasks` tasks, round-robin."""
    queues = sorted(begin)
    count = min(tasks, len(queues))
    return tuple({queue: begin[queue] for queue in queues[number::count]} for number in range(count))
