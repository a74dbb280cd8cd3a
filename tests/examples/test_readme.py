import os
import re
import subprocess
import sys
from pathlib import Path

from store import StoreConfig
from tests.pyspark_mq.cli.process import SCRIPT

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"
PAGES = (*README.parent.glob("*.md"), *DOCS.rglob("*.md"))


def test_ten_lines_and_commands_work_when_pasted(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    program, output = re.findall(r"## Ten lines\n```python\n(.*?)```\n```\n(.*?)```", text, re.DOTALL)[0]
    assert "/tmp/quickstart" in program
    file = tmp_path / "pasted.py"
    file.write_text(program.replace("/tmp/quickstart", str(tmp_path / "store")), "utf-8")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(output.split())

    commands = re.findall(r"^.*pyspark-mq (?:send|tail) .*$", text, re.MULTILINE)
    assert len(commands) == 2
    environment["PATH"] = os.pathsep.join((str(SCRIPT.parent), os.environ["PATH"]))
    line = " && ".join(commands).replace("/tmp/quickstart", str(tmp_path / "store"))
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "order 6" in done.stdout) == (0, True), done.stderr


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_named_test_exists() -> None:
    tests = [str(path) for path in README.parent.joinpath("tests").rglob("test_*.py")]
    for page in PAGES:
        for name in re.findall(r"[\w/]*test_\w+\.py", page.read_text("utf-8")):
            assert any(path.endswith(f"/{name}") for path in tests), f"{page.name}: {name}"


def test_store_conf_states_the_defaults() -> None:
    assert StoreConfig.load(README.parent / "conf" / "store.conf") == StoreConfig()
