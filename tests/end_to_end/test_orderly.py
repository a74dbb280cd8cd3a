"""Two queries of one group: each message is read by one of them, and each queue in order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from store.directory.directory_group import DirectoryGroup
from store.model.log_protocol import Queue
from tests.filled import Filled
from tests.waiting import until

Q0 = Queue("orders", 0)


PAGE = Path(__file__).parents[2] / "docs" / "groups.md"


class Sink:
    """Map each queue to its offsets in order of arrival."""

    def __init__(self) -> None:
        self.came: dict[int, list[int]] = defaultdict(list)

    def __call__(self, batch: DataFrame, _batch_id: int) -> None:
        for row in batch.select("queueId", "queueOffset").collect():
            self.came[row.queueId].append(row.queueOffset)

    @property
    def messages(self) -> int:
        return sum(map(len, self.came.values()))


@contextmanager
def query(spark: SparkSession, filled: Filled, folder: Path, sink: Sink, **options: str) -> Iterator[StreamingQuery]:
    options = {"subscribe": "orders", "consumerGroup": "g", "consumeMode": "orderly", **options}
    frame = spark.readStream.format("mq").options(startingOffsets="earliest", **options).load(str(filled.path))
    running = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder)).start()
    try:
        yield running
    finally:
        running.stop()


def test_second_query_waits_and_takes_over(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    group = DirectoryGroup(filled.path, "g")
    first, second, third = Sink(), Sink(), Sink()
    with query(spark, filled, tmp_path / "second-checkpoint", second) as waiting:
        # The first query gets the messages; the other has its own, empty checkpoint.
        until(lambda: second.messages >= 8)
        with query(spark, filled, tmp_path / "first-checkpoint", first) as running:
            until(lambda: len(group.members()) == 2)
            filled.put("orders", 0, 40)
            until(lambda: group.committed([Q0]) == {Q0: 43})  # a stopped query does not commit its last batch
            waiting.stop()
            filled.put("orders", 1, 20)
            until(lambda: first.messages >= 20)
            with query(spark, filled, tmp_path / "third-checkpoint", third, whenLocked="takeOver"):
                with pytest.raises(StreamingQueryException, match=r"QueuesTaken: Group g: another query .* took over"):
                    running.awaitTermination(120)
                filled.put("orders", 0, 10)
                until(lambda: third.messages >= 10)
                assert len(group.members()) == 1
    assert (second.came, first.came, third.came) == (
        {0: [*range(43)], 1: [*range(5)]},
        {1: [*range(5, 25)]},
        {0: [*range(43, 53)]},
    )
    until(lambda: group.members() == [])


def test_example_of_the_page_runs(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names = {"spark": spark}
    exec(block.replace("/data/mq", str(filled.path)), names)
    sink = Sink()
    writer = names["stream"].writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    running = writer.start()
    try:
        until(lambda: DirectoryGroup(filled.path, "ledger").members() != [])
        filled.put("orders", 0, 3)
        until(lambda: sink.messages >= 3)
    finally:
        running.stop()
