from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from pyspark.sql import DataFrame, Row, SparkSession

from store import Message, MessageStore
from tests.waiting import until

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with four orders, three of them paid, and an empty topic "paid"."""
    directory = tmp_path_factory.mktemp("recipes") / "mq"
    with MessageStore.open(directory) as store:
        store.create_topic("orders", 2)
        store.create_topic("paid", 1)
        tags = ("paid", "paid", "open", "paid")
        amounts = ({"amount": str(5 * n), "region": "eu"} for n in range(4))
        store.put_many(
            [Message("orders", b"order", tags=tag, properties=of) for tag, of in zip(tags, amounts, strict=True)]
        )
    return str(directory)


def recipes(page: str, language: str, path: str) -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    return [block.replace("/data/mq", path).replace("9404", "0") for block in blocks]


def run(spark: SparkSession, recipe: str, **given: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"spark": spark, **given}
    exec(compile(recipe, "<recipe>", "exec"), names)
    return names


def test_recipe_from_kafka_runs(spark: SparkSession, path: str) -> None:
    (recipe,) = recipes("coming-from-kafka.md", "python", path)
    rows = run(spark, recipe)["rows"]
    assert rows.isStreaming
    assert rows.columns == ["value", "key", "partition", "offset"]


def test_recipes_of_the_sink_run(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    with MessageStore.open(path) as store:
        for topic in ("new", "orders", "paid", "open"):
            store.create_topic(topic, 1)
        store.put(Message("new", b"of a stream", tags="paid"))
    frames = {
        "orders": spark.createDataFrame(
            [("paid", "a"), ("open", "b"), ("paid", "a")], "status STRING, customer STRING"
        ),
        "orders_stream": stream(spark, path, "new").select("body", "tags"),
    }
    frames["orders"].createOrReplaceTempView("new_orders")
    writing, _from_a_cluster, in_each_batch = recipes("sink.md", "python", path)
    run(spark, writing.replace("/data/checkpoint", str(tmp_path / "checkpoint")), **frames)
    spark.catalog.dropTempView("orders")
    (into,) = recipes("sink.md", "sql", path)
    for statement in into.split(";"):
        spark.sql(statement)
    until(lambda: counts(path)["orders"] == 3 + 1 + 3)
    for query in spark.streams.active:
        query.stop()

    route = run(spark, textwrap.dedent(in_each_batch))["route"]
    routed = stream(spark, path, "orders").selectExpr("tags AS status", "body").writeStream.foreachBatch(route)
    assert routed.trigger(availableNow=True).start().awaitTermination(120)
    assert counts(path) == {"new": 1, "orders": 7, "paid": 5, "open": 2}


def stream(spark: SparkSession, path: str, topic: str) -> DataFrame:
    return spark.readStream.format("mq").options(subscribe=topic, startingOffsets="earliest").load(path)


def counts(path: str) -> dict[str, int]:
    with MessageStore.open(path, read_only=True) as store:
        return {topic: store.max_offset(topic, 0) for topic in ("new", "orders", "paid", "open")}


@pytest.fixture
def source_recipes(spark: SparkSession, path: str) -> Iterator[dict[str, Any]]:
    names: dict[str, Any] = {}
    for recipe in recipes("source.md", "python", path):
        names |= run(spark, recipe)
    yield names
    spark.streams.removeListener(names["listener"])
    spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")


def test_recipes_of_the_source_and_sql_run(
    spark: SparkSession, path: str, source_recipes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert source_recipes["last_hour"].count() == 4
    assert source_recipes["rows"].isStreaming
    query = source_recipes["matching"].writeStream.format("noop").queryName("lags").start()
    labels = {"query": "lags", "topic": "orders", "queue": "0"}
    until(lambda: REGISTRY.get_sample_value("mq_lag_messages", labels) == 0)
    query.stop()

    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)
    statements = [each for block in recipes("sql.md", "sql", path) for each in block.split(";") if each.strip()]
    answers = [spark.sql(statement).collect() for statement in statements]
    assert sorted(answers[1]) == [Row(tags="open", n=1), Row(tags="paid", n=3)]
    with MessageStore.open(path, read_only=True) as store:
        assert store.max_offset("paid", 0) == 3
    (recipe,) = recipes("sql.md", "python", path)
    capsys.readouterr()
    assert run(spark, recipe)["totals"].isStreaming
    assert re.findall(r"\|\s*(\w+)\|\s*(\d+)\|", capsys.readouterr().out) == [("open", "1"), ("paid", "3")]
