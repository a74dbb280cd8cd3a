"""Run the examples of `docs/cli.md`, and compare its options with the commands' help.

`python -m tests.pyspark_mq.cli.test_page` writes the output of `--help` into the page.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pyspark_mq.cli import main
from tests.pyspark_mq.cli.process import SCRIPT, TIMEOUT_SECONDS, run

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
LAST = "\n# Every option\n"


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield (*before, name)


def help_of(words: tuple[str, ...]) -> str:
    return CliRunner().invoke(main, [*words, "--help"], prog_name="pyspark-mq", terminal_width=100).stdout


def examples(session: str) -> Iterator[tuple[str, str]]:
    for example in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, output = example.partition("\n")
        yield command, output


def examples_on_page() -> list[tuple[str, str]]:
    sessions = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [example for session in sessions for example in examples(session)]


def matches(shown: str, printed: str) -> bool:
    """Return whether they are equal, with "..." for any text and any number of blanks for blanks."""
    parts = (r"\s+".join(map(re.escape, part.split())) for part in re.split(r"\.\.\.", shown))
    return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(printed.split()), re.DOTALL) is not None


def test_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    path = os.pathsep.join((str(SCRIPT.parent), os.environ["PATH"]))
    for command, shown in examples_on_page():
        if "|" in command:
            done = subprocess.run(
                ["bash", "-c", f"{command} 2>&1"],
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
            )
            printed = done.stdout + done.stderr
        else:
            done = run(*shlex.split(command)[1:])
            printed = done.stdout + done.stderr
        assert done.returncode == 0, (command, printed)
        assert matches(shown, printed), (command, printed)


def test_every_command_has_an_example() -> None:
    shown = [command for command, _ in examples_on_page()]
    without = [words for words in commands(main) if not any(f"pyspark-mq {' '.join(words)}" in each for each in shown)]
    assert without == [("console",), ("demo",), ("serve",)]


def every_option() -> str:
    return LAST + "".join(f"```\n{help_of(words).rstrip()}\n```\n" for words in commands(main))


def test_every_option_is_on_the_page() -> None:
    said = PAGE.read_text().partition(LAST)[2]
    assert said.split() == every_option().removeprefix(LAST).split()


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(LAST)[0] + every_option())
