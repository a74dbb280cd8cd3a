"""What a batch DataFrame reads of its logs, as Spark has planned it: `pyspark_mq.explain`.

Spark keeps the partitions that this source planned, with the filters that it handed down. They are looked at here, in
the user's process; nothing is read but queues.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_mq.errors import PlanError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.batch_reader import MqBatchReader
from pyspark_mq.source.reading import default_schema
from pyspark_mq.stats.query_lag import record_bytes
from store.model.log_protocol import Log, QueueRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCAN = "BatchScan mq"  # how Spark names a scan of this source
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
OPTION = "the option pushDownPredicate"


class Share(NamedTuple):
    """What of one topic is read, of what would be without filters.

    bytes: of records, by the average of the first ones where there are very many; None where the log cannot tell.
    """

    messages: int
    bytes: int | None
    all_messages: int
    all_bytes: int | None


class Reading(NamedTuple):
    """What is read of one log: by topic; which columns are made; by which filters (SQL), and why they are not used, or
    None."""

    log: str
    topics: dict[str, Share]
    columns: tuple[str, ...]
    filters: tuple[str, ...]
    unused: str | None

    def __str__(self) -> str:
        lines = [f"mq {self.log}"]
        for topic, share in self.topics.items():
            read, of = (_amount(*amount) for amount in (share[:2], share[2:]))
            lines.append(f"  {topic}: reads {read} of {of}")
        if self.unused is not None:
            lines.append(f"  filters: not used to read less, for {self.unused} is not true")
        elif self.filters:
            lines.append(f"  filters: {' and '.join(self.filters)}")
        else:
            lines.append("  filters: none")
        lines.append(f"  columns: {', '.join(self.columns)}; to read fewer name them with .schema(...), not select")
        return "\n".join(lines)


def explain(df: DataFrame) -> None:
    """Print what a batch DataFrame reads of logs: messages and bytes of each topic, and of how many.

    As it is planned now; for that Spark starts one of its Python processes, if it has not planned it yet. Raises
    `PlanError` where there is no such plan, and what the query itself would raise when it is planned.
    """
    for reading in readings(df):
        print(reading)


def readings(df: DataFrame) -> list[Reading]:
    """What `explain` prints, one for each time that a log is read. Raises as that."""
    if not hasattr(df, "_jdf"):
        raise PlanError("Spark Connect keeps its plans to itself: call explain in a session without it")
    if df.isStreaming:
        raise PlanError("A stream is planned batch by batch; see pyspark_mq.stats.query_lag for how far it is behind")
    execution = df._jdf.queryExecution()
    is_on = df.sparkSession.conf.get(PUSHDOWN, "false") == "true"
    nodes = list(_nodes(execution.optimizedPlan()))
    scans = [leaf for leaf in _nodes(execution.sparkPlan()) if leaf.nodeName() == _SCAN]
    if not scans:
        raise PlanError("This DataFrame reads no mq: it may be cached, or made of other sources only")
    return [_reading(scan, nodes, is_on=is_on) for scan in scans]


def _reading(scan: Any, nodes: list[Any], *, is_on: bool) -> Reading:
    """scan: of the physical plan. nodes: of the logical one, in which the same scan has its options. is_on: whether
    `PUSHDOWN` is."""
    relation = next(node for node in nodes if _is_of(node, scan.scan()))
    above = [
        node.condition().sql() for node in nodes if node.nodeName() == "Filter" and _is_of(node.child(), scan.scan())
    ]
    options = SourceOptions.parse(dict(relation.relation().options().asCaseSensitiveMap()))
    planned = [pickle.loads(bytes(part.pickedPartition())) for part in _each(scan.inputPartitions())]
    everything = MqBatchReader(options, default_schema(include_properties=False)).partitions()
    with options.address.open() as log:
        left, there = (_by_topic(log, _ranges(partitions)) for partitions in (planned, everything))
    unused = OPTION if not options.push_down_predicate else PUSHDOWN if not is_on else None
    topics = {topic: Share(*left.get(topic, (0, 0)), *there[topic]) for topic in sorted(there)}
    return Reading(str(options.address), topics, tuple(scan.scan().readSchema().fieldNames()), tuple(above), unused)


def _ranges(partitions: Iterable[Any]) -> list[QueueRange]:
    tasks = [partition.value for partition in partitions]
    return [wanted for task in tasks if task is not None for wanted in task.ranges]


def _by_topic(log: Log, ranges: Iterable[QueueRange]) -> dict[str, tuple[int, int | None]]:
    """Messages and bytes of each topic."""
    found: dict[str, tuple[int, int | None]] = {}
    for wanted in ranges:
        messages, size = found.get(wanted.queue.topic, (0, 0))
        more = None if size is None else record_bytes(wanted, log)
        found[wanted.queue.topic] = messages + wanted.length, None if size is None or more is None else size + more
    return found


def _amount(messages: int, size: int | None) -> str:
    return f"{messages:,} messages" + ("" if size is None else f" ({size:,} B)")


def _is_of(node: Any, scan: Any) -> bool:
    """Whether a node of the logical plan is the one of a scan."""
    return node.getClass().getSimpleName() == "DataSourceV2ScanRelation" and bool(node.scan().equals(scan))


def _nodes(plan: Any) -> Iterator[Any]:
    """A plan's nodes, those of subqueries left out."""
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _each(sequence: Any) -> Iterator[Any]:
    """The members of one of Scala's."""
    return (sequence.apply(index) for index in range(sequence.size()))
