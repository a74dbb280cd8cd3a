from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.filled import Filled

_PROGRAM = """
import sys
import pyspark_mq
from pyspark.errors import PySparkException

spark = pyspark_mq.session(config={"spark.ui.enabled": "false"})
print(spark.read.format("mq").option("subscribe", "orders").load(sys.argv[1]).count())
try:
    pyspark_mq.session()
except pyspark_mq.errors.SessionExists:
    print("exists")
try:
    spark.read.format("mq").option("subscribe", "ordrs").load(sys.argv[1])
except PySparkException as error:
    print(str(error).splitlines()[0])
    assert "Traceback" not in str(error), error
"""


def test_session_works_although_path_has_another_python(filled: Filled, tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(variable, None)
    command = [sys.executable, "-c", _PROGRAM, str(filled.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    count, exists, error = done.stdout.splitlines()
    assert (count, exists) == ("8", "exists")
    assert "SubscriptionError: The log has no ordrs" in error
    assert "Did you mean orders?" in error
