from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_mq.requirements import require_pyspark

ROOT = Path(__file__).parents[2]
USES = """
import sys
import pyspark
import pyspark_mq
pyspark.__version__ = sys.argv[1] if len(sys.argv) > 1 else pyspark.__version__
source = pyspark_mq.DefaultSource({"path": "/x", "subscribe": "a"})
for use in (source.schema, lambda: source.reader(None), lambda: source.streamReader(None)):
    try:
        use()
    except ImportError as error:
        print(error)
"""


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": str(site)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name in ("store", "pyspark_mq"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def missing(own: Path, what: str) -> str:
    return (
        f"pyspark-mq needs its own package 'store', but {own} {what}. Remove the other package and reinstall this one: "
        "pip uninstall -y store; pip install --force-reinstall --no-deps pyspark-mq"
    )


def test_other_store_package_in_the_same_folder_is_an_error(site: Path) -> None:
    own = site / "store/__init__.py"
    own.write_text("")
    said = missing(own, "belongs to another package, such as PyPI's 'store'")
    used = run(site, "-c", USES)
    assert (used.returncode, used.stdout.splitlines()) == (0, [said] * 3), used.stderr
    for arguments in (["topic", "list", "/nowhere"], ["--help"]):
        command = run(site, "-m", "pyspark_mq", *arguments)
        assert (command.returncode, command.stdout, command.stderr) == (1, "", f"Error: {said}\n")


def test_uninstalled_other_store_package_is_an_error(site: Path) -> None:
    own = site / "store/__init__.py"
    own.unlink()
    command = run(site, "-S", "-m", "pyspark_mq", "--help")  # -S: otherwise the store under test is found
    assert (command.returncode, command.stdout, command.stderr) == (1, "", f"Error: {missing(own, 'is missing')}\n")


def test_command_runs_with_its_own_store(site: Path) -> None:
    done = run(site, "-m", "pyspark_mq", "topic", "create", str(site / "mq"), "orders")
    assert (done.returncode, done.stdout) == (0, "orders: 4 queues\n"), done.stderr
    assert run(site, "-m", "pyspark_mq", "--help").stdout.startswith("Usage: pyspark-mq ")


def test_old_pyspark_is_an_error() -> None:
    said = "pyspark-mq needs PySpark 4.2 or later, and 4.1.4 is installed. Upgrade it: pip install -U 'pyspark>=4.2'"
    used = run(ROOT, "-c", USES, "4.1.4")
    assert (used.returncode, used.stdout.splitlines()) == (0, [said] * 3), used.stderr


@pytest.mark.parametrize(
    ("version", "enough"),
    [("3.5.9", False), ("4.0.0.dev2", False), ("4.1", False), ("4.2.0", True), ("4.10.1", True), ("5.0.0+x", True)],
)
def test_versions_of_pyspark_are_compared(version: str, enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    if enough:
        require_pyspark()
    else:
        with pytest.raises(
            ImportError, match=rf"needs PySpark 4\.2 or later, and {version} is installed. Upgrade it: pip install -U"
        ):
            require_pyspark()
