"""Checks of the requirements: our own package `store`, PySpark and Java. Without them, later errors would be less
clear.

PyPI has a package `store`, which overwrites ours if both are installed. So this module imports nothing from `store`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_OLDEST_PYSPARK = (4, 2)
_OWN_NAME = "MessageStore"


def require_own_store() -> None:
    """Raise `ImportError` unless `import store` gives the package that is installed beside this one."""
    own = Path(__file__).resolve().parent.parent / "store" / "__init__.py"
    spec = find_spec("store")
    found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    if found is not None and found != own:
        raise ImportError(
            f"pyspark-mq needs its own package 'store' at {own}, but {found} shadows it. Rename or remove the other "
            "one, or put pyspark-mq first on PYTHONPATH"
        )
    if found is None or not hasattr(import_module("store"), _OWN_NAME):
        what = "is missing" if found is None else "belongs to another package, such as PyPI's 'store'"
        raise ImportError(
            f"pyspark-mq needs its own package 'store', but {own} {what}. Remove the other package and reinstall "
            "this one: pip uninstall -y store; pip install --force-reinstall --no-deps pyspark-mq"
        )


def require_pyspark() -> None:
    from pyspark import __version__ as version

    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST_PYSPARK:
        oldest = ".".join(map(str, _OLDEST_PYSPARK))
        raise ImportError(
            f"pyspark-mq needs PySpark {oldest} or later, and {version} is installed. Upgrade it: pip install -U "
            f"'pyspark>={oldest}'"
        )


OLDEST = 17

_REMEDY = f"""Spark needs a Java runtime, version {OLDEST} or later. Install one:
  Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless    (Debian 13: openjdk-21-jre-headless)
  Fedora           sudo dnf install java-21-openjdk-headless
  macOS            brew install --cask temurin@17
or point JAVA_HOME at the one you have."""


def require_java() -> int:
    """Return the major version of the Java that Spark will start. Raises `JavaMissing`."""
    from pyspark_mq.errors import JavaMissing  # imported here because it imports `store`

    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise JavaMissing(f"java is not on PATH, and JAVA_HOME is not set. {_REMEDY}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        # macOS has a /usr/bin/java that only reports that Java is missing.
        raise JavaMissing(f"{java} does not run ({error}). {_REMEDY}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer)
    if version is None or int(version[1]) < OLDEST:
        raise JavaMissing(f"{java} is {answer.splitlines()[0] if answer else 'of an unknown version'}. {_REMEDY}")
    return int(version[1])
