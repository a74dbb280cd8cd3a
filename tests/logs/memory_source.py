"""A Spark source and sink over the log in memory, `load` of its socket; Spark's processes import it from here."""

from __future__ import annotations

from dataclasses import replace

from pyspark_mq import DefaultSource
from pyspark_mq.options.sink import WriteOptions
from pyspark_mq.options.source import SourceOptions
from tests.logs.memory import MemoryAddress


class MemorySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "memory-log"  # Spark has a sink of the name memory

    def source_options(self) -> SourceOptions:
        options = super().source_options()
        return replace(options, address=MemoryAddress(str(options.address)))

    def write_options(self) -> WriteOptions:
        options = super().write_options()
        return replace(options, address=MemoryAddress(str(options.address)))
