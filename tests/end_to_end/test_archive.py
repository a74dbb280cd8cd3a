from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.filled import Filled


def test_batch_and_stream_over_an_archive_and_through_the_store(
    spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    archive = str(tmp_path / "archive")
    filled.put("orders", 0, 250, 1000)
    filled.store.archive(archive)
    filled.put("orders", 1, 50, 1000)
    assert filled.store.clean(forced=True).log
    assert filled.store.min_offset("orders", 0) > 0

    def rows(path: str, **options: str) -> list[tuple[object, ...]]:
        read = spark.read.format("mq").options(subscribe="orders", **options).load(path)
        found = read.select("topic", "queueId", "queueOffset", "body").collect()
        return sorted((row[0], row[1], row[2], bytes(row[3])) for row in found)

    assert rows(archive) == sorted(row for row in filled.rows if row[1] == 0 or row[2] < 5)
    assert rows(filled.path) == sorted(filled.rows)
    assert rows(filled.path, subExpression="A") == sorted(row for row in filled.rows if row[2] % 2 == 0)

    def streamed(path: str, name: str) -> int:
        stream = spark.readStream.format("mq").options(subscribe="orders", startingOffsets="earliest").load(path)
        out = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        query = out.option("path", str(tmp_path / name)).trigger(availableNow=True).start()
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / name)).select("queueId", "queueOffset").distinct().count()

    assert streamed(archive, "alone") == 258
    assert streamed(filled.path, "through") == 308
