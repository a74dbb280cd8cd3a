"""Modules that a query's processes load: only the needed ones, since every query starts several processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.filled import Filled

_COLUMNS = {"pyarrow.compute"}
_OTHERS = {"pandas", "lark", "tqdm", "click", "psutil"}
_SOURCE = """
import sys
from pyspark_mq import DefaultSource

source = DefaultSource({"path": sys.argv[1], "subscribe": "orders", "startingOffsets": "earliest"})
"""
_READER = """
from pyspark_mq.source.reading import default_schema
reader = source.streamReader(default_schema(False))
"""
_DRIVER = """
reader.prepareForTriggerAvailableNow()
start = reader.initialOffset()
end = reader.latestOffset(start, reader.getDefaultReadLimit())
partitions = reader.partitions(start, end)
reader.commit(end)
"""
_TASKS = """
assert sum(len(batch) for partition in partitions for batch in reader.read(partition))
"""


@pytest.mark.parametrize(
    ("program", "spared"),
    [
        (_SOURCE, {"store", "pyarrow", "numpy", *_COLUMNS, *_OTHERS}),
        (_SOURCE + "source.schema()", _COLUMNS | _OTHERS),
        (_SOURCE + _READER + _DRIVER, _COLUMNS | _OTHERS),
        (_SOURCE + _READER + _DRIVER + _TASKS, _OTHERS),
    ],
    ids=["look-up", "schema", "driver", "tasks"],
)
def test_processes_load_only_needed_modules(program: str, spared: set[str], filled: Filled) -> None:
    program += f"\nprint(*sorted({spared!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program, str(filled.path)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert done.stdout.split() == []
