"""Writing with Spark: batches and streams, several topics, what is refused, what a batch that is run again adds."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from store import MessageStore

BOTH = pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        for topic, queues in (("orders", 2), ("copies", 2), ("one", 1)):
            it.create_topic(topic, queues)
        yield it


def rows(store: MessageStore, topic: str, *columns: str) -> list[tuple[Any, ...]]:
    """Of all messages of a topic, queue after queue."""
    names = columns or ("body",)
    return [
        tuple(row[name] for name in names)
        for queue_id in range(store.topics()[topic])
        for batch in store.scan(topic, queue_id, *store.offsets(topic, queue_id), columns=names)
        for row in batch.to_pylist()
    ]


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    return [body for (body,) in rows(store, topic)]


def numbers(count: int) -> list[bytes]:
    return sorted(b"%d" % n for n in range(count))


def staged(store: MessageStore) -> list[str]:
    return [path.name for path in Path(store.path, "staging").glob("*")]


def save(frame: DataFrame, store: MessageStore, **options: str) -> None:
    frame.write.format("mq").mode("append").options(**options).save(str(store.path))


@BOTH
def test_every_column_of_several_topics(spark: SparkSession, store: MessageStore, delivery: str) -> None:
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
    assert dict(first[-1]) == expected
    assert third[:5] == (b"3", None, None, 0, 0)
    assert third[-1] == []
    assert rows(store, "copies", "body", "tags", "keys", "flag") == [(b"2", None, None, 0)]
    assert store.query("orders", "b")[0].body == b"1"
    assert staged(store) == []


@BOTH
def test_delayed_rows(spark: SparkSession, store: MessageStore, delivery: str) -> None:
    rows_ = [
        ("level", 1, None),
        ("time", None, (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0)),
        ("now", None, None),
    ]
    frame = spark.createDataFrame(rows_, "body string, delayLevel int, deliverAt timestamp")
    save(frame.coalesce(1), store, topic="orders", delivery=delivery)
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
        for task in range(3):  # at least once: tasks at the same time
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


def test_a_batch_write_is_all_or_nothing(spark: SparkSession, store: MessageStore) -> None:
    frame = spark.range(5000, numPartitions=4).selectExpr("string(id) body")
    with pytest.raises(PySparkException, match="the task fails, for the test"):
        save(frame.mapInArrow(failing_at(4000), frame.schema), store, topic="orders")
    assert bodies(store, "orders") == []
    assert staged(store) == []
    save(frame.union(frame.limit(0)), store, topic="orders")
    assert sorted(bodies(store, "orders")) == numbers(5000)


def test_one_publication_for_all_tasks_and_topics(spark: SparkSession, store: MessageStore) -> None:
    frame = spark.range(3000, numPartitions=3).selectExpr("string(id) body", "IF(id % 2 = 0, 'orders', 'copies') topic")
    save(frame, store)
    times = [time for topic in ("orders", "copies") for (time,) in rows(store, topic, "storeTimestamp")]
    assert len(times) == 3000
    assert len(set(times)) == 1


@pytest.mark.parametrize(
    ("select", "mode", "options", "message"),
    [
        (["id"], "append", {"topic": "orders"}, r"no column 'id': there are topic, body"),
        (
            ["string(id) body"],
            "append",
            {},
            r'Where do the rows go\? Set option\("topic", ...\), or add a column topic',
        ),
        (
            ["string(id) body"],
            "append",
            {"topic": "nope"},
            r"no topic 'nope', but .* pyspark-mq topic create .* 'nope'",
        ),
        (
            ["string(id) body", "'nope' topic"],
            "append",
            {},
            r"no topic 'nope', but .* pyspark-mq topic create .* 'nope'",
        ),
        (["string(id) body"], "overwrite", {"topic": "orders"}, r'only appended to: write with mode\("append"\)'),
        (
            ["string(id) body"],
            "append",
            {"subscribe": "orders"},
            r"subscribe is for reading; name the topic with topic",
        ),
        (["string(id) value"], "append", {"topic": "orders"}, r"withColumnRenamed\('value', 'body'\)"),
        (["IF(id = 1, NULL, 'x') body"], "append", {"topic": "orders"}, r"1 of .* rows have no body \(null\)"),
        (["string(id) body", "int(7) queueId"], "append", {"topic": "orders"}, r"queues 0 to 1, not 7"),
    ],
)
def test_refusals_through_spark(
    spark: SparkSession, store: MessageStore, select: list[str], mode: str, options: dict[str, str], message: str
) -> None:
    frame = spark.range(2).selectExpr(*select)
    with pytest.raises(PySparkException, match=message):
        frame.write.format("mq").mode(mode).options(**options).save(str(store.path))
    assert bodies(store, "orders") == []
    assert staged(store) == []


def test_no_store_there(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="NotAStore"):
        spark.range(1).selectExpr("'x' body").write.format("mq").mode("append").option("topic", "t").save(
            str(tmp_path / "nothing")
        )


def test_insert_into(spark: SparkSession, store: MessageStore) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders_sink USING mq OPTIONS (path '{store.path}', topic 'orders')")
    spark.sql("INSERT INTO orders_sink (body, tags) VALUES (X'31', 'paid'), (X'32', NULL)")
    assert sorted(rows(store, "orders", "body", "tags")) == [(b"1", "paid"), (b"2", None)]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW any_sink USING mq OPTIONS (path '{store.path}', delivery 'exactly-once')"
    )
    spark.sql("INSERT INTO any_sink (topic, body) SELECT 'one', encode(string(id), 'UTF-8') FROM range(3)")
    assert sorted(bodies(store, "one")) == numbers(3)


# --- streams ---------------------------------------------------------------------------------------------


def source(spark: SparkSession, store: MessageStore, **options: str) -> DataFrame:
    given = {"subscribe": "orders", "startingOffsets": "earliest", **options}
    return spark.readStream.format("mq").options(**given).load(str(store.path))


@contextmanager
def copying(frame: DataFrame, store: MessageStore, checkpoint: Path, **options: str) -> Iterator[StreamingQuery]:
    """A query into the topic "copies" that runs until all that there is was copied."""
    writer = frame.writeStream.format("mq").options(topic="copies", checkpointLocation=str(checkpoint), **options)
    query = writer.trigger(availableNow=True).start(str(store.path))
    try:
        yield query
        assert query.awaitTermination(120)
    finally:
        query.stop()


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died before Spark noted that the last batch is done."""
    forget_above(last_of(checkpoint) - 1, checkpoint / "commits")


def last_of(checkpoint: Path) -> int:
    return max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def forget_above(batch: int, *folders: Path) -> None:
    """Files of batches in a checkpoint, and their checksums."""
    for folder in folders:
        for path in folder.iterdir():
            number = path.name.removeprefix(".").removesuffix(".crc")
            if number.isdigit() and int(number) > batch:
                path.unlink()


def put(spark: SparkSession, store: MessageStore, first: int, end: int) -> None:
    save(spark.range(first, end, numPartitions=1).selectExpr("string(id) body"), store, topic="orders")


COPIED = ("body", "tags", "keys", "bornTimestamp")


@BOTH
def test_from_topic_to_topic_over_restarts(
    spark: SparkSession, store: MessageStore, tmp_path: Path, delivery: str
) -> None:
    for end in (100, 250, 300):
        put(spark, store, end - 50, end)
        frame = source(spark, store, maxOffsetsPerTrigger="40").select(*COPIED)
        with copying(frame, store, tmp_path / "checkpoint", delivery=delivery):
            pass
        assert sorted(rows(store, "copies", *COPIED)) == sorted(rows(store, "orders", *COPIED))
    assert staged(store) == []


@pytest.mark.parametrize(("delivery", "times"), [("exactly-once", 1), ("at-least-once", 2)])
def test_a_batch_that_spark_runs_again(
    spark: SparkSession, store: MessageStore, tmp_path: Path, delivery: str, times: int
) -> None:
    put(spark, store, 0, 100)
    frame = source(spark, store).select("body")
    for _ in range(2):
        with copying(frame, store, tmp_path / "checkpoint", delivery=delivery):
            pass
        forget_last_commit(tmp_path / "checkpoint")
    assert sorted(bodies(store, "copies")) == sorted(numbers(100) * times)
    assert staged(store) == []


def test_a_checkpoint_without_its_newest_files(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    """The batch that is planned anew has as many rows, and others."""
    frame, checkpoint = source(spark, store, maxOffsetsPerTrigger="10").select("body"), tmp_path / "checkpoint"
    put(spark, store, 0, 10)
    with copying(frame, store, checkpoint):
        pass
    forget_above(-1, checkpoint / "commits", checkpoint / "offsets")
    put(spark, store, 10, 30)
    with (
        pytest.raises(PySparkException, match="batch 0 of this query was written, and now comes planned anew"),
        copying(frame, store, checkpoint),
    ):
        pass
    assert sorted(bodies(store, "copies")) == numbers(10)


def test_a_store_that_is_put_back_under_a_newer_checkpoint(
    spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    """Every second batch has no rows. What the error says to delete of the checkpoint brings all rows, once."""
    checkpoint, target, backup = (tmp_path / name for name in ("checkpoint", "target", "backup"))
    with MessageStore.open(target) as it:
        it.create_topic("copies", 1)
    frame = source(spark, store, maxOffsetsPerTrigger="10").where("int(string(body)) % 20 < 10").select("body")

    def copy(end: int) -> None:
        put(spark, store, end - 20, end)
        with MessageStore.open(target, read_only=True) as it, copying(frame, it, checkpoint):
            pass

    copy(20)
    shutil.copytree(target, backup)
    copy(40)
    shutil.rmtree(target)
    backup.rename(target)
    with pytest.raises(PySparkException, match=r"batch 1 was written last, now comes batch 4, .* batches above 1; or"):
        copy(60)
    forget_above(1, checkpoint / "commits", checkpoint / "offsets")
    copy(80)
    with MessageStore.open(target) as it:
        assert sorted(bodies(it, "copies")) == sorted(b"%d" % n for n in range(80) if n % 20 < 10)


def test_another_checkpoint_is_another_query(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    put(spark, store, 0, 10)
    frame = source(spark, store).select("body")
    for name in ("first", "second"):
        with copying(frame, store, tmp_path / name):
            pass
    assert sorted(bodies(store, "copies")) == sorted(numbers(10) * 2)


def test_several_queries_write_to_one_store(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    put(spark, store, 0, 300)
    frame = source(spark, store, maxOffsetsPerTrigger="60").select("body")
    evens, odds = (frame.where(F.col("body").cast("string").cast("int") % 2 == remainder) for remainder in (0, 1))
    with copying(evens, store, tmp_path / "evens"), copying(odds, store, tmp_path / "odds"):
        put(spark, store, 300, 400)
    for name, frame in (("evens", evens), ("odds", odds)):
        with copying(frame, store, tmp_path / name):
            pass
    assert sorted(bodies(store, "copies")) == numbers(400)
    assert staged(store) == []


@pytest.mark.parametrize(("group", "times"), [("copier", 1), (None, 2)])
def test_in_foreach_batch(
    spark: SparkSession, store: MessageStore, tmp_path: Path, group: str | None, times: int
) -> None:
    put(spark, store, 0, 100)

    def work(frame: DataFrame, batch_id: int) -> None:
        for topic, select in (("copies", "body"), ("one", "concat(body, 'x') body")):
            options = {"topic": topic} if group is None else {"topic": topic, "producerGroup": f"{group}-{topic}"}
            save(frame.selectExpr(select), store, **options)

    frame = source(spark, store, maxOffsetsPerTrigger="60").select("body")
    for _ in range(2):
        writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        again = 0 if times == 1 else len(bodies(store, "copies")) - 100
        forget_last_commit(tmp_path / "checkpoint")
    assert len(bodies(store, "copies")) == len(bodies(store, "one")) == 100 + again
    assert (again > 0) is (times == 2)
    assert sorted(set(bodies(store, "copies"))) == numbers(100)
    assert staged(store) == []


def test_two_writes_of_one_batch_with_one_producer_group(
    spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    put(spark, store, 0, 10)

    def work(frame: DataFrame, batch_id: int) -> None:
        for topic in ("copies", "one"):
            save(frame, store, topic=topic, producerGroup="copier")

    writer = source(spark, store).select("body").writeStream.foreachBatch(work)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="two writes in one foreachBatch have the same producerGroup"):
        query.awaitTermination(120)
    assert sorted(bodies(store, "copies")) == numbers(10)


def test_a_producer_group_outside_of_foreach_batch(spark: SparkSession, store: MessageStore) -> None:
    with pytest.raises(PySparkException, match=r"producerGroup is for a write in foreachBatch.*leave it out"):
        save(spark.range(1).selectExpr("'x' body"), store, topic="orders", producerGroup="copier")


@pytest.mark.parametrize(
    ("select", "output", "options", "message"),
    [
        (["body"], "complete", {}, r'only appended to, and complete mode .* outputMode\("append"\)'),
        (["body"], "append", {"producerGroup": "x"}, "knows its query by the checkpoint, so leave it out"),
        (["body", "queueOffset"], "append", {}, r"the store gives each message its own: drop\('queueOffset'\)"),
    ],
)
def test_refusals_of_streams(
    spark: SparkSession,
    store: MessageStore,
    tmp_path: Path,
    select: list[str],
    output: str,
    options: dict[str, str],
    message: str,
) -> None:
    put(spark, store, 0, 1)
    frame = source(spark, store)
    frame = frame.select(*select) if output == "append" else frame.groupBy("body").count().select("body")
    writer = frame.writeStream.format("mq").options(topic="copies", checkpointLocation=str(tmp_path), **options)
    with pytest.raises(PySparkException, match=message):
        writer.outputMode(output).trigger(availableNow=True).start(str(store.path)).awaitTermination(120)
    assert bodies(store, "copies") == []
