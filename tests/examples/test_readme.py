"""What the README and the files beside it say, tried."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from store import Message, MessageStore, StoreConfig

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"


def test_ten_lines_work_when_pasted(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    program, output = re.findall(r"## Ten lines\n```python\n(.*?)```\n```\n(.*?)```", text, re.DOTALL)[0]
    assert "/tmp/quickstart" in program
    file = tmp_path / "pasted.py"
    file.write_text(program.replace("/tmp/quickstart", str(tmp_path / "store")), "utf-8")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(output.split())


def test_producer_and_consumer_work_when_pasted(tmp_path: Path) -> None:
    program = re.findall(r"In plain Python.*?\n```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[0]
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 2)
        store.put(Message("orders", b"order 0", tags="paid", keys="o-0"))
    code = program.replace("/tmp/quickstart", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        shown = ""  # by two threads
        while not ("o-0: order 0" in shown and "o-6: order 6" in shown) and process.poll() is None:
            shown += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert (process.returncode, rest) == (0, ""), shown


def test_every_link_leads_somewhere() -> None:
    for page in (README, *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_test_that_is_named_is_there() -> None:
    tests = [str(path) for path in README.parent.joinpath("tests").rglob("test_*.py")]
    for page in (README, *DOCS.rglob("*.md")):
        for name in re.findall(r"[\w/]*test_\w+\.py", page.read_text("utf-8")):
            assert any(path.endswith(f"/{name}") for path in tests), f"{page.name}: {name}"


def test_store_conf_states_the_defaults() -> None:
    assert StoreConfig.load(README.parent / "conf" / "store.conf") == StoreConfig()
