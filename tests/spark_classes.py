"""python -m tests.spark_classes FILE: write an archive of the classes that Spark loads (class data sharing).

With it, starting Spark takes about two thirds of the CPU time. `make test` makes it once; `tests/conftest.py` uses it
if it exists. A JVM that it does not fit ignores it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from tests.filled import Filled


def use_spark(folder: Path) -> None:
    """Use Spark as most tests do: a batch with a shuffle, and streams into a topic and into Parquet."""
    filled = Filled(folder / "mq", {"orders": 2, "copies": 2})
    with filled.store:
        filled.put("orders", 0, 3)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    given = {"subscribe": "orders", "startingOffsets": "earliest"}
    spark.read.format("mq").options(**given).load(filled.path).groupBy("tags").count().collect()
    rows = spark.readStream.format("mq").options(**given).load(filled.path).selectExpr("body", "tags")
    for sink, options in (("parquet", {"path": str(folder / "out")}), ("mq", {"path": filled.path, "topic": "copies"})):
        writer = rows.writeStream.format(sink).options(**options, checkpointLocation=str(folder / sink))
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def main(file: Path) -> None:
    made = file.with_suffix(".new")
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": f'-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit="{made}" -Xlog:disable',
    }
    with TemporaryDirectory() as folder:
        use_spark(Path(folder))
    machine: Any = SparkContext._gateway
    machine.proc.stdin.close()
    machine.proc.wait()
    made.replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
