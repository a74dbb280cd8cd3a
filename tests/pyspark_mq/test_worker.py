"""What is kept between tasks."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_mq import DefaultSource
from pyspark_mq.batch_reader import MqBatchReader
from pyspark_mq.options import SourceOptions
from tests.filled import Filled

_KEEPS_OPEN = """
import sys
from pathlib import Path
from pyspark_mq.worker import task_log
from store import TagFilter
from store.any_log import QueueRange, ReadSpec
from store.local import LocalAddress

def mapped():
    return [path in Path("/proc/self/maps").read_text() for path in logs]

logs = [f"{store}/commitlog" for store in sys.argv[1:]]
for path in sys.argv[1:]:
    with task_log(LocalAddress(path)) as log:
        assert len(next(log.scan(QueueRange("orders", 0, 0, 1), ReadSpec(("body",), TagFilter(None)))))
    print(*mapped())
"""


class SparedReader(MqBatchReader):
    """Reads as ever, and then tells how many objects the collector spares, where it was planned and where it read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planning = gc.get_freeze_count()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert sum(len(batch) for batch in super().read(partition))
        yield pa.RecordBatch.from_pydict({"queueOffset": [self._planning, gc.get_freeze_count()]})


class SparedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "spared"

    def reader(self, schema: StructType) -> MqBatchReader:
        super().reader(schema)
        return SparedReader(SourceOptions.parse(self.options), schema)


def test_the_collector_leaves_alone_what_workers_have_loaded(spark: SparkSession, filled: Filled) -> None:
    spark.dataSource.register(SparedSource)
    source = spark.read.format("spared").schema("queueOffset bigint")
    rows = source.options(path=filled.path, subscribe="orders").load().collect()
    assert len(rows) == 4
    assert min(row.queueOffset for row in rows) > 10_000


def test_but_not_in_the_users_own_process(filled: Filled) -> None:
    spared = gc.get_freeze_count()
    DefaultSource({"path": filled.path, "subscribe": "orders"}).reader(StructType.fromDDL("queueOffset bigint"))
    assert gc.get_freeze_count() <= spared


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at mapped files where Linux shows them")
def test_a_store_stays_open_until_the_next_task_is_done(filled: Filled, tmp_path: Path) -> None:
    other = Filled(tmp_path / "other", {"orders": 1})
    other.put("orders", 0, 1)
    command = [sys.executable, "-c", _KEEPS_OPEN, filled.path, other.path]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines() == [
        "True False",
        "False True",
    ]
