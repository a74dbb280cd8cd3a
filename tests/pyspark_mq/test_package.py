"""The package as Spark's look-up and users see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark_mq

ROOT = Path(__file__).parents[2]


def python(program: str, *path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(map(str, path))},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names() -> None:
    assert pyspark_mq.__all__ == ["DefaultSource", "__version__", "session"]
    assert pyspark_mq.DefaultSource.name() == "mq"


def test_importing_is_cheap() -> None:
    program = "import sys, pyspark_mq; print([m for m in ('pyspark', 'pyarrow', 'numpy', 'store') if m in sys.modules])"
    assert python(program, ROOT) == "[]"


def test_a_shadowing_store_is_named_when_used_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "__init__.py").write_text("")
    program = (
        "import pyspark_mq\n"
        "source = pyspark_mq.DefaultSource({'path': '/x', 'subscribe': 'a'})\n"
        "try: source.schema()\n"
        "except ImportError as error: print(error)"
    )
    printed = python(program, tmp_path, ROOT)
    assert f"{tmp_path}/store/__init__.py shadows it" in printed
    assert "put pyspark-mq first on PYTHONPATH" in printed


def test_without_pyspark_the_lookup_is_not_disturbed(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('too old')")
    program = "import pyspark_mq; print(hasattr(pyspark_mq, 'DefaultSource'))"
    assert python(program, tmp_path, ROOT) == "False"
