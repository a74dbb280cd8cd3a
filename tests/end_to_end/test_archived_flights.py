"""docs/archive.md: archive flights to S3, delete the store's segments, and query the flights again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_mq.flights import as_messages, load_flights
from store import MessageStore, StoreConfig
from tests.s3 import SECRET, environment, new_bucket, s3_server

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")


def totals(messages: DataFrame) -> list[tuple[object, ...]]:
    carrier = f.get_json_object(f.col("body").cast("string"), "$.carrier")
    delay = f.get_json_object(f.col("body").cast("string"), "$.arr_delay").cast("long")
    found = messages.groupBy(carrier.alias("carrier")).agg(f.count("*"), f.sum(delay)).orderBy("carrier")
    return [tuple(row) for row in found.collect()]


def test_archived_flights_are_queried_from_s3(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights, path = as_messages(load_flights().slice(0, 60_000)), tmp_path / "flights"
    with s3_server() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        url = f"{new_bucket()}/mq"
        # The executors started before the environment was set, so every reader gets the settings as options.
        options = {"endpoint_url": endpoint, "key": "tester", "secret": SECRET}
        with MessageStore.open(path, config=StoreConfig(mappedFileSizeCommitLog=8 << 20)) as store:
            store.create_topic("flights", 4)
            store.append_table("flights", flights)
            read = spark.read.format("mq").options(subscribe="flights", storageOptions=json.dumps(options))
            before = totals(read.load(str(path)))
            assert sum(int(str(row[1])) for row in before) == 60_000
            assert store.archive(url).messages == 60_000
            assert len(store.clean(forced=True).log) > 1
            assert store.min_offset("flights", 0) > 0
            tail_number = flights["keys"][17].as_py()
            for where in (str(path), url):
                assert totals(read.load(where)) == before
                of_one = read.load(where).where(f.col("keys") == tail_number).count()
                assert of_one == sum(each == tail_number for each in flights["keys"].to_pylist())
            stream = spark.readStream.format("mq").options(
                subscribe="flights", startingOffsets="earliest", storageOptions=json.dumps(options)
            )
            out = stream.load(str(path)).writeStream.format("parquet").trigger(availableNow=True)
            query = out.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
            query.awaitTermination()
            assert spark.read.parquet(str(tmp_path / "out")).count() == 60_000
        written = [each for each in tmp_path.rglob("*") if each.is_file() and "out" not in each.parts]
        assert any("checkpoint" in each.parts for each in written)
        assert not [each for each in written if SECRET.encode() in each.read_bytes()]
