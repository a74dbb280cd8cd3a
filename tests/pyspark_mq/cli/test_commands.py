import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_mq.cli import main
from tests.pyspark_mq.cli.process import SCRIPT, TIMEOUT_SECONDS, run, succeed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("send", "{path}", "nowhere", "x"), "nowhere"),
        (("send", "{path}", "orders", "x", "--queue", "7"), "7"),
        (("send", "{other}", "orders", "x"), "{other}"),
        (("tail", "{path}", "nowhere"), "nowhere"),
        (("tail", "{path}", "orders", "--from", "99"), "99"),
        (("tail", "{other}", "orders"), "{other}"),
        (("stats", "{other}"), "{other}"),
        (("topic", "list", "{other}"), "{other}"),
        (("clean", "{other}"), "{other}"),
        (("verify", "{other}"), "{other}"),
        (("verify", "{other}", "--repair"), "{other}"),
        (("clean", "{other}", "--dry-run"), "{other}"),
        (("topic", "create", "{path}", "a topic"), "a topic"),
        (("topic", "create", "{path}", "SCHEDULE_TOPIC_XXXX"), "'SCHEDULE_TOPIC_XXXX' is one of RocketMQ's own topics"),
        (("stats", "s3://bucket/{other}"), "this is an archive"),
        (("groups", "list", "s3://bucket/{other}"), "this is an archive, and this command needs a store's directory"),
        (
            ("verify", "rocketmq://127.0.0.1:1"),
            "these pyspark-mq commands: stats, top, tail, export, query --time, groups list",
        ),
    ],
)
def test_error_is_one_line_and_exit_code_1(path: Path, tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    names = {"path": str(path), "other": str(tmp_path / "other")}
    done = run(*(argument.format(**names) for argument in arguments))
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert named.format(**names) in done.stderr
    assert not (tmp_path / "other").exists()


def test_every_command_refuses_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a store")
    for arguments in (
        ("topic", "create", tmp_path, "orders"),
        ("stats", tmp_path),
        ("send", tmp_path, "orders", "x"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_wrong_usage_has_exit_code_2(path: Path) -> None:
    assert run("send", path, "orders", "x", "--file", __file__).returncode == 2
    assert run("tail", path, "orders", "--from", "yesterday").returncode == 2
    for option, value in (("--sql", "a = "), ("--tags", "paid |")):
        done = run("tail", path, "orders", "-n", "1", option, value)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(f"Error: {option}: ")


@pytest.mark.parametrize("group", [(), ("topic",), ("groups",)])
def test_summaries_of_commands_are_not_cut_off(group: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*group, "--help"], prog_name="pyspark-mq", terminal_width=80).stdout
    assert [line for line in shown.partition("Commands:")[2].splitlines() if line.endswith("...")] == []


INTERRUPTED = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
from pyspark_mq.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["click", "store.api.writer"])
def test_ctrl_c_while_a_command_starts_is_one_line(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted: nothing was done\n")


def test_importing_the_command_line_does_not_import_spark() -> None:
    check = "import sys, pyspark_mq.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=TIMEOUT_SECONDS).returncode == 0


@pytest.mark.parametrize(
    ("command", "spared"),
    [
        (("topic", "list"), {"pyarrow.compute"}),
        (("tail", "orders", "--until-end"), set()),
        (("send", "orders", "x"), set()),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_command_loads_only_what_it_uses(path: Path, command: tuple[str, ...], spared: set[str]) -> None:
    succeed("send", path, "orders", "before")
    spared = spared | {"pyspark", "pandas", "fsspec", "rich"}
    program = f"""
import atexit, sys
from pyspark_mq.cli import main
atexit.register(lambda: print("loaded", *sorted({spared!r} & sys.modules.keys())))
main()
"""
    name, *rest = command
    words = [name, *rest, str(path)] if name == "topic" else [name, str(path), *rest]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, timeout=TIMEOUT_SECONDS)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"loaded"), done.stderr


def test_broker_settings_are_read_and_misspelled_ones_refused(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerId=1\nmappedFileSizeCommitLog=1048576\n")
    done = run("topic", "create", tmp_path / "mq", "orders", "--config", config)
    assert (done.returncode, done.stdout) == (0, "orders: 4 queues\n")
    assert done.stderr == f"Warning: {config}: ignored, because this package has no such settings: brokerId\n"
    config.write_text("maxMesageSize=5\n")
    done = run("topic", "create", tmp_path / "mq", "orders", "--config", config)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {config}, line 1: unknown key 'maxMesageSize'; did you mean 'maxMessageSize'?\n"


def test_system_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / ("x" * 300)):
        for command in ("stats", "topic list", "verify"):
            done = run(*command.split(), path)
            assert done.returncode == 1
            assert re.fullmatch(rf"Error: {path}\S*: .+\n", done.stderr)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["query", "tail", "export"])
def test_incomplete_output_is_an_error(path: Path, tmp_path: Path, command: str, unbuffered: str) -> None:
    more = {"query": ["--key", "k"], "tail": ["--until-end"], "export": ["--to", "jsonl", "-o", "-"]}[command]
    succeed("send", path, "orders", "x" * 5000, "--keys", "k")
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "-", SCRIPT, command, path, "orders", *more]
    with (tmp_path / "printed").open("wb") as out:
        # Under the limit Python would write truncated .pyc files that other processes import.
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(limited, stdout=out, stderr=subprocess.PIPE, env=environment, timeout=TIMEOUT_SECONDS)
    assert (done.returncode, done.stderr) == (1, b"Error: [Errno 27] File too large\n")


def test_closed_output_is_no_error(path: Path) -> None:
    for command in (["tail", path, "orders", "--until-end"], ["send", path, "orders", "x"], ["stats", path]):
        closed = ["bash", "-c", 'exec "$@" >&-', "-", SCRIPT, *command]
        done = subprocess.run(closed, stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS)
        assert (done.returncode, done.stderr) == (0, b"")
