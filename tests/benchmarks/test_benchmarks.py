"""Run the benchmarks with tiny inputs.

`latency` is left out because it takes minutes, and benchmarks with many queries. Benchmarks beside a RocketMQ or Kafka
broker run with `make test-rocketmq`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from tests.waiting import QUERY_PATIENCE

ROOT = Path(__file__).parents[2]
ALONE = {"kafka_sink", "kafka_source"}
ON_SPARK = {"filtering", "narrowing", "reading", "writing"}
WITH_MANY_QUERIES = {"planning", "processes", "starting_query"}
BESIDE_A_BROKER = {"remote_latency", "remote_reading", "serving"}
OTHERS = BENCHMARKS.keys() - ALONE - ON_SPARK - WITH_MANY_QUERIES - BESIDE_A_BROKER - {"latency"}


@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param([name], marks=pytest.mark.rocketmq) for name in sorted(ALONE)),
        sorted(ON_SPARK),
        sorted(OTHERS),
        pytest.param(sorted(BESIDE_A_BROKER), marks=pytest.mark.rocketmq),
    ],
    ids=[*sorted(ALONE), "on Spark", "others", "beside a broker"],
)
def test_benchmarks_print_their_tables(names: list[str], tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--small", *names],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        late = threading.Timer(QUERY_PATIENCE, os.killpg, [process.pid, signal.SIGABRT])
        late.start()
        out, err = process.communicate()
        late.cancel()
    assert process.returncode == 0, out + err
    assert out.count("| --- |") >= len(names)
