"""A Spark source over the log in memory, `load` of its socket; Spark's Python processes import it from here."""

from __future__ import annotations

from dataclasses import replace

from pyspark_mq import DefaultSource
from pyspark_mq.options import SourceOptions
from tests.logs.memory import MemoryAddress


class MemorySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "memory"

    def source_options(self) -> SourceOptions:
        options = super().source_options()
        return replace(options, address=MemoryAddress(str(options.address)))
