"""A store that tests write into with Spark, its contents, and queries that run to their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from store import MessageStore
from tests.waiting import QUERY_PATIENCE


@contextmanager
def three_topics(path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(path) as it:
        for topic, queues in (("orders", 2), ("copies", 2), ("one", 1)):
            it.create_topic(topic, queues)
        yield it


def rows(store: MessageStore, topic: str, *columns: str) -> list[tuple[Any, ...]]:
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


def put(spark: SparkSession, store: MessageStore, first: int, end: int) -> None:
    save(spark.range(first, end, numPartitions=1).selectExpr("string(id) body"), store, topic="orders")


def source(spark: SparkSession, store: MessageStore, **options: str) -> DataFrame:
    given = {"subscribe": "orders", "startingOffsets": "earliest", **options}
    return spark.readStream.format("mq").options(**given).load(str(store.path))


def run(writer: DataStreamWriter, path: str | None = None) -> None:
    """Run a query over the messages that exist when it starts. Raises its error."""
    query = writer.trigger(availableNow=True).start(path)
    try:
        come_to_its_end(query)
    finally:
        query.stop()


def come_to_its_end(query: StreamingQuery) -> None:
    done = query.awaitTermination(QUERY_PATIENCE)
    assert done, (
        f"the query has not ended after {QUERY_PATIENCE:.0f} s: {query.status}, last batch {query.lastProgress}"
    )


def forget_last_commit(checkpoint: Path) -> None:
    """Undo Spark's last commit, as if the driver had died before it."""
    forget_above(last_of(checkpoint) - 1, checkpoint / "commits")


def last_of(checkpoint: Path) -> int:
    return max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def forget_above(batch: int, *folders: Path) -> None:
    for folder in folders:
        for path in folder.iterdir():
            number = path.name.removeprefix(".").removesuffix(".crc")
            if number.isdigit() and int(number) > batch:
                path.unlink()
