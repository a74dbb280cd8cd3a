from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_mq.errors import OptionError, SubscriptionError
from pyspark_mq.offsets.limits import EARLIEST, LATEST, EarliestOrLatest, OffsetsByQueue
from pyspark_mq.options.sink import WriteOptions
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.options.subscription import SubscribedQueues
from store import TagFilter, message_filter
from store.api.group_protocol import Subscription as Expression
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import Queue

BASE = {"path": "/data/mq", "subscribe": "orders"}


def test_defaults_are_set() -> None:
    options = SourceOptions.parse(BASE)
    assert options == SourceOptions(
        address=DirectoryAddress("/data/mq"),
        subscription=SubscribedQueues(topics=("orders",)),
        start=None,
        end=None,
        consumer_group=None,
        orderly=None,
        expression=Expression(),
        message_filter=TagFilter(None),
        max_offsets_per_trigger=None,
        max_bytes_per_trigger=None,
        min_offsets_per_trigger=None,
        max_trigger_delay_seconds=900.0,
        min_partitions=None,
        max_records_per_partition=None,
        fail_on_data_loss=True,
        include_properties=False,
        check_crc=True,
        max_decompressed_message_size=None,
        unreadable="error",
        hold_timeout_seconds=0.25,
        real_time=False,
        batch_duration_seconds=60.0,
        real_time_partitions=None,
        ledger_path=None,
        broker_timeout_seconds=600.0,
        skips_missing_brokers=False,
    )
    assert options.stream_start() == EarliestOrLatest(LATEST)
    assert options.batch_limits() == (EarliestOrLatest(EARLIEST), EarliestOrLatest(LATEST))


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("startingOffsets", "earliest", "start", EarliestOrLatest(EARLIEST)),
        ("endingOffsets", '{"orders": {"0": 3}}', "end", OffsetsByQueue("endingOffsets", {Queue("orders", 0): 3})),
        ("consumerGroup", "readers", "consumer_group", "readers"),
        ("subExpression", "paid || shipped", "message_filter", TagFilter(("paid", "shipped"))),
        ("maxOffsetsPerTrigger", "1000", "max_offsets_per_trigger", 1000),
        ("maxBytesPerTrigger", "1000", "max_bytes_per_trigger", 1000),
        ("maxBytesPerTrigger", "64m", "max_bytes_per_trigger", 64 << 20),
        ("maxBytesPerTrigger", "2 GB", "max_bytes_per_trigger", 2 << 30),
        ("maxBytesPerTrigger", "512k", "max_bytes_per_trigger", 512 << 10),
        ("minOffsetsPerTrigger", "8", "min_offsets_per_trigger", 8),
        ("minPartitions", "8", "min_partitions", 8),
        ("maxRecordsPerPartition", "8", "max_records_per_partition", 8),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("includeProperties", "true", "include_properties", True),
        ("checkCRC", "false", "check_crc", False),
        ("maxDecompressedMessageSize", "1m", "max_decompressed_message_size", 1 << 20),
        ("unreadable", "NULL", "unreadable", "null"),
        ("holdTimeoutMs", "0", "hold_timeout_seconds", 0.0),
        ("realTime", "true", "real_time", True),
        ("batchDuration", "1s", "batch_duration_seconds", 1.0),
        ("batchDuration", "1.5 seconds", "batch_duration_seconds", 1.5),
        ("batchDuration", "5 Minutes", "batch_duration_seconds", 300.0),
        ("batchDuration", "1h", "batch_duration_seconds", 3600.0),
        ("batchDuration", "2 days", "batch_duration_seconds", 172800.0),
        ("realTimePartitions", "2", "real_time_partitions", 2),
        ("ledgerPath", "/data/ledger", "ledger_path", "/data/ledger"),
        ("ledgerPath", "s3://bucket/ledger", "ledger_path", "s3://bucket/ledger"),
    ],
)
def test_values_are_parsed(name: str, text: str, field: str, value: object) -> None:
    assert getattr(SourceOptions.parse({**BASE, name.lower(): text}), field) == value
    assert getattr(SourceOptions.parse({**BASE, name.upper(): text}), field) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("maxOffsetPerTrigger", "1", "did you mean maxOffsetsPerTrigger?"),
        ("bootstrap", "1", "the options are path, archive, storageOptions, subscribe"),
        (
            "kafka.bootstrap.servers",
            "broker:9092",
            "it belongs to the Kafka source; here use path (a store's directory) or nameServer",
        ),
        ("includeHeaders", "true", "it belongs to the Kafka source; here use includeProperties"),
        ("kafka.session.timeout.ms", "1", "it belongs to the Kafka source and has no counterpart here. Remove it"),
        ("fetchOffset.numRetries", "1", "it belongs to the Kafka source and has no counterpart here. Remove it"),
        ("topic", "orders", "topic is for writing. To read topics, name them in subscribe"),
        ("delivery", "exactly-once", "delivery is for writing"),
        ("topics", "orders", "use subscribe for the topics to read"),
        ("realTimes", "true", "did you mean realTime?"),
        ("realTime", "soon", "realTime takes true or false"),
        ("batchDuration", "0.5s", "from 1 second to 24 days, such as '30 seconds'"),
        ("batchDuration", "60", "from 1 second to 24 days, such as '30 seconds' or '5m', got '60'"),
        ("batchDuration", "1 fortnight", "batchDuration takes a time"),
        ("batchDuration", "9" * 400 + "s", "from 1 second to 24 days"),
        ("batchDuration", "25d", "from 1 second to 24 days"),
        ("batchDuration", "1000h", "from 1 second to 24 days"),
        ("maxOffsetsPerTrigger", "9" * 5000, "above 0, got '999"),
        ("maxBytesPerTrigger", "9" * 5000, "takes a number of bytes above 0"),
        ("maxBytesPerTrigger", "99999999999999999g", "takes a number of bytes above 0"),
        ("holdTimeoutMs", "9" * 12, "at most 24 days"),
        ("unreadable", "skip", "unreadable takes error or null, got 'skip'"),
        ("maxDecompressedMessageSize", "0", "maxDecompressedMessageSize takes a number of bytes above 0"),
        ("realTimePartitions", "0", "above 0"),
        ("ledgerPath", "", "a directory that the driver and all executors see"),
        ("ledgerPath", "s3:/bucket/ledger", "s3:/...: a URL has two slashes after its scheme"),
        ("ledgerPath", "dbfs:/ledger", "Name a mounted directory by its path, such as /dbfs/..."),
        ("ledgerPath", "file://host/ledger", "a URL of a local directory begins with file:///"),
        (
            "ledgerPath",
            "hdfs://name/ledger",
            "hdfs:// cannot create a file atomically",
        ),
        ("ledgerPath", "s3://key:hush@bucket/ledger", "has a password, which would be logged"),
        ("maxOffsetsPerTrigger", "0", "above 0, got '0'"),
        ("maxOffsetsPerTrigger", "-5", "above 0, got '-5'"),
        ("maxOffsetsPerTrigger", "many", "above 0, got 'many'"),
        ("maxOffsetsPerTrigger", "²", "above 0, got '²'"),
        ("maxBytesPerTrigger", "0", "maxBytesPerTrigger takes a number of bytes"),
        ("maxBytesPerTrigger", "64 miles", "maxBytesPerTrigger takes a number of bytes"),
        ("minPartitions", "1.5", "minPartitions takes a whole number"),
        ("holdTimeoutMs", "-1", "holdTimeoutMs takes a whole number of milliseconds, at most 24 days"),
        ("failOnDataLoss", "yes", "failOnDataLoss takes true or false, got 'yes'"),
        ("subExpression", "||", "subExpression"),
        ("expressionType", "SQL92", "expressionType=SQL92 is given without subExpression"),
        ("startingOffsets", "{", "startingOffsets takes earliest, latest, group, -1000"),
        ("paths", '["/a", "/b"]', "A query reads one store"),
        ("provider", "mq", "CREATE TEMPORARY VIEW"),
        ("subscribePattern", "o.*", "subscribe and subscribePattern exclude each other"),
        ("assign", '{"orders": [0]}', "subscribe and assign exclude each other"),
    ],
)
def test_wrong_values_are_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse({**BASE, name.lower(): text})
    assert message in str(caught.value)


def test_conditions_are_parsed() -> None:
    condition = {**BASE, "subExpression": "region = 'eu'", "expressionType": "SQL92"}
    assert SourceOptions.parse(condition).message_filter == message_filter("region = 'eu'", "SQL92")
    with pytest.raises(OptionError, match=r"subExpression: SQL92 expression, character 8: .*write <>.*\n    region !="):
        SourceOptions.parse({**condition, "subExpression": "region != 'eu'"})
    with pytest.raises(OptionError, match="expressionType 'SQL': give TAG or SQL92"):
        SourceOptions.parse({**condition, "expressionType": "SQL"})
    with pytest.raises(OptionError, match="set expressionType=SQL92"):
        SourceOptions.parse({**condition, "expressionType": "TAG"})


def test_path_is_required() -> None:
    with pytest.raises(OptionError, match="The log is not named"):
        SourceOptions.parse({"subscribe": "orders"})
    with pytest.raises(OptionError, match=r"is not named.* the options of CREATE TABLE .* Use CREATE TEMPORARY VIEW"):
        WriteOptions.parse({})


def test_path_means_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mq").mkdir()
    assert SourceOptions.parse({**BASE, "path": "mq"}).address == DirectoryAddress(str(tmp_path / "mq"))
    assert SourceOptions.parse({**BASE, "path": "file:mq"}).address == DirectoryAddress(str(tmp_path / "mq"))
    assert SourceOptions.parse({**BASE, "path": "file:/data/mq"}).address == DirectoryAddress("/data/mq")
    for url in ("file:///data/mq", "file://localhost/data/mq"):  # so the archive in its settings is used, too
        assert SourceOptions.parse({**BASE, "path": url}).address == DirectoryAddress("/data/mq")
    remote = SourceOptions.parse({**BASE, "path": "file://host/mq"})
    assert remote.address == DirectoryAddress("file://host/mq")


@pytest.mark.parametrize("path", ["dbfs:/data/mq", "dbfs:///data/mq", "DBFS:/data/mq"])
def test_databricks_path_gets_a_remedy(path: str) -> None:
    with pytest.raises(OptionError, match=r"opened as a local directory.* give '/dbfs/data/mq'"):
        SourceOptions.parse({**BASE, "path": path})


def test_relative_path_without_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Spark Connect, the client's working directory is another one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        OptionError,
        match=f"'mq' is relative, and {tmp_path}/mq does not exist where Spark's driver runs",
    ):
        SourceOptions.parse({**BASE, "path": "mq"})


def test_a_subscription_is_required() -> None:
    with pytest.raises(OptionError, match=r"No topic is subscribed\. Set exactly one of"):
        SourceOptions.parse({"path": "/data/mq"})


@pytest.mark.parametrize(
    "limit",
    ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition"],
)
def test_limits_do_not_go_with_real_time(limit: str) -> None:
    with pytest.raises(OptionError, match=f"{limit} does not work with realTime"):
        SourceOptions.parse({**BASE, "realTime": "true", limit: "5"}).stream_start()


@pytest.mark.parametrize(("text", "seconds"), [("2m", 120.0), ("15min", 900.0), ("1500ms", 1.5)])
def test_max_delay_needs_a_minimum_of_messages(text: str, seconds: float) -> None:
    given = {**BASE, "maxTriggerDelay": text}
    with pytest.raises(OptionError, match="maxTriggerDelay works only with minOffsetsPerTrigger"):
        SourceOptions.parse(given)
    assert SourceOptions.parse({**given, "minOffsetsPerTrigger": "4"}).max_trigger_delay_seconds == seconds


def test_minimum_of_messages_must_not_exceed_the_maximum() -> None:
    options = {**BASE, "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(6\) is above maxOffsetsPerTrigger \(5\)"):
        SourceOptions.parse(options).stream_start()


def test_a_batch_query_is_not_real_time() -> None:
    with pytest.raises(OptionError, match="realTime is for streaming queries"):
        SourceOptions.parse({**BASE, "realTime": "true"}).batch_limits()


@pytest.mark.parametrize(
    ("option", "text"),
    [("endingOffsets", "latest"), ("endingTimestamp", "5"), ("endingOffsetsByTimestamp", '{"orders": {"0": 5}}')],
)
def test_end_options_are_refused_for_streams(option: str, text: str) -> None:
    with pytest.raises(OptionError, match=r"endingOffsets, .* are for batch queries"):
        SourceOptions.parse({**BASE, option: text}).stream_start()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("startingOffsets", "latest", "startingOffsets cannot be latest"),
        ("startingOffsets", "-0", "startingOffsets cannot be latest"),
        ("startingOffsets", '{"orders": {"0": -1}}', "(-1) for orders/0: a batch"),
        ("endingOffsets", "earliest", "endingOffsets cannot be earliest"),
        ("endingOffsets", '{"orders": {"0": -2}}', "(-2) for orders/0: a batch"),
        ("maxOffsetsPerTrigger", "5", "maxOffsetsPerTrigger is for streaming queries"),
        ("maxBytesPerTrigger", "5m", "maxBytesPerTrigger is for streaming queries"),
        ("minOffsetsPerTrigger", "5", "minOffsetsPerTrigger is for streaming queries"),
    ],
)
def test_stream_options_are_refused_in_batch_queries(name: str, text: str, message: str) -> None:
    options = SourceOptions.parse({**BASE, name: text})
    with pytest.raises(OptionError, match=r"batch|streaming") as caught:
        options.batch_limits()
    assert message in str(caught.value)


TOPICS = {
    topic: tuple(Queue(topic, queue_id) for queue_id in range(queues))
    for topic, queues in (("orders", 2), ("orders-eu", 1), ("audit", 1))
}


@pytest.mark.parametrize(
    ("subscription", "queues"),
    [
        (("orders, audit ,orders", None, None), [("audit", 0), ("orders", 0), ("orders", 1)]),
        ((None, "orders.*", None), [("orders", 0), ("orders", 1), ("orders-eu", 0)]),
        ((None, "-e", None), [("orders-eu", 0)]),
        ((None, "^orders$", None), [("orders", 0), ("orders", 1)]),
        ((None, None, '{"orders": [1], "audit": [0]}'), [("audit", 0), ("orders", 1)]),
    ],
)
def test_subscriptions_select_queues(
    subscription: tuple[str | None, str | None, str | None], queues: list[tuple[str, int]]
) -> None:
    selected = SubscribedQueues.parse(*subscription)
    assert selected.select(TOPICS) == [Queue(*queue) for queue in queues]
    selected.require(TOPICS)


@pytest.mark.parametrize(
    "internal", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "%RETRY%readers", "%DLQ%readers", "%LMQ%device"]
)
def test_system_topics_are_read_only_if_named(internal: str) -> None:
    topics = {**TOPICS, internal: (Queue(internal, 0),)}
    for pattern in (".*", re.escape(internal)):
        assert Queue(internal, 0) not in SubscribedQueues.parse(None, pattern, None).select(topics)
    assert SubscribedQueues.parse(internal, None, None).select(topics) == [Queue(internal, 0)]
    assert SubscribedQueues.parse(None, None, f'{{"{internal}": [0]}}').select(topics) == [Queue(internal, 0)]


@pytest.mark.parametrize(
    ("subscription", "missing"),
    [
        (("orders,payments", None, None), "payments"),
        ((None, None, '{"orders": [1, 2], "x": [0]}'), "orders/2, x/0"),
    ],
)
def test_named_topics_must_exist(subscription: tuple[str | None, str | None, str | None], missing: str) -> None:
    with pytest.raises(SubscriptionError, match=f"The log has no {missing}; it has audit \\(1 queue\\)"):
        SubscribedQueues.parse(*subscription).require(TOPICS)


@pytest.mark.parametrize("subscription", [("order, audit", None, None), (None, None, '{"order": [0]}')])
def test_misspelled_topic_gets_a_suggestion(subscription: tuple[str | None, str | None, str | None]) -> None:
    with pytest.raises(
        SubscriptionError,
        match=r"The log has no order.*\. Did you mean orders\? Create the topic first",
    ):
        SubscribedQueues.parse(*subscription).require(TOPICS)


def test_many_topics_get_no_suggestion() -> None:
    """A waiting query checks at every arrival, and the suggestion would take most of the time."""
    many = {f"orders-{number}": (Queue(f"orders-{number}", 0),) for number in range(1000)}
    with pytest.raises(SubscriptionError, match=r"\(1 queue\) and 980 more\. Create the topic first"):
        SubscribedQueues.parse("orders-", None, None).require(many)


@pytest.mark.parametrize(
    ("subscription", "message"),
    [
        (("a,,b", None, None), "topics separated by commas"),
        (("", None, None), "topics separated by commas"),
        ((None, "(", None), "no regular expression"),
        ((None, "a{99999999999}", None), "no regular expression"),
        ((None, "(" * 9999 + ")" * 9999, None), "no regular expression"),
        ((None, None, '{"a": [' + "9" * 5000 + "]}"), "assign takes JSON"),
        ((None, None, "[" * 99999), "assign takes JSON"),
        ((None, None, '{"a": [0], "a": [1]}'), "'a' occurs twice in one object"),
        ((None, None, "a"), "line 1 column 1"),
        ((None, None, "[]"), "at least one topic"),
        ((None, None, '{"a": []}'), "topic 'a' needs a list"),
        ((None, None, '{"a": [true]}'), "'a' has true"),
        ((None, None, '{"a": [-1]}'), "'a' has -1"),
    ],
)
def test_wrong_subscriptions(subscription: tuple[str | None, str | None, str | None], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SubscribedQueues.parse(*subscription)
    assert message in str(caught.value)
