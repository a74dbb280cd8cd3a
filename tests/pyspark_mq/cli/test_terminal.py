import json
import logging
import os
import subprocess
from pathlib import Path

import pytest

from pyspark_mq.cli.terminal import VisibleFormatter, aligned, visible, visible_body
from store import Message, MessageStore
from tests.pyspark_mq.cli.process import SCRIPT, TIMEOUT_SECONDS, run, succeed

HOSTILE = b"\x1b]0;owned\x07a\x9b2J \xe2\x80\xae\xc2\x9b31m\xc3\xa9\xe2\x82\xac\r\x7f"
SHOWN = "^[]0;owned^GaM-^[2J <U+202E>M-^[31m\u00e9\u20ac^M^?"


@pytest.fixture
def hostile(path: Path) -> Path:
    with MessageStore.open(path) as store:
        store.put(Message("orders", HOSTILE, keys=["k"], properties={"p": "\u009b31m\u202e"}))
    return path


def on_a_terminal(*arguments: object) -> str:
    ours, theirs = os.openpty()
    done = subprocess.run([SCRIPT, *map(str, arguments)], stdout=theirs, stderr=theirs, timeout=TIMEOUT_SECONDS)
    os.close(theirs)
    got = b""
    try:
        while piece := os.read(ours, 1 << 16):
            got += piece
    except OSError:
        pass
    os.close(ours)
    assert done.returncode == 0, got
    return got.decode()


def test_bodies_on_a_terminal_are_visible(hostile: Path) -> None:
    assert on_a_terminal("tail", hostile, "orders", "--until-end") == f"{SHOWN}\r\n"
    assert on_a_terminal("query", hostile, "orders", "--key", "k") == f"{SHOWN}\r\n"


def test_bodies_in_a_pipe_are_kept(hostile: Path) -> None:
    done = subprocess.run([SCRIPT, "tail", hostile, "orders", "--until-end"], capture_output=True)
    assert done.stdout == HOSTILE + b"\n"


def test_json_stays_json_without_control_characters(hostile: Path) -> None:
    line = succeed("tail", hostile, "orders", "--until-end", "--json").removesuffix("\n")
    assert visible(line) == line
    found = json.loads(line)
    assert found["properties"] == {"p": "\u009b31m\u202e"}


def test_names_in_errors_are_visible(hostile: Path) -> None:
    for arguments in (["tail", hostile, "\x1b[2J"], ["query", hostile, "orders", "--key", "\x9b2J"], ["\x1b[2J"]):
        done = run(*arguments)
        assert done.returncode != 0
        assert visible(done.stderr) == done.stderr


def test_names_in_tables_stay_in_their_line() -> None:
    assert aligned([("a\nb\x1b", "1"), ("c", "22")]) == "a^Jb^[   1\nc       22"


def test_logs_are_visible() -> None:
    record = logging.LogRecord("store", logging.WARNING, "", 0, "group %s", ("\x1b[2J",), None)
    assert VisibleFormatter().format(record) == "group ^[[2J"


def test_text_is_kept() -> None:
    assert visible("caf\u00e9\n\t\u65e5\u672c \U0001f600") == "caf\u00e9\n\t\u65e5\u672c \U0001f600"
    assert visible_body(b"\xff\xa1\x80") == b"M-^?M-!M-^@"
