from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import NamedTuple

import click

from pyspark_mq.cli.terminal import echo
from pyspark_mq.errors import JavaMissing
from pyspark_mq.requirements import require_java, require_own_store, require_pyspark

_TIMEOUT_SECONDS = 60.0
_OLDEST_PYTHON = (3, 11)
# Spark finds sources in this way, which misses packages that an import hook provides (some editable installs).
_FIND_SOURCE = """
import pkgutil, sys
found = any(module.name == "pyspark_mq" for module in pkgutil.iter_modules())
if found:
    import pyspark, pyspark_mq
    assert hasattr(pyspark_mq, "DefaultSource"), "its DefaultSource cannot be imported"
    print(pyspark.__version__, pyspark_mq.__version__)
sys.exit(0 if found else 3)
"""
_NOT_LISTED = 3
_INSTALL = (
    "install pyspark-mq for that Python (pip install pyspark-mq), or set PYSPARK_PYTHON to the Python of your "
    "virtual environment"
)


class Check(NamedTuple):
    """The result of a check. what: its subject. remedy: "" if the check passed."""

    what: str
    found: str
    remedy: str = ""


def checks(directory: str | None) -> Iterator[Check]:
    """Run the checks. directory: of a store to check, too."""
    yield _python()
    yield _own_packages()
    yield _java()
    for variable in _python_variables():
        yield _spark_python(*variable)
    if directory is not None:
        yield _store(directory)


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    too_old = sys.version_info < _OLDEST_PYTHON
    return Check("Python", found, f"install Python {'.'.join(map(str, _OLDEST_PYTHON))} or later" if too_old else "")


def _own_packages() -> Check:
    try:
        require_own_store()
        require_pyspark()
        from pyspark import __version__ as pyspark_version
    except ImportError as error:
        return Check("Packages", "incomplete", str(error))
    return Check("Packages", f"pyspark-mq {version('pyspark-mq')}, PySpark {pyspark_version}")


def _java() -> Check:
    try:
        return Check("Java", str(require_java()))
    except JavaMissing as error:
        return Check("Java", "no Java that Spark can run on", str(error))


def _python_variables() -> Iterator[tuple[str, str]]:
    workers = os.environ.get("PYSPARK_PYTHON")
    if driver := os.environ.get("PYSPARK_DRIVER_PYTHON"):
        yield "PYSPARK_DRIVER_PYTHON", driver
    yield ("PYSPARK_PYTHON", workers) if workers else ("the first python3 on PATH", "python3")


def _spark_python(chosen_by: str, command: str) -> Check:
    what = f"Spark's Python ({chosen_by})"
    path = shutil.which(command)
    if path is None:
        return Check(what, command, f"{command} does not exist or is not executable; {_INSTALL}")
    try:
        done = subprocess.run([path, "-c", _FIND_SOURCE], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(what, path, f"{path} does not run Python code ({error}); set {chosen_by} to a Python")
    if done.returncode == _NOT_LISTED:
        return Check(what, f"{path} has no pyspark-mq", _INSTALL)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Check(what, f"{path} cannot import pyspark-mq", f"{reason}; {_INSTALL}")
    pyspark, own = done.stdout.split()
    return Check(what, f"{path} has pyspark-mq {own}, PySpark {pyspark}")


def _store(directory: str) -> Check:
    what = f"Store {directory}"
    try:
        from store import MessageStore, StoreError

        with MessageStore.open(directory, read_only=True) as store:
            topics = len(store.topics())
    except ImportError as error:
        return Check(what, "not checked", str(error))
    except StoreError as error:
        return Check(what, "cannot be read", str(error))
    free = shutil.disk_usage(directory).free
    writable = "writable" if os.access(directory, os.W_OK) else "not writable for this user"
    return Check(what, f"{topics} topics, {writable}, {free / 2**30:,.1f} GiB free")


@click.command()
@click.argument("store", type=click.Path(file_okay=False), required=False)
def doctor(store: str | None) -> None:
    """Check Python, Java and PySpark, and STORE if given.

    A line that begins with FAIL is followed by what to do. The exit code is then 1.
    """
    failed = False
    for check in checks(store):
        failed |= bool(check.remedy)
        echo(f"{'FAIL' if check.remedy else 'ok':<4}  {check.what}: {check.found}")
        if check.remedy:
            echo(f"      {check.remedy}")
    sys.exit(1 if failed else 0)
