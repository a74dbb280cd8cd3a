"""docs/tutorial.md: its programs run, and its totals are right although Spark is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store import MessageStore
from tests.pyspark_mq.cli.process import run
from tests.pyspark_mq.cli.test_page import examples, matches
from tests.waiting import QUERY_PATIENCE, until

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
ROOT = PAGE.parents[1]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as the reader has it before the first program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    text = PAGE.read_text("utf-8")
    for name, program in re.findall(r'```python title="(\w+\.py)"\n(.*?)```', text, re.DOTALL):
        Path(tmp_path, name).write_text(program, "utf-8")
    for session in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line, shown in examples(session):
            done = run(*line.split()[1:])
            assert matches(shown, done.stdout + done.stderr), (line, done)
    return tmp_path


@contextmanager
def running(directory: Path, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of the page; kill it and its children at the end of the block."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with subprocess.Popen(
        [sys.executable, program], cwd=directory, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def windows(store: MessageStore) -> int:
    bodies = (body for batch in store.to_arrow("revenue", ["body"]) for body in batch.column(0).to_pylist())
    return len({json.loads(body)["start"] for body in bodies})


def test_each_order_is_counted_once_despite_kills(programs: Path) -> None:
    with MessageStore.open(programs / "shop", read_only=True) as store, running(programs, "producer.py"):
        with running(programs, "revenue.py"):
            until(lambda: windows(store) >= 1, every=0.2, patience=QUERY_PATIENCE)
        before = windows(store)
        with running(programs, "revenue.py"):
            until(lambda: windows(store) >= before + 2, every=0.2, patience=QUERY_PATIENCE)
    done = subprocess.run([sys.executable, "check.py"], cwd=programs, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+ windows, \d{3,} orders, 0 wrong\n", done.stdout)
