"""The streaming reader with real-time batches: offsets that say where held tasks begin, the ledger where they end."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from pyspark_mq.errors import LedgerError
from pyspark_mq.offsets.checkpoint import EpochOffset, StreamOffset
from pyspark_mq.offsets.positions import to_json
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.held_reading import HeldReader, HeldTask
from pyspark_mq.source.ledger import Ledger, TaskName
from pyspark_mq.source.stream_reader import MqStreamReader
from store.model.log_protocol import Fingerprints, Positions
from store.publish.published_end import current_boot_id

_log = logging.getLogger("pyspark_mq")


class RealTimeStreamReader(MqStreamReader):
    """`MqStreamReader` that plans real-time batches with `realTime`, and understands their offsets without it.

    Every offset that a batch starts from is resolved through the ledger, and a batch pins where it begins. So a
    query goes on in either mode from a checkpoint of the other. `Trigger.AvailableNow` and `Trigger.Once` are
    about an end that is known: they take micro-batches whatever `realTime` says.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises `OptionError`, `SchemaError`. Opens nothing: tasks unpickle this too."""
        super().__init__(options, schema)
        self._reader_id = uuid4().hex
        self._warned = False
        self._slots: int | None = None  # of Spark's, as the last batch's tasks were told

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: of a real-time one at once, for arrivals are waited for in its tasks.

        Raises what `MqStreamReader.latestOffset` does, and `LedgerError`.
        """
        epoch = EpochOffset.from_json(start)
        resolved = start if epoch is None else self._resolve(epoch).to_json()
        if not self._options.real_time or self._target is not None or isinstance(limit, ReadAllAvailable):
            end = super().latestOffset(resolved, limit)
        else:
            end = self._next_epoch(StreamOffset.from_json(resolved), epoch) or resolved
        return start if end is resolved else end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Of a real-time batch, by its end alone: what its tasks read is up to the ledger."""
        before, epoch = EpochOffset.from_json(start), EpochOffset.from_json(end)
        if before is not None and (epoch is None or epoch.reader != before.reader):
            # Not when `end` was planned: Spark might not have logged it.
            self._ledger.mark_passed(before.reader)
            self._ledger.prune()
        if epoch is not None and end != self._known:
            self._take(math.inf)
            self._must_be_same(epoch.begin, epoch.last)
        if epoch is None:
            # After a real-time batch every queue is pinned.
            return super().partitions(StreamOffset({}).to_json() if before else start, end)
        seconds = self._options.batch_duration_seconds if self._options.real_time else 0.0
        now, boot_id = time.monotonic(), current_boot_id()
        member = None if self._orderly is None else self._orderly.member
        name = partial(TaskName, epoch.reader, epoch.epoch)
        return [
            InputPartition(HeldTask(name(number), begin, seconds, now, boot_id, epoch.last_of(begin), member))
            for number, begin in enumerate(epoch.tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, HeldTask):
            return HeldReader(self._options, self._range_reader, self._ledger).read(partition.value)
        return super().read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Drop this run's records that no batch can start from any more: Spark has logged the batch after `end`."""
        epoch = EpochOffset.from_json(end)
        if epoch is not None and epoch.reader == self._reader_id:
            self._ledger.forget_before(epoch.reader, epoch.epoch)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self._options.ledger_directory())

    def _next_epoch(self, offset: StreamOffset, before: EpochOffset | None) -> dict[str, Any] | None:
        """The batch after `offset`; None while no queue is subscribed."""
        self._must_start(offset)
        self._tell(offset)
        if not self._take(self._options.hold_timeout_seconds):
            return None
        offset = self._ahead(offset)
        self._bounds = self._queues.hold(self._options.hold_timeout_seconds, offset.next, {})
        planned = self._planned(offset, lambda batch: batch.begin)
        if planned is None or not planned.next:
            return None
        if before is None or before.reader != self._reader_id:
            self._ledger.prepare(self._reader_id)
        number = before.epoch + 1 if before is not None else 0
        tasks = pack(planned.next, self._options.real_time_partitions or self._slots or os.cpu_count() or 1)
        self._known = EpochOffset(number, self._reader_id, tasks, planned.last).to_json()
        return self._known

    def _resolve(self, epoch: EpochOffset) -> StreamOffset:
        """Where a committed batch ended. Raises `LedgerError` when one of its tasks left no record."""
        reached: Positions = {}
        last: Fingerprints = {}
        starved = 0
        for number, begin in enumerate(epoch.tasks):
            record = self._ledger.find(TaskName(epoch.reader, epoch.epoch, number), begin)
            if record is None:
                raise self._lost(epoch, number)
            reached |= record.next
            last |= record.last
            starved += record.starved
            self._slots = record.slots or self._slots
        if starved:
            self._warn_of_starvation(starved, len(epoch.tasks))
        return StreamOffset(reached, starts=reached, last=last)

    def _lost(self, epoch: EpochOffset, task: int) -> LedgerError:
        begin = to_json(epoch.begin)
        why = "" if self._ledger.knows(epoch.reader) else "nothing here is of this query, so there is "
        return LedgerError(
            f"{self._ledger}: {why}no record of task {task} of real-time batch {epoch.epoch}, which is committed; "
            "without it nobody knows what that batch read. A foreachBatch that did not take all rows leaves none; else "
            "restore the directory or the bucket, or point ledgerPath to it. To go on without it use a new checkpoint "
            "and startingOffsets "
            f"{str(begin).replace(chr(39), chr(34))}, where that batch began: its messages come once more"
        )

    def _warn_of_starvation(self, starved: int, tasks: int) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "%d of %d real-time tasks could start only when the others had ended: Spark has too few task slots "
                "to hold them all. Set realTimePartitions to %d or less, or give Spark more cores",
                starved,
                tasks,
                tasks - starved,
            )


def pack(begin: Positions, tasks: int) -> tuple[Positions, ...]:
    """Deal queues out to at most `tasks` tasks, in turn. Pure."""
    queues = sorted(begin)
    count = min(tasks, len(queues))
    return tuple({queue: begin[queue] for queue in queues[number::count]} for number in range(count))
