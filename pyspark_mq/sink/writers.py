"""Spark's writers, of a batch and of the micro-batches of a stream, and the deliveries that they choose from.

    AtLeastOnce     tasks append their rows as they come
    AllOrNothing    tasks stage their rows, the driver appends the rows of all tasks under one publication
    OncePerBatch    likewise, together with a record of the batch; a batch that has a record is not appended again

The driver makes a delivery. Tasks and, for a batch write, the commit get it from a pickle.
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

# Spark tells the tasks of a streaming query its id, which is the checkpoint's, the number of the batch, and the id of
# its run, unless the program names its jobs otherwise.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class TaskRows(WriterCommitMessage):
    """The rows of one task. rows: how many to each topic. file: the staged rows, or "". query, batch, run: see
    `OncePerBatch`.
    """

    rows: Mapping[str, int]
    file: str = ""
    query: str = ""
    batch: int = -1
    run: str = ""


class RowDelivery(Protocol):
    def prepare(self) -> None:
        """In the driver, before any task: raises what would make all of them fail."""

    def send(self, batches: Iterable[pa.RecordBatch]) -> TaskRows:
        """In a task: take its rows."""

    def commit(self, sent: Sequence[TaskRows]) -> None:
        """In the driver, when all tasks are done. sent: of each, in the order of Spark's partitions."""

    def abort(self) -> None:
        """In the driver, when a task, or the commit, has failed."""


class AtLeastOnce:
    """Messages of a failed attempt at a task or a batch stay, and come again with the next attempt.

    Each row has a UNIQ_KEY that another attempt repeats: "<query>-<batch>-<partition>-<row>", or of a batch write
    "<id of the write>-0-<partition>-<row>".
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
            log.flush()  # Spark does not run a batch again whose tasks are done
        return TaskRows(rows)

    def commit(self, sent: Sequence[TaskRows]) -> None:
        pass

    def abort(self) -> None:
        pass


class AllOrNothing:
    """One batch write. Readers see all of its rows or none, even if it fails."""

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
        """Append the staged rows, and those of `more` to each topic. Readers see all of them at once, and they are on
        the device when this returns.
        """
        tables = self._staging.tables(each.file for each in sent if each.file)
        staged, rows = sum(table.num_rows for table in tables.values()), _rows_of(sent).total()
        if staged != rows:  # a file that ends between two batches looks whole
            raise StagingError(
                f"{self._options.staging_path}: tasks kept {rows:,} rows there, and {staged:,} are left; nothing was "
                "appended, run the write again. A directory that several machines see must show what another one wrote"
            )
        append = log.begin()
        for topic, table in tables.items():
            append.add(topic, table)
        for topic, batch in more.items():
            append.add(topic, batch)
        append.publish(flush=True)


class OncePerBatch(AllOrNothing):
    """The write of one micro-batch of a streaming query, or one write of several in its `foreachBatch`.

    The query is known by the id in its checkpoint, which lasts as long as that; and by `producerGroup` if it is
    given, which tells apart the writes of one `foreachBatch`. Those need not write anything in a batch; a stream has
    every batch committed, and noted, also one without rows.
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
                _log.warning("Batch %d of query %s was written before: it is skipped", batch.number, sent[0].query)
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
    """How many rows all tasks have for each topic."""
    return sum((Counter(each.rows) for each in sent), Counter())


def _streaming_batch() -> tuple[str, int, str]:
    """The id of the streaming query that this task runs for, the number of its batch, and the id of its run, "" if
    Spark does not tell it. Raises `OptionError`.
    """
    query, batch, run = map(_context().getLocalProperty, (_QUERY_ID, _BATCH_ID, _RUN_ID))
    if not query or not batch:
        raise OptionError(
            "producerGroup is for a write in foreachBatch, and Spark says of no streaming query that this one is part "
            "of; leave it out"
        )
    return query, int(batch), run if run and _UUID.fullmatch(run) else ""


def _of_known_topics(
    address: LogAddress, tables: Iterable[tuple[str, pa.RecordBatch]]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Raises `SubscriptionError` at the first row of a topic that is not there."""
    known: set[str] = set()
    for topic, table in tables:
        if topic not in known:
            with address.open() as log:
                require_topic(address, log, topic)
            known.add(topic)
        yield topic, table


def require_topic(address: LogAddress, log: Log, topic: str) -> None:
    """Raises `SubscriptionError` for a topic that the log does not have."""
    if topic not in (topics := log.topics()):
        others = ", ".join(name for name in topics if not is_internal_topic(name)) or "none"
        of_broker = f"mqadmin updateTopic -t {topic} ..."
        how = of_broker if address.directory is None else f"pyspark-mq topic create {address} {topic!r}"
        near = did_you_mean([topic], topics)
        raise SubscriptionError(f"There is no topic {topic!r}, but {others}. {near}Create it first: {how}")


class MqBatchWriter(DataSourceArrowWriter):
    """One `df.write`. Made in the driver; tasks and the commit get it pickled."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises `OptionError`, `SchemaError`, `SubscriptionError`, `StagingError`, and what opening a store does."""
        if overwrite:
            raise OptionError('A topic is only appended to: write with mode("append")')
        whole = AllOrNothing if options.producer_group is None else OncePerBatch
        self._delivery = _checked(options, schema, whole, is_stream=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._delivery.send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.commit(_sent(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.abort()


class MqStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of `df.writeStream`: made for its tasks, and made once more for its commit."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises as `MqBatchWriter`."""
        if overwrite:
            raise OptionError(
                'A topic is only appended to, and complete mode gives all results again: use outputMode("append")'
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
    """What delivers rows of `schema`. Raises what would make all tasks fail."""
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
