"""Planning a batch query; what it reads: `end_to_end/test_batch_query`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.batch_reader import MqBatchReader
from pyspark_mq.source.queues import Queues
from pyspark_mq.source.schema import default_schema
from tests.filled import Filled


def test_start_and_end_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = Filled(tmp_path / "mq", {"orders": 1})
    resolve = Queues.resolve

    def overtaken(queues: Queues, *arguments: Any) -> Any:
        positions = resolve(queues, *arguments)
        filled.put("orders", 0, 250, size=1000)
        filled.store.clean(forced=True)
        return positions

    with filled.store:
        filled.put("orders", 0, 10)
        reader = MqBatchReader(SourceOptions.parse({"path": filled.path, "subscribe": "orders"}), default_schema(False))
        monkeypatch.setattr(Queues, "resolve", overtaken)
        assert [" + ".join(map(str, partition.value.ranges)) for partition in reader.partitions()] == [
            "orders/0 [0, 10)"
        ]
        assert filled.store.min_offset("orders", 0) > 10
