from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_mq.cli.doctor import Check, checks
from tests.filled import Filled


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def failed(directory: object = None) -> list[Check]:
    return [check for check in checks(None if directory is None else str(directory)) if check.remedy]


@pytest.mark.usefixtures("working")
def test_working_environment_and_store_pass(filled: Filled) -> None:
    assert failed(filled.path) == []


@pytest.mark.usefixtures("working")
def test_python_without_the_package_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    (check,) = failed()
    assert check.what == "Spark's Python (PYSPARK_PYTHON)"
    assert str(bare) in check.found
    assert "pip install pyspark-mq" in check.remedy


@pytest.mark.usefixtures("working")
def test_wrong_driver_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "false")
    (check,) = failed()
    assert check.what == "Spark's Python (PYSPARK_DRIVER_PYTHON)"


@pytest.mark.usefixtures("working")
def test_missing_java_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    (check,) = failed()
    assert check.what == "Java"
    assert "apt-get install" in check.remedy


@pytest.mark.usefixtures("working")
def test_directory_without_a_store_fails(tmp_path: Path) -> None:
    (check,) = failed(tmp_path / "nowhere")
    assert "does not exist" in check.remedy


def test_command_prints_a_line_a_check_and_exits_1(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": "/nonexistent/python"}
    command = [sys.executable, "-m", "pyspark_mq", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout.startswith("ok    Python: ")
    assert "FAIL  Spark's Python (PYSPARK_PYTHON): /nonexistent/python\n" in done.stdout
