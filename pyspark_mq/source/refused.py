"""A streaming query that cannot be: Spark is told why when it asks for the first thing."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from pyspark_mq.errors import MqSourceError


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is raised while a reader is made Spark covers with an error of its own, that it has none to stop."""

    def __init__(self, why: MqSourceError) -> None:
        self._why = why

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        raise self._why

    def getDefaultReadLimit(self) -> NoReturn:
        raise self._why

    def initialOffset(self) -> NoReturn:
        raise self._why

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:
        raise self._why

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._why

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._why
