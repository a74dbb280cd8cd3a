from __future__ import annotations

import re
import shutil
import subprocess
import sys
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

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


def test_public_names_are_exported() -> None:
    assert pyspark_mq.__all__ == ["DefaultSource", "__version__", "progress", "session"]
    assert pyspark_mq.DefaultSource.name() == "mq"


def test_importing_is_cheap() -> None:
    program = "import sys, pyspark_mq; print([m for m in ('pyspark', 'pyarrow', 'numpy', 'store') if m in sys.modules])"
    assert python(program, ROOT) == "[]"


def test_shadowing_store_is_an_error_only_when_used(tmp_path: Path) -> None:
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


def test_package_without_pyspark_does_not_break_sparks_lookup(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('too old')")
    program = "import pyspark_mq; print(hasattr(pyspark_mq, 'DefaultSource'))"
    assert python(program, tmp_path, ROOT) == "False"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("out")
    for name in ("conf", "examples", "pyspark_mq", "store"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = ["egg_info", "--egg-base", str(out), "install_data", "--install-dir", str(out)]
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=tree, check=True, capture_output=True, timeout=60)
    return out


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    return message_from_bytes((built / "pyspark_mq.egg-info" / "PKG-INFO").read_bytes())


@pytest.mark.parametrize("folder", ["conf", "examples"])
def test_wheel_has_the_files_that_docs_name(built: Path, folder: str) -> None:
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    share = built / "share/pyspark-mq"
    assert {name for name in listed.split() if not (share / name).is_file()} == set()


def test_links_of_the_readme_are_absolute(metadata: Message) -> None:
    home = str(metadata["Home-page"])
    text = metadata.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert {image for image, _ in links} == {"", "!"}
    for image, link in links:
        path, _, _ = link.removeprefix(f"{home}/{'raw' if image else 'blob'}/main/").partition("#")
        assert link.startswith("https://")
        assert not link.startswith(home) or (ROOT / path).exists(), link


def test_metadata_names_the_project(metadata: Message) -> None:
    assert metadata["Author"]
    assert {str(each).partition(",")[0] for each in metadata.get_all("Project-URL") or ()} >= {
        "Documentation",
        "Issues",
    }
    assert any("Apache Software License" in each for each in metadata.get_all("Classifier") or ())
