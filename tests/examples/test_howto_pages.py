from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.schema_registry import schema_registry
from tests.pyspark_mq.cli.process import SCRIPT, TIMEOUT_SECONDS, run
from tests.pyspark_mq.cli.test_page import examples, matches

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "howto").glob("*.md"))
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
MOST_WORDS = 600
REGISTRY = "http://registry:8081"
ELSEWHERE = ("nameServer", "s3://", "from_avro", "delta", "import pytest")  # in blocks that tests cannot run


def each_page(test: Any) -> Any:
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)(test)


def blocks(page: Path) -> list[tuple[str, str]]:
    return [
        (language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, text in BLOCK.findall(page.read_text("utf-8"))
    ]


def command(line: str) -> tuple[int, str]:
    if line.startswith("pyspark-mq ") and "|" not in line:
        done = run(*shlex.split(line)[1:])
    else:
        environment = {**os.environ, "PATH": os.pathsep.join((str(SCRIPT.parent), os.environ["PATH"]))}
        done = subprocess.run(
            ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with schema_registry() as address:
        yield address


@each_page
def test_blocks_run(
    page: Path, tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    found = [
        (language, text.replace("/data", str(tmp_path)).replace(REGISTRY, registry)) for language, text in blocks(page)
    ]
    names: dict[str, Any] = {}
    if any(language == "python" and "spark." in text for language, text in found):
        names["spark"] = request.getfixturevalue("spark")
    for language, text in found:
        if language == "console":
            for line, shown in examples(text):
                code, printed = command(line)
                assert code == 0, (line, printed)
                assert matches(shown, printed), (line, printed)
        elif language == "python" and not any(word in text for word in ELSEWHERE):
            exec(compile(text, str(page), "exec"), names)
            for name in [name for name in names if name.startswith("test_")]:
                test = names.pop(name)
                test(
                    **{
                        given: tmp_path / name if given == "tmp_path" else names[given]
                        for given in signature(test).parameters
                    }
                )
        elif language == "yaml":
            assert all(yaml.safe_load_all(text))
        elif language == "json":
            json.loads(text)


@each_page
def test_page_is_short(page: Path) -> None:
    text = BLOCK.sub("", page.read_text("utf-8"))
    assert len(text.split()) < MOST_WORDS


@each_page
def test_page_is_a_task(page: Path) -> None:
    title, text = page.read_text("utf-8").split("\n", 1)
    assert title.startswith("# ")
    assert not text.startswith("\n"), "the page begins with its promise"
