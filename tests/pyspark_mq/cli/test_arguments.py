"""Shell completion."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from pyspark_mq.cli import main
from store import MessageStore
from tests.pyspark_mq.cli.process import run, succeed


def offered(arguments: list[str], incomplete: str) -> list[str]:
    complete = ShellComplete(main, {}, "pyspark-mq", "_PYSPARK_MQ_COMPLETE")
    return [item.value for item in complete.get_completions(arguments, incomplete)]


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        ([], "ta", ["tail"]),
        (["groups"], "", ["delete", "list", "members", "reset", "show"]),
        (["tail", "{path}"], "", ["orders", "other"]),
        (["tail", "{path}"], "or", ["orders"]),
        (["groups", "reset", "{path}"], "", ["billing"]),
        (["groups", "reset", "{path}", "billing"], "ot", ["other"]),
        (["tail", "{path}", "orders", "--from"], "l", ["latest"]),
        (["export", "{path}", "orders", "--to"], "p", ["parquet"]),
        (["tail", "{path}/missing"], "", []),
        (["tail", "{path}", "orders", "--unt"], "--unt", ["--until-end"]),
    ],
)
def test_completions_are_offered(path: Path, arguments: list[str], incomplete: str, expected: list[str]) -> None:
    with MessageStore.open(path) as store:
        store.create_topic("other")
        store.commit_offsets("billing", "orders", {0: 0})
    assert offered([argument.format(path=path) for argument in arguments], incomplete) == expected


def test_stores_complete_to_folders() -> None:
    complete = ShellComplete(main, {}, "pyspark-mq", "_PYSPARK_MQ_COMPLETE")
    assert [item.type for item in complete.get_completions(["tail"], "")] == ["dir"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(shell: str) -> None:
    assert "_PYSPARK_MQ_COMPLETE" in succeed("completion", shell)
    assert run("completion", "cmd").returncode == 2
