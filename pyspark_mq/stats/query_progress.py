"""The progress of a streaming query, as one line of text or as a table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_mq.stats.query_lag import QueryLag, of_query, positions, query_lags, total
from store.model.html_table import html_table
from store.model.log_protocol import Queue

_SHOWN_QUEUES = 50


class QueueProgress(NamedTuple):
    """A queue that a query reads. offset: the next one to read. end: the queue's end. lag: unread messages."""

    topic: str
    queue: str
    offset: int
    end: int
    lag: int


class QueryProgress(NamedTuple):
    """The progress of a query after its last finished batch.

    state: "running", "stopped" or "failed". batch: number of the batch; None before the first one.
    rows_per_second: rows of the batch, divided by its duration. queues, lag: of the sources with format "mq". The ends
    are from the start of the batch, and the lag is the number of messages that it left unread.
    """

    name: str
    state: str
    batch: int | None
    rows_per_second: float
    lag: int
    queues: Sequence[QueueProgress]

    def __repr__(self) -> str:
        if self.batch is None:
            return f"<Query {self.name}: {self.state}, no batch yet>"
        rate = f"{self.rows_per_second:,.0f} rows/s"
        return f"<Query {self.name}: {self.state}, batch {self.batch:,}, {rate}, {self.lag:,} messages behind>"

    def _repr_html_(self) -> str:
        more = len(self.queues) - _SHOWN_QUEUES
        caption = repr(self) if more <= 0 else f"{self!r}; {more} more queues are in `queues`"
        return html_table(caption, QueueProgress._fields, self.queues[:_SHOWN_QUEUES])


def progress(query: StreamingQuery) -> QueryProgress:
    """Return the current progress of a streaming query. A notebook displays it as a table of its queues.

    The numbers come from Spark's report of the last finished batch. An idle query runs no batch, so they stay the same.
    """
    state = "running" if query.isActive else "stopped" if query.exception() is None else "failed"
    name, last = query.name or str(query.id), query.lastProgress
    if last is None:
        return QueryProgress(name, state, None, 0.0, 0, ())
    lags = of_query(query_lags(source) for source in last["sources"])
    queues = [row for source in last["sources"] for row in _queues_of(source, lags)]
    return QueryProgress(name, state, last["batchId"], last["processedRowsPerSecond"], total(lags).messages, queues)


def _queues_of(source: Mapping[str, Any], lags: Mapping[Queue, QueryLag]) -> list[QueueProgress]:
    reached, ends = positions(source) or ({}, {})
    return [
        QueueProgress(queue.topic, queue.name, reached.get(queue, 0), end, lags[queue].messages)
        for queue, end in sorted(ends.items())
    ]
