"""A task of a real-time batch: holds queues until the batch's time is over, and reads messages as they arrive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from pyspark_mq.errors import LedgerError, OptionError
from pyspark_mq.offsets.losses import Loss, LossCase, loss_before, report_loss
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.query_group import group_of, has_locks
from pyspark_mq.planning.queues import has_deleted_queue, replaced_queues
from pyspark_mq.source.ledger import Ledger, TaskName, TaskRecord
from pyspark_mq.source.reading import RangeReader, RangeTask
from pyspark_mq.source.worker import freeze_loaded_objects, task_slots
from store import UnknownTopic
from store.append.published_end import current_boot_id
from store.model.log_protocol import Fingerprints, Log, Positions, QueueRange

LEAST_SECONDS = 1.0
_ROWS_AT_ONCE = 1 << 15  # most messages of one queue before the other queues get their turn
# An idle task writes an empty batch this often, because only a failed write shows that Spark has cancelled it.
_HEARTBEAT_SECONDS = 1.5
_PIPELINED = "SPARK_PIPELINED_UDF"  # set by Spark in workers if spark.python.udf.pipelined.enabled is true


@dataclass(frozen=True)
class HeldTask:
    """The plan of one task: the `begin` of each of its queues, and how long to hold them.

    seconds: how long to hold; 0 to read the present messages and end.
    planned: the driver's `time.monotonic()` at planning, valid only on the machine with this `boot_id`.
    last: fingerprints of the messages before each `begin`, if known.
    member: the member id of an orderly query.
    """

    name: TaskName
    begin: Positions
    seconds: float
    planned: float
    boot_id: bytes
    last: Fingerprints = field(default_factory=dict)
    member: str | None = None

    def deadline(self) -> float:
        """Return the task's end, as `time.monotonic()`. All tasks on the driver's machine end together.

        A task that starts late, because no task slot was free, still reads for `LEAST_SECONDS`.
        """
        now = time.monotonic()
        if self.boot_id != current_boot_id():
            return now + self.seconds
        return max(self.planned + self.seconds, now + min(self.seconds, LEAST_SECONDS))

    def late(self) -> bool:
        return self.boot_id == current_boot_id() and time.monotonic() > self.planned + self.seconds


class HeldReader:
    """Reads held tasks. Stateless, and picklable for the tasks."""

    def __init__(self, options: SourceOptions, range_reader: RangeReader, ledger: Ledger) -> None:
        self._options = options
        self._range_reader = range_reader
        self._ledger = ledger

    def read(self, task: HeldTask) -> Iterator[pa.RecordBatch]:
        """Yield messages as they arrive, or the recorded ranges if an earlier attempt of the task left a record.

        Raises `OptionError` if Spark would buffer the batches, `LedgerError`, and the errors of `RangeReader`.
        """
        if task.seconds > 0:
            require_pipelined_workers()
        freeze_loaded_objects()
        record = self._ledger.find(task.name, task.begin)
        with self._options.address.open() as log:
            if record is None:
                reached, last = dict(task.begin), dict(task.last)
                starved = task.late() and self._ledger.any_ended(task.name)
                yield from self._held(log, reached, last, task.deadline(), self._has_queues(task))
                mine = TaskRecord(reached, starved, last, task_slots())
                record = self._ledger.record(task.name, mine)
            else:
                reached = task.begin
            yield from self._read_to_record(log, reached, record)

    def _has_queues(self, task: HeldTask) -> Callable[[], bool]:
        """Return a function that tells whether the query still owns its queues.

        If the driver's process is killed, another query gets its locks at once, but Spark continues the batch.
        """
        group, member = self._options.consumer_group, task.member
        if member is None or group is None:
            return lambda: True
        return partial(has_locks, group_of(self._options.address, group), member, task.begin)

    def _held(
        self, log: Log, reached: Positions, last: Fingerprints, deadline: float, has_queues: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """Yield messages as they arrive, until the deadline or until the query loses its queues.

        Advances `reached`, the next offsets, and `last`, the fingerprints of the messages before them.

        A queue that is deleted or replaced concurrently is not advanced: the next batch reports the loss.
        """
        with log.hold(dict(reached), deadline, self._options.message_filter, _HEARTBEAT_SECONDS) as held:
            while True:
                try:
                    there = next(held)
                except StopIteration:
                    return
                except UnknownTopic:
                    self._report_deleted_queues(log, reached)
                    continue
                if not has_queues():
                    return
                if there is None:
                    yield self._range_reader.nothing()
                    continue
                wanted = there._replace(end=min(there.end, there.start + _ROWS_AT_ONCE))
                queue, ends = wanted.queue, {wanted.queue: wanted.end}
                before = log.fingerprints(ends)
                # Check after reading the fingerprint, so that it is of the checked queue, not of a recreated one.
                if self._is_lost(log, wanted, last, before):
                    continue
                yield from self._range_reader.scan_seen(log, wanted, RangeTask((wanted,), ends, before))
                reached[queue] = wanted.end
                last.pop(queue, None)
                last |= before
                held.again(queue, wanted.end)

    def _is_lost(self, log: Log, wanted: QueueRange, last: Fingerprints, before: Fingerprints) -> bool:
        """Return whether messages of `wanted` are lost, after reporting the loss. Raises `DataLossError`.

        before: fingerprint of the message before the end of `wanted`. Without one, the queue must still reach this end.
        """
        queue, begin = wanted.queue, wanted.start
        is_another = bool(replaced_queues(log, {queue: begin}, last))
        unknown = {} if queue in before else {queue: wanted.end}
        if wanted.length and not is_another and not has_deleted_queue(log, unknown):
            return False
        loss = loss_before(queue, begin, log.bounds([queue]).get(queue), is_another)
        if loss is not None:
            report_loss(self._options.fail_on_data_loss, loss)
        return True

    def _report_deleted_queues(self, log: Log, reached: Positions) -> None:
        there, missing = log.look(reached)
        for queue in (queue for queue in reached if queue not in there and queue.broker not in missing):
            report_loss(
                self._options.fail_on_data_loss, Loss(QueueRange(queue, reached[queue], reached[queue]), LossCase.GONE)
            )

    def _read_to_record(self, log: Log, reached: Positions, record: TaskRecord) -> Iterator[pa.RecordBatch]:
        """Yield the messages from `reached` to the recorded ends: none if this attempt wrote the record.

        Raises `LedgerError` if this attempt has read past a recorded end.
        """
        for queue, end in record.next.items():
            if (own := reached[queue]) > end:
                raise LedgerError(
                    f"{queue}: this attempt read up to {own}, but another attempt at the same task "
                    f"recorded {end}. If Spark does not repeat the task, restart the query: the task then reads the "
                    "recorded range"
                )
            missing = QueueRange(queue, reached[queue], end)
            yield from self._range_reader.scan(log, missing, RangeTask((missing,), record.next, record.last))


def require_pipelined_workers() -> None:
    if os.environ.get(_PIPELINED) != "1":
        raise OptionError(
            "realTime needs PySpark 4.3 or later and spark.python.udf.pipelined.enabled=true, so that workers return "
            "each batch at once. Set it before the application starts: with pyspark_mq.session(real_time=True), "
            "spark-submit --conf, or SparkSession.builder.config. Or remove the option realTime"
        )
