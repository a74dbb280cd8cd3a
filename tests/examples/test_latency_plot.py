from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_plot_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "latency.png"
    program = [sys.executable, str(ROOT / "examples" / "latency_plot.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        [*program, "--out", str(out), "--rate", "50", "--seconds", "2"],
        env=environment, check=True, stdout=subprocess.PIPE, text=True,
    ).stdout  # fmt: skip
    assert "micro-batch: 100 messages" in answer
    assert "real-time: 100 messages" in answer
    assert out.read_bytes().startswith(b"\x89PNG")
