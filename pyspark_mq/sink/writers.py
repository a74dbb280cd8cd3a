"""Spark's batch and stream writers, and the deliveries that they use.

    AtLeastOnce     tasks append their rows directly
    AllOrNothing    tasks stage their rows, and the driver appends all of them under one publication
    OncePerBatch    as AllOrNothing, with a record of the batch, so that a batch is not appended again

The driver creates a delivery. Tasks, and the commit of a batch write, unpickle it.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_mq.errors import OptionError, StagingError, SubscriptionError
from pyspark_mq.options.sink import Guarantee, WriteOptions
from pyspark_mq.options.subscription import did_you_mean
from pyspark_mq.sink.commits import Batch, Commits, plan_of
from pyspark_mq.sink.staging import BATCH, Staging, run_of_batch
from pyspark_mq.sink.written_columns import check_schema, tables_by_topic, with_unique_keys
from store.format.topic_names import COMMITS_TOPIC, is_internal_topic
from store.model.log_protocol import Log, LogAddress, LogWriter

_log = logging.getLogger("pyspark_mq")

# Local properties of a streaming query's tasks: the id in its checkpoint, the number of the batch, and the id of its
# run. A program that sets its own job group replaces the last one.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class TaskRows(WriterCommitMessage):
    """The rows of one task.

    rows: their number by topic. file: with the staged rows, or "". query, batch, run: ids for `OncePerBatch`.
    """

    rows: Mapping[str, int]
    file: str = ""
    query: str = ""
    batch: int = -1
    run: str = ""


class RowDelivery(Protocol):
    def prepare(self) -> None:
        """Prepare a write, in the driver before the tasks. Raises errors that would fail all tasks."""

    def send(self, batches: Iterable[pa.RecordBatch]) -> TaskRows:
        """Append or stage rows. Runs in the task."""

    def commit(self, sent: Sequence[TaskRows]) -> None:
        """Finish a write, in the driver after all tasks. sent: in the order of Spark's partitions."""

    def abort(self) -> None:
        """Clean up, in the driver after a task or the commit failed."""


class AtLeastOnce:
    """Appends rows directly. A failed attempt leaves its messages, and the next attempt appends them again.

    So consumers can drop duplicates by property UNIQ_KEY, which is the same in every attempt:
    "<query>-<batch>-<partition>-<row>", or "<id of the write>-0-<partition>-<row>" for a batch write.
    """

    def __init__(self, options: WriteOptions, *, is_stream: bool) -> None:
        self._options = options
        self._is_stream = is_stream
        self._run = uuid4().hex

    def prepare(self) -> None:
        pass

    def send(self, batches: Iterable[pa.RecordBatch]) -> TaskRows:
        rows: Counter[str] = Counter()
        query, batch_number, _ = _streaming_batch() if self._is_stream else (self._run, 0, "")
        task = f"{query.replace('-', '')}-{batch_number}-{_context().partitionId()}"
        with self._options.address.open_writer() as log:
            for batch in batches:
                append = log.begin()
                keyed = with_unique_keys(batch, task, rows.total())
                for topic, table in tables_by_topic(keyed, self._options.topic):
                    append.add(topic, table)
                    rows[topic] += table.num_rows
                append.publish()
            log.flush()  # now, because Spark does not run a task again after it has returned
        return TaskRows(rows)

    def commit(self, sent: Sequence[TaskRows]) -> None:
        pass

    def abort(self) -> None:
        pass


class AllOrNothing:
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._staging = Staging(options.staging_path)
        self._run = uuid4().hex

    def prepare(self) -> None:
        self._staging.prepare()
        self._staging.begin(BATCH, self._run)

    def send(self, batches: Iterable[pa.RecordBatch]) -> TaskRows:
        file, rows = self._stage(BATCH, self._run, batches)
        return TaskRows(rows, file)

    def commit(self, sent: Sequence[TaskRows]) -> None:
        if any(each.rows for each in sent):
            with self._options.address.open_writer() as log:
                self._append(log, sent, {})
        self._staging.forget(BATCH, self._run)

    def abort(self) -> None:
        self._staging.forget(BATCH, self._run)

    def _stage(self, owner: str, run: str, batches: Iterable[pa.RecordBatch]) -> tuple[str, Counter[str]]:
        context = _context()
        tables = (table for batch in batches for table in tables_by_topic(batch, self._options.topic))
        checked = tables if self._options.topic is not None else _of_known_topics(self._options.address, tables)
        return self._staging.write(owner, run, f"{context.partitionId()}-{context.taskAttemptId()}", checked)

    def _append(self, log: LogWriter, sent: Sequence[TaskRows], more: Mapping[str, pa.RecordBatch]) -> None:
        """Append and sync the staged rows and `more` (by topic) under one publication."""
        tables = self._staging.tables(each.file for each in sent if each.file)
        staged, rows = sum(table.num_rows for table in tables.values()), _rows_of(sent).total()
        if staged != rows:  # a file that was cut between two batches can be read without an error
            raise StagingError(
                f"{self._options.staging_path}: tasks wrote {rows:,} rows there, but the driver reads {staged:,}. "
                "Nothing was appended. Set stagingPath to a directory in which the driver sees the files of all "
                "executors, and run the write again"
            )
        append = log.begin()
        for topic, table in tables.items():
            append.add(topic, table)
        for topic, batch in more.items():
            append.add(topic, batch)
        append.publish(flush=True)


class OncePerBatch(AllOrNothing):
    """Writes a micro-batch of a streaming query once: the stream's own write, or one in its `foreachBatch`.

    In `foreachBatch`, `producerGroup` distinguishes several writes of one batch, and a write may skip batches.
    """

    @property
    def _is_stream(self) -> bool:
        return self._options.producer_group is None

    def prepare(self) -> None:
        self._staging.prepare()

    def send(self, batches: Iterable[pa.RecordBatch]) -> TaskRows:
        query, batch, run = _streaming_batch()
        if not self._is_stream:
            query = f"{query}-{self._options.producer_group}"
        attempt = run_of_batch(batch, self._run)
        self._staging.begin(query, attempt)
        file, rows = self._stage(query, attempt, batches)
        return TaskRows(rows, file, query, batch, run)

    def commit(self, sent: Sequence[TaskRows]) -> None:
        if self._is_stream or any(each.rows for each in sent):
            with self._options.address.open_writer() as log:
                self._commit(Commits(log, self._options.commits_path, sent[0].query), log, sent)
        self._staging.forget(sent[0].query, run_of_batch(sent[0].batch, self._run))

    def _commit(self, commits: Commits, log: LogWriter, sent: Sequence[TaskRows]) -> None:
        plan = plan_of(self._options.checkpoint, sent[0].batch)
        batch = Batch(sent[0].batch, _rows_of(sent), sent[0].run, plan, self._is_stream)
        with commits.file.locked():
            if commits.has(batch):
                _log.warning("Batch %d of query %s is skipped: it was written before", batch.number, sent[0].query)
                commits.skip(batch)
                return
            if batch.rows:
                commits.begin(batch)
                self._append(log, sent, {COMMITS_TOPIC: commits.record(batch)})
            commits.end(batch)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows come to tasks only"
    return context


def _rows_of(sent: Iterable[TaskRows]) -> Counter[str]:
    return sum((Counter(each.rows) for each in sent), Counter())


def _streaming_batch() -> tuple[str, int, str]:
    """Return the ids of the query, its batch and its run ("" if unknown). Raises `OptionError`."""
    query, batch, run = map(_context().getLocalProperty, (_QUERY_ID, _BATCH_ID, _RUN_ID))
    if not query or not batch:
        raise OptionError(
            "producerGroup is only for a write in foreachBatch of a streaming query, and this write is not in one. "
            "Remove producerGroup"
        )
    return query, int(batch), run if run and _UUID.fullmatch(run) else ""


def _of_known_topics(
    address: LogAddress, tables: Iterable[tuple[str, pa.RecordBatch]]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    known: set[str] = set()
    for topic, table in tables:
        if topic not in known:
            with address.open() as log:
                require_topic(address, log, topic)
            known.add(topic)
        yield topic, table


def require_topic(address: LogAddress, log: Log, topic: str) -> None:
    """Raise `SubscriptionError` if the topic does not exist."""
    if topic not in (topics := log.topics()):
        others = ", ".join(name for name in topics if not is_internal_topic(name)) or "no topics"
        of_broker = f"mqadmin updateTopic -t {topic} ..."
        how = of_broker if address.directory is None else f"pyspark-mq topic create {address} {topic!r}"
        near = did_you_mean([topic], topics)
        raise SubscriptionError(f"Topic {topic!r} does not exist; there are {others}. {near}Create it first: {how}")


class MqBatchWriter(DataSourceArrowWriter):
    """Spark's writer of a batch write. The driver creates it; tasks and the commit unpickle it."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises `OptionError`, `SchemaError`, `SubscriptionError`, `StagingError`, and errors of opening a store."""
        if overwrite:
            raise OptionError('A topic can only be appended to. Write with mode("append")')
        whole = AllOrNothing if options.producer_group is None else OncePerBatch
        self._delivery = _checked(options, schema, whole, is_stream=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._delivery.send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.commit(_sent(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.abort()


class MqStreamWriter(DataSourceStreamArrowWriter):
    """Spark's writer of a micro-batch. Spark creates one for the tasks and another for the commit."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises as `MqBatchWriter`."""
        if overwrite:
            raise OptionError(
                'A topic can only be appended to, and complete mode writes all results again. Use outputMode("append")'
            )
        self._delivery = _checked(options.for_stream(), schema, OncePerBatch, is_stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._delivery.send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.commit(_sent(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.abort()


def _checked(
    options: WriteOptions, schema: StructType, exactly_once: type[AllOrNothing], *, is_stream: bool
) -> RowDelivery:
    check_schema(schema, options.topic)
    with options.address.open() as log:
        if options.topic is not None:
            require_topic(options.address, log, options.topic)
    delivery: RowDelivery
    if options.guarantee is Guarantee.AT_LEAST_ONCE:
        delivery = AtLeastOnce(options, is_stream=is_stream)
    else:
        delivery = exactly_once(options)
    delivery.prepare()
    return delivery


def _sent(messages: Sequence[WriterCommitMessage | None]) -> list[TaskRows]:
    return [message for message in messages if isinstance(message, TaskRows)]
