from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from store import MessageStore
from tests.end_to_end.written import bodies, numbers, rows, save, staged, three_topics

BOTH = pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with three_topics(tmp_path / "mq") as it:
        yield it


@BOTH
def test_sink_writes_every_column_to_several_topics(spark: SparkSession, store: MessageStore, delivery: str) -> None:
    born = datetime(2013, 1, 2, 3, 4, 5, 678000, UTC)
    full = ("orders", "1", "paid", ["a", "b"], {"region": "eu"}, 1, "customer-7", 9, born)
    names = "topic string, body string, tags string, keys array<string>, properties map<string,string>, "
    more = "queueId int, shardingKey string, flag int, bornTimestamp timestamp"
    bare = ("copies", "2", *[None] * 5, None, None)
    frame = spark.createDataFrame([full, ("orders", "3", None, None, None, 0, None, None, None)], names + more)
    save(frame.coalesce(1), store, delivery=delivery)
    save(spark.createDataFrame([bare], names + more).drop("queueId"), store, delivery=delivery)
    columns = ("body", "tags", "keys", "queueId", "flag", "bornTimestamp", "properties")
    expected = {"region": "eu", "TAGS": "paid", "KEYS": "a b", "__SHARDINGKEY": "customer-7"}
    third, first = rows(store, "orders", *columns)
    assert first[:-1] == (b"1", "paid", "a b", 1, 9, born)
    # Rows of at-least-once writes have a UNIQ_KEY.
    own = {name: value for name, value in first[-1] if name != "UNIQ_KEY"}
    assert own == expected
    assert third[:5] == (b"3", None, None, 0, 0)
    assert [name for name, _ in third[-1]] == ([] if delivery == "exactly-once" else ["UNIQ_KEY"])
    assert rows(store, "copies", "body", "tags", "keys", "flag") == [(b"2", None, None, 0)]
    assert store.query("orders", "b")[0].body == b"1"
    assert staged(store) == []


def test_delayed_rows_are_delivered_later(spark: SparkSession, store: MessageStore) -> None:
    rows_ = [
        ("level", 1, None),
        ("time", None, (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0)),
        ("now", None, None),
    ]
    frame = spark.createDataFrame(rows_, "body string, delayLevel int, deliverAt timestamp")
    save(frame.coalesce(1), store, topic="orders")
    with MessageStore.open(store.path, create=False) as delivering:
        deadline = time.monotonic() + 60
        while len(bodies(store, "orders")) < 3 and time.monotonic() < deadline:
            delivering.wait(delivering.confirm_offset, 0.1)
    found = rows(store, "orders", "body", "storeTimestamp")
    assert sorted(body for body, _ in found) == [b"level", b"now", b"time"]
    stored = dict(found)
    assert stored[b"level"] >= stored[b"now"] + timedelta(seconds=1)
    assert stored[b"time"] >= rows_[1][2]


@BOTH
def test_rows_of_a_task_keep_their_order(spark: SparkSession, store: MessageStore, delivery: str) -> None:
    frame = spark.range(20_000, numPartitions=3).selectExpr("string(id) body", "string(id % 7) shardingKey")
    save(frame, store, topic="orders", delivery=delivery)
    found = rows(store, "orders", "body", "queueId")
    assert sorted(body for body, _ in found) == numbers(20_000)
    for remainder in range(7):
        of_key = [(int(body), queue_id) for body, queue_id in found if int(body) % 7 == remainder]
        assert len({queue_id for _, queue_id in of_key}) == 1
        for task in range(3):  # at least once: tasks run concurrently
            first, end = task * 20_000 // 3, (task + 1) * 20_000 // 3
            of_task = [n for n, _ in of_key if first <= n < end]
            assert of_task == sorted(of_task)
        if delivery == "exactly-once":
            assert [n for n, _ in of_key] == sorted(n for n, _ in of_key)


def failing_at(number: int) -> Callable[[Any], Any]:
    def fail(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if b"%d" % number in batch["body"].cast("binary").to_pylist():
                raise RuntimeError("the task fails, for the test")

    return fail


def test_batch_write_is_all_or_nothing(spark: SparkSession, store: MessageStore) -> None:
    frame = spark.range(5000, numPartitions=4).selectExpr("string(id) body")
    with pytest.raises(PySparkException, match="the task fails, for the test"):
        save(frame.mapInArrow(failing_at(4000), frame.schema), store, topic="orders")
    assert bodies(store, "orders") == []
    assert staged(store) == []
    save(frame.union(frame.limit(0)), store, topic="orders")
    assert sorted(bodies(store, "orders")) == numbers(5000)


def test_all_tasks_and_topics_are_published_at_once(spark: SparkSession, store: MessageStore) -> None:
    frame = spark.range(3000, numPartitions=3).selectExpr("string(id) body", "IF(id % 2 = 0, 'orders', 'copies') topic")
    save(frame, store)
    times = [time for topic in ("orders", "copies") for (time,) in rows(store, topic, "storeTimestamp")]
    assert len(times) == 3000
    assert len(set(times)) == 1


@pytest.mark.parametrize(
    ("select", "mode", "options", "message"),
    [
        (
            ["string(id) body"],
            "append",
            {},
            r'The topic of the rows is not named\. Set option\("topic", ...\), or add a column topic',
        ),
        (
            ["string(id) body", "'nope' topic"],
            "append",
            {},
            r"Topic 'nope' does not exist; .* pyspark-mq topic create .* 'nope'",
        ),
        (["string(id) body"], "overwrite", {"topic": "orders"}, r'only be appended to\. Write with mode\("append"\)'),
        (["IF(id = 1, NULL, 'x') body"], "append", {"topic": "orders"}, r"1 of .* rows have null in column body"),
        (["string(id) body", "int(7) queueId"], "append", {"topic": "orders"}, r"queues 0 to 1, not 7"),
    ],
)
def test_wrong_writes_are_refused(
    spark: SparkSession, store: MessageStore, select: list[str], mode: str, options: dict[str, str], message: str
) -> None:
    frame = spark.range(2).selectExpr(*select)
    with pytest.raises(PySparkException, match=message):
        frame.write.format("mq").mode(mode).options(**options).save(str(store.path))
    assert bodies(store, "orders") == []
    assert staged(store) == []


def test_sql_insert_into_writes(spark: SparkSession, store: MessageStore) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders_sink USING mq OPTIONS (path '{store.path}', topic 'orders')")
    spark.sql("INSERT INTO orders_sink (body, tags) VALUES (X'31', 'paid'), (X'32', NULL)")
    assert sorted(rows(store, "orders", "body", "tags")) == [(b"1", "paid"), (b"2", None)]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW any_sink USING mq OPTIONS (path '{store.path}', delivery 'exactly-once')"
    )
    spark.sql("INSERT INTO any_sink (topic, body) SELECT 'one', encode(string(id), 'UTF-8') FROM range(3)")
    assert sorted(bodies(store, "one")) == numbers(3)
