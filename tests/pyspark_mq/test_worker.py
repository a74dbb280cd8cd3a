"""What is kept between tasks, each in a process of its own, as Spark's workers are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.filled import Filled

_FREEZES = """
import gc, sys
from pyspark import TaskContext
from pyspark_mq.worker import task_store

counts = [gc.get_freeze_count()]
for prepare in (TaskContext.get, TaskContext._getOrCreate, TaskContext.get):
    prepare()
    with task_store(sys.argv[1]):
        counts.append(gc.get_freeze_count())
print(counts[1] == counts[0], counts[2] > counts[1] + 10_000, counts[3] <= counts[2])
"""

_KEEPS_OPEN = """
import sys
from pathlib import Path
from pyspark_mq.worker import task_store

def mapped():
    return [path in Path("/proc/self/maps").read_text() for path in logs]

logs = [f"{store}/commitlog" for store in sys.argv[1:]]
for path in sys.argv[1:]:
    with task_store(path) as store:
        assert len(next(store.scan("orders", 0, 0, 1)))
    print(*mapped())
"""


def run(code: str, *stores: Filled) -> list[str]:
    command = [sys.executable, "-c", code, *(store.path for store in stores)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_collector_leaves_alone_what_was_loaded_by_the_first_task(filled: Filled) -> None:
    """Once, and never in a process that is no worker."""
    assert run(_FREEZES, filled) == ["True True True"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at mapped files where Linux shows them")
def test_a_store_stays_open_until_the_next_task_is_done(filled: Filled, tmp_path: Path) -> None:
    other = Filled(tmp_path / "other", {"orders": 1})
    other.put("orders", 0, 1)
    assert run(_KEEPS_OPEN, filled, other) == ["True False", "False True"]
