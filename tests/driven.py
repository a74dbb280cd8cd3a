"""Drive a streaming reader as Spark does: with a checkpoint, a sink, and a driver that can be killed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_mq.source.stream_reader import MqStreamReader

Json = dict[str, Any]
Row = tuple[Any, ...]


class DrivenQuery:
    """Call a reader in the order of MicroBatchExecution, tasks one after the other.

    sink: rows of each completed batch. A repeated batch must have the same rows.
    """

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.committed = 0
        self.sink: dict[int, list[Row]] = {}

    @property
    def rows(self) -> list[Row]:
        return sorted(row for rows in self.sink.values() for row in rows)

    def copy(self) -> DrivenQuery:
        return copy.deepcopy(self)

    def run(
        self,
        new_reader: Callable[[], MqStreamReader],
        batches: int = 1_000_000,
        killed_at: int = -1,
    ) -> None:
        """Finish pending batches, then run `batches` more or until nothing is new; die at step `killed_at`."""
        steps = self._steps(new_reader(), batches)
        for number, _ in enumerate(steps):
            if number == killed_at:
                return

    def _steps(self, it: MqStreamReader, batches: int) -> Iterator[None]:
        start = it.initialOffset() if self.committed == 0 else self._offset(self.committed - 1)
        if len(self.offsets) > self.committed:
            yield from self._batch(it, start)
            start = self._offset(-1)
        for _ in range(batches):
            end = it.latestOffset(start, it.getDefaultReadLimit())
            yield
            if json.dumps(end) == json.dumps(start):
                return
            self.offsets.append(json.dumps(end))
            yield
            if self.committed > 0:
                it.commit(self._offset(self.committed - 1))
                yield
            yield from self._batch(it, start)
            start = self._offset(-1)

    def _batch(self, it: MqStreamReader, start: Json) -> Iterator[None]:
        partitions = it.partitions(start, self._offset(-1))
        yield
        rows: list[Row] = []
        for partition in partitions:
            rows += self._task(it, partition)
            yield
        assert self.sink.setdefault(self.committed, sorted(rows)) == sorted(rows)
        yield
        self.committed += 1
        yield

    def _offset(self, number: int) -> Json:
        json_: Json = json.loads(self.offsets[number])
        return json_

    @staticmethod
    def _task(it: MqStreamReader, partition: InputPartition) -> Iterator[Row]:
        for batch in it.read(partition):
            for row in batch.to_pylist():
                yield tuple(row[name] for name in ("topic", "queueId", "queueOffset", "body"))
