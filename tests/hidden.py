"""Executors that share no disk with Spark's driver."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

_UNSHARE = shutil.which("unshare")
_PYTHON = f"""#!/bin/sh
[ "$HIDDEN" ] || exec {sys.executable} "$@"
exec {_UNSHARE} -rm sh -c 'mount -t tmpfs none "$HIDDEN" && exec {sys.executable} "$@"' python "$@"
"""


def _hides() -> bool:
    """Return whether this process can hide a directory from its children."""
    return _UNSHARE is not None and subprocess.run([_UNSHARE, "-rm", "true"], capture_output=True).returncode == 0


needs_hiding = pytest.mark.skipif(not _hides(), reason="a directory can be hidden from a process by unshare only")


def hiding_python(folder: Path) -> Path:
    """Return a Python that sees an empty directory at the path in the variable HIDDEN."""
    it = folder / "python"
    it.write_text(_PYTHON)
    it.chmod(0o755)
    return it


def spark_home(folder: Path) -> Path:
    """Return a SPARK_HOME with its own `work` folder, where executors have their directories."""
    it = folder / "home"
    it.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (it / entry.name).symlink_to(entry)
    return it
