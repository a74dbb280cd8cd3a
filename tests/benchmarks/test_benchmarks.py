"""The benchmarks run to their end, with inputs so small that their numbers mean nothing.

Not `latency`, which takes minutes; the example that draws the same picture is tested.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(BENCHMARKS.keys() - {"latency"}))
def test_it_prints_its_table(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--small", name], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert "| --- |" in run.stdout
