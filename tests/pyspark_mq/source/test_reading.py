from __future__ import annotations

import threading
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from pyspark_mq.errors import DataLossError, SchemaError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import RangeReader, default_schema, projection
from store import Message, MessageStore, MessageTooLarge
from store.directory.directory_log import DirectoryLog
from store.format.columns import COLUMNS
from store.model.log_protocol import Positions, Queue, QueueRange
from tests.filled import Filled
from tests.pyspark_mq.source.streaming import unknown
from tests.store.format.test_inflating import mark


def offsets(filled: Filled, wanted: QueueRange | None, timeout: float = 0.0, **options: str) -> list[int]:
    parsed = SourceOptions.parse({"path": filled.path, "subscribe": "orders", **options})
    reader = RangeReader(parsed, default_schema(False), arrival_timeout_seconds=timeout)
    batches = reader.read(InputPartition(wanted and unknown(wanted)))
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def bodies(filled: Filled, wanted: QueueRange, **options: str) -> list[bytes | None]:
    parsed = SourceOptions.parse({"path": filled.path, "subscribe": "orders", **options})
    batches = RangeReader(parsed, default_schema(False)).read(InputPartition(unknown(wanted)))
    return [body for batch in batches for body in batch.column("body").to_pylist()]


@pytest.fixture
def expired(filled: Filled) -> Filled:
    """A store after retention deleted its first segments."""
    filled.put("orders", 0, 200, size=1000)
    segments = sorted((Path(filled.path) / "commitlog").iterdir())
    for segment in segments[:2]:
        segment.unlink()
    return filled


def test_no_partition_reads_nothing(filled: Filled) -> None:
    assert offsets(filled, None) == []


def test_task_reads_exactly_its_range(filled: Filled) -> None:
    assert offsets(filled, QueueRange(Queue("orders", 1), 1, 4)) == [1, 2, 3]
    assert offsets(filled, QueueRange(Queue("orders", 1), 0, 5), subExpression="B || C") == [1, 3]
    condition = {"subExpression": "TAGS = 'B' OR KEYS = 'k4'", "expressionType": "SQL92"}
    assert offsets(filled, QueueRange(Queue("orders", 1), 0, 5), **condition) == [1, 3, 4]


def test_task_waits_for_unpublished_messages(filled: Filled) -> None:
    arrival = threading.Timer(0.1, filled.put, ("orders", 0, 2))
    arrival.start()
    assert offsets(filled, QueueRange(Queue("orders", 0), 1, 5), timeout=60) == [1, 2, 3, 4]
    arrival.join()


def test_messages_that_never_arrive_are_data_loss(filled: Filled) -> None:
    wanted = QueueRange(Queue("orders", 0), 1, 9)
    with pytest.raises(DataLossError, match=r"orders/0 \[3, 9\) is lost: the queue still ends at 3"):
        offsets(filled, wanted)
    assert offsets(filled, wanted, failOnDataLoss="false") == [1, 2]


def test_deleted_topic_is_data_loss(filled: Filled) -> None:
    wanted = QueueRange(Queue("payments", 0), 1, 9)
    with pytest.raises(DataLossError, match=r"payments/0 \[1, 9\) is lost"):
        offsets(filled, wanted)
    assert offsets(filled, wanted, failOnDataLoss="false") == []


class Hurried(DirectoryLog):
    """A log in which waiting fails the test."""

    def wait(self, seen: Positions, timeout: float) -> None:
        raise AssertionError(seen)


def test_empty_range_does_not_wait(filled: Filled) -> None:
    reader = RangeReader(SourceOptions.parse({"path": filled.path, "subscribe": "orders"}), default_schema(False))
    wanted = QueueRange(Queue("orders", 0), 9, 9)
    with Hurried(MessageStore.open(filled.path, read_only=True)) as log:
        assert list(reader.scan(log, wanted, unknown(wanted))) == []


def test_deleted_messages_are_data_loss(expired: Filled) -> None:
    first, end = expired.store.offsets("orders", 0)
    assert 0 < first < end
    with pytest.raises(DataLossError, match=rf"orders/0 \[1, {first}\) is lost"):
        offsets(expired, QueueRange(Queue("orders", 0), 1, end))
    assert offsets(expired, QueueRange(Queue("orders", 0), 1, end), failOnDataLoss="false") == list(range(first, end))
    assert offsets(expired, QueueRange(Queue("orders", 0), 1, 2), failOnDataLoss="false") == []
    assert offsets(expired, QueueRange(Queue("orders", 0), first, end)) == list(range(first, end))


def test_too_large_body_fails_the_query_or_is_null(filled: Filled) -> None:
    for result in filled.store.put_many(
        [Message("orders", zlib.compress(body), queue_id=0) for body in (b"small", bytes(100 << 10), b"and on")]
    ):
        mark(filled.store, result.physical_offset, 0x301)
    wanted = QueueRange(Queue("orders", 0), 2, 6)
    bound = {"maxDecompressedMessageSize": "64k"}
    with pytest.raises(MessageTooLarge, match=r'queue 0, offset 4 .* more than 65,536 .*unreadable="null"'):
        bodies(filled, wanted, **bound)
    read = bodies(filled, wanted, **bound, unreadable="null")
    assert read == [filled.rows[2][3], b"small", None, b"and on"]
    assert bodies(filled, wanted)[2] == bytes(100 << 10)  # the store's own limit is larger
    assert offsets(filled, wanted, **bound, unreadable="null") == [2, 3, 4, 5]


def test_default_schema_has_the_usual_columns() -> None:
    assert default_schema(include_properties=False).simpleString() == (
        "struct<topic:string,queueId:int,queueOffset:bigint,msgId:string,tags:string,keys:string,body:binary,"
        "bornTimestamp:timestamp,storeTimestamp:timestamp>"
    )
    assert default_schema(include_properties=True).fields[-1].simpleString() == "properties:map<string,string>"
    names = default_schema(include_properties=True, null_bodies=True).fieldNames()
    assert names[-2:] == ["properties", "bodyError"]


def test_types_of_spark_and_store_agree() -> None:
    every = StructType([StructField(f.name, f.dataType) for f in default_schema(True).fields])
    names, schema = projection(every)
    assert list(names) == every.fieldNames()
    for name, kind in zip(names, schema.types, strict=True):
        assert kind.equals(COLUMNS[name])


def test_columns_are_read_in_any_order() -> None:
    wanted = StructType([StructField("tags", StringType()), StructField("queueOffset", LongType(), False)])
    names, schema = projection(wanted)
    assert names == ("tags", "queueOffset")
    assert schema == pa.schema([("tags", pa.string()), pa.field("queueOffset", pa.int64(), nullable=False)])


def test_body_column_must_be_nullable_if_large_ones_are_null() -> None:
    never = StructType([StructField("body", BinaryType(), False)])
    assert projection(never)[0] == ("body",)
    with pytest.raises(SchemaError, match="Column body may be null"):
        projection(never, null_bodies=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "names no column"),
        ([("queueid", IntegerType(), True)], "no column 'queueid': did you mean queueId?"),
        ([("amount", IntegerType(), True)], "no column 'amount': available are topic"),
        ([("queueId", LongType(), True)], "Column queueId is int, but the schema says bigint"),
        ([("tags", StringType(), False)], "Column tags may be null"),
        ([("tags", StringType(), True), ("tags", StringType(), True)], "columns twice: tags"),
    ],
)
def test_wrong_schemas_are_refused(fields: list[tuple[str, object, bool]], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        projection(StructType([StructField(*field) for field in fields]))
    assert message in str(caught.value)
