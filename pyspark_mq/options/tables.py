"""The options of `format("mq")`. Parsing, error messages, and the tables of docs/source.md and docs/sink.md use
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from pyspark_mq.errors import OptionError

T = TypeVar("T")


class Option(NamedTuple):
    """An option, as the documentation shows it.

    default: as a user would write it, or None. meaning: Markdown. without: for an option without a default, the
    behaviour if it is not given.
    """

    name: str
    default: str | None
    example: str
    meaning: str
    without: str = ""


READ_OPTIONS = (
    Option(
        "path",
        None,
        "/data/mq",
        "the store's directory, or an [archive](archive.md): a directory, or a URL such as `s3://bucket/mq`; "
        "`.load(path)` sets it",
        "(needed)",
    ),
    Option(
        "archive",
        None,
        "/data/archive",
        "the archive with the messages that the store deleted; empty: none is read. See [the archive](archive.md)",
        "the archive in the store's settings",
    ),
    Option(
        "storageOptions",
        None,
        '{"anon": true}',
        "options for fsspec's file system of an archive, as JSON. Credentials are better in the environment",
    ),
    Option("subscribe", None, "orders,invoices", "topics, separated by commas", "one of these three"),
    Option(
        "subscribePattern",
        None,
        "^(ord|inv)",
        "a regular expression that is found anywhere in a topic's name, as in Spark's Kafka source (`^orders$` is one "
        "topic); new topics join from their beginning. RocketMQ's own topics "
        "never match (its system topics, `%RETRY%...`, `%DLQ%...`, `%LMQ%...`): name them with `subscribe`",
    ),
    Option("assign", None, '{"orders": [0, 1]}', "queues, as JSON"),
    Option(
        "startingOffsets",
        None,
        '{"orders": {"0": 2, "1": -2}}',
        "the start of a new query: `earliest`, `latest`, JSON (-2 earliest, -1 latest), `-1000` for the "
        "last 1,000 messages of each queue, or `group`; see [starts and ends](#starts-and-ends)",
        "stream `latest`, batch `earliest`",
    ),
    Option(
        "startingTimestamp",
        None,
        "-10 minutes",
        "the same by store time: milliseconds since 1970, `2026-01-31T12:00:00Z`, or relative to now",
    ),
    Option(
        "startingOffsetsByTimestamp",
        None,
        '{"orders": {"0": 1767225600000, "1": 0}}',
        "the same for each queue, in milliseconds since 1970",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "latest",
        "if all messages of a queue are older than the start: raise an `error`, or begin at the `latest` offset",
    ),
    Option(
        "endingOffsets",
        None,
        '{"orders": {"0": 2, "1": -1}}',
        "batch only: the end of the query; `latest`, JSON, `-1000` for all but the last 1,000 messages of each queue, "
        "or `group`",
        "`latest`",
    ),
    Option(
        "endingTimestamp",
        None,
        "2026-01-31T12:00:00Z",
        "batch only: the same by store time; messages stored at that time or later are not read",
    ),
    Option(
        "endingOffsetsByTimestamp",
        None,
        '{"orders": {"0": 4102444800000, "1": 4102444800000}}',
        "batch only: the same for each queue, in milliseconds since 1970",
    ),
    Option(
        "consumerGroup",
        None,
        "billing",
        "the group to which a stream commits its offsets, and from which `startingOffsets=group` starts; see "
        "[consumer groups](#consumer-groups-and-lag)",
    ),
    Option(
        "consumeMode",
        "concurrently",
        "orderly",
        "streams only, with `consumerGroup`: an `orderly` stream locks its queues, so that no other query or consumer "
        "of the group reads them at the same time. It never splits a queue over partitions; see "
        "[groups](groups.md#orderly-streams)",
    ),
    Option(
        "whenLocked",
        "wait",
        "takeOver",
        "with `consumeMode=orderly`, if another member of the group has locked a queue: `wait` for its end, `takeOver` "
        "the queue after its current batch, or `fail`",
    ),
    Option(
        "subExpression",
        None,
        "paid || shipped",
        "the [filter](#filters) of messages: tags as in RocketMQ, or a condition",
        "all",
    ),
    Option(
        "expressionType",
        "TAG",
        "SQL92",
        "the language of `subExpression`: `TAG`, or `SQL92` for a condition on properties",
    ),
    Option(
        "maxOffsetsPerTrigger",
        None,
        "100000",
        "the most messages in a micro-batch, shared among queues in proportion to their backlog",
        "no limit",
    ),
    Option(
        "maxBytesPerTrigger",
        None,
        "64m",
        "the most bytes of records in a micro-batch; a larger message has a batch of its own",
        "no limit",
    ),
    Option(
        "minOffsetsPerTrigger",
        None,
        "4",
        "the least messages in a micro-batch, until `maxTriggerDelay` has passed; `Trigger.AvailableNow` and "
        "`Trigger.Once` do not wait",
        "no limit",
    ),
    Option(
        "maxTriggerDelay",
        "15m",
        "30 seconds",
        "with `minOffsetsPerTrigger`: the time after which fewer messages make a micro-batch",
    ),
    Option(
        "minPartitions",
        None,
        "8",
        "the least Spark partitions; queues are split to reach it",
        "one a queue; small ones share",
    ),
    Option(
        "maxRecordsPerPartition",
        None,
        "10000",
        "the most messages in a Spark partition; larger ranges are split",
        "no limit",
    ),
    Option(
        "failOnDataLoss",
        "true",
        "false",
        "`true`: messages deleted before they were read end the query; `false`: they are logged as a warning. The same "
        "counts if the last message read is not the one in the queue: the store was restored from a backup, or a "
        "RocketMQ broker restarted the topic",
    ),
    Option("includeProperties", "false", "true", "add the column `properties`"),
    Option(
        "checkCRC",
        "true",
        "false",
        "compare each record with its checksum: of the whole record if `enabledAppendPropCRC` wrote one, else of the "
        "body. `false` also skips topic and properties if no column needs them",
    ),
    Option(
        "maxDecompressedMessageSize",
        None,
        "64m",
        "the largest size to which a compressed body may decompress",
        "the store's, 64 MiB",
    ),
    Option(
        "unreadable",
        "error",
        "null",
        "for a body that decompresses to more, or not at all: `error` ends the query and names the message; `null` "
        "gives a row without a body, and adds the column `bodyError` with the reason",
    ),
    Option(
        "holdTimeoutMs",
        "250",
        "100",
        "the longest sleep of an idle query, in milliseconds; an arrival wakes it at once",
    ),
    Option(
        "realTime",
        "false",
        "true",
        "streams only: tasks stay open and hand over each message when it arrives, instead of planning micro-batches, "
        "see [real-time reads](real-time.md). Needs PySpark 4.3 with `spark.python.udf.pipelined.enabled=true`",
    ),
    Option("batchDuration", "60 seconds", "5m", "with `realTime`: the time for which a batch stays open"),
    Option(
        "realTimePartitions",
        None,
        "2",
        "with `realTime`: the most tasks; each reads several queues if there are more queues. Spark needs a task slot "
        "for each. Only a running task can count the slots, so the first batch of a new query uses the driver's "
        "cores. With dynamic allocation every batch does",
        "Spark's task slots",
    ),
    Option(
        "ledgerPath",
        None,
        "/data/ledger",
        "with `realTime`: the place where tasks record the ranges they read, so that a replay reads the same messages: "
        "a directory that the driver and all executors see, or a URL such as `s3://bucket/ledger`, see "
        "[real-time reads](real-time.md). Needed for a read-only store, a cluster, or an archive behind a URL. A run's "
        "records are deleted a week after the next run continued from them; a copy of a checkpoint works until then",
        "inside the store",
    ),
)

WRITE_OPTIONS = (
    Option("path", None, "/data/mq", "the store's directory; `.save(path)` and `.start(path)` set it", "(needed)"),
    Option(
        "topic",
        None,
        "orders",
        "the topic of all rows; overrides the column, as in the Kafka sink",
        "the column `topic`",
    ),
    Option("delivery", "exactly-once", "at-least-once", "see below"),
    Option(
        "stagingPath",
        None,
        "/data/staging",
        "exactly once: the place where tasks keep their rows until the driver appends them: a directory that the "
        "driver and all executors see, or a URL such as `s3://bucket/staging`. It needs space for the largest batch",
        "`staging` in the store",
    ),
    Option("producerGroup", None, "routed", "for `df.write` in `foreachBatch`: a name for this write, see below"),
)

NO_OPTIONS_OF_TABLES = (
    "Spark does not pass the options of CREATE TABLE to Python data sources. Use CREATE TEMPORARY VIEW ... USING mq "
    "OPTIONS (...)"
)

_OF_KAFKA = {
    "kafka.bootstrap.servers": "use path (a store's directory) or nameServer (a RocketMQ cluster)",
    "kafka.group.id": "use consumerGroup",
    "groupidprefix": "use consumerGroup",
    "includeheaders": "use includeProperties to read them; a write takes the column properties without an option",
}


def names_of(table: Iterable[Option]) -> tuple[str, ...]:
    return tuple(option.name for option in table)


class GivenOptions(dict[str, str]):
    """The given options by documented name. `text` and `value` add the defaults of `table`."""

    def __init__(self, given: Mapping[str, str], table: Iterable[Option]) -> None:
        super().__init__(given)
        self._defaults = {option.name: option.default for option in table if option.default is not None}

    def text(self, name: str) -> str:
        return self.get(name, self._defaults[name])

    def value(self, name: str, parse: Callable[[str, str], T]) -> T:
        return parse(name, self.text(name))

    def if_given(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        return parse(name, self[name]) if name in self else None


def known_options(options: Mapping[str, str], table: Iterable[Option], others: Iterable[str] = ()) -> GivenOptions:
    """Return the options by documented name. Raises `OptionError` for one that is not in `table` or `others`."""
    names = (*names_of(table), *others)
    given = {name.lower(): value for name, value in options.items()}
    by_lower_name = {name.lower(): name for name in names}
    if "paths" in given:  # from DataFrameReader.load of a list
        raise OptionError(
            f"A query reads one store, and load() got several paths: {given['paths']}. Load each path on its "
            "own, and combine them with DataFrame.union"
        )
    if "provider" in given:  # added by a catalog
        raise OptionError(NO_OPTIONS_OF_TABLES)
    for name in given:
        if name not in by_lower_name:
            hint = _hint(name, by_lower_name)
            raise OptionError(f"Unknown option {name!r}: {hint}")
    return GivenOptions({by_lower_name[name]: value for name, value in given.items()}, table)


def _hint(name: str, by_lower_name: Mapping[str, str]) -> str:
    if name in _OF_KAFKA:
        return f"it belongs to the Kafka source; here {_OF_KAFKA[name]}"
    if name in ("topic", "topics"):
        return "use subscribe for the topics to read, topic for the topic to write to"
    if name.startswith(("kafka", "fetchoffset.")):
        return "it belongs to the Kafka source and has no counterpart here. Remove it"
    near = get_close_matches(name, by_lower_name, n=1)
    return f"did you mean {by_lower_name[near[0]]}?" if near else f"the options are {', '.join(by_lower_name.values())}"
