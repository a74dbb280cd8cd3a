from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.filled import Filled

ROOT = Path(__file__).parents[2]


def test_connect_runs_batches_views_and_streams(filled: Filled, tmp_path: Path) -> None:
    filled.store.create_topic("paid", 1)
    program = [sys.executable, str(Path(__file__).with_name("connect_query.py")), filled.path, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pyspark.sql.connect.session\n")
    assert "path 'data/mq' is relative, and /" in done.stdout
    assert "path 'dbfs:/data/mq': a store is opened as a local directory" in done.stdout
    put = {(body, tag) for _, _, offset, body in filled.rows if offset % 2 == 0 for tag in (None, "again", "streamed")}
    scan = filled.store.scan("paid", 0, *filled.store.offsets("paid", 0), columns=("body", "tags"))
    found = Counter((row["body"], row["tags"]) for batch in scan for row in batch.to_pylist())
    assert found == Counter(put)
