import subprocess
import sys
from pathlib import Path

import pytest

from store import MessageStore
from store.model.errors import StoreFull
from tests.pyspark_mq.cli.process import run, succeed
from tests.store.append.test_locks import BROKER

SMALL = ("--seconds", 0.1, "--size", 50, "--batch", 10)


def test_bench_measures_and_deletes_its_topic(path: Path) -> None:
    header, *rows = (line.split() for line in succeed("bench", path, *SMALL, "--producers", 2).splitlines())
    assert header[:3] == ["call", "messages", "messages/s"]
    assert [row[0] for row in rows] == ["send", "read"]
    assert rows[0][1] == rows[1][1] != "0"
    assert all(float(row[4].replace(",", "")) <= float(row[6].replace(",", "")) for row in rows)
    assert succeed("topic", "list", path) == "orders: 2 queues\n"


def test_bench_keeps_its_topic_if_asked(tmp_path: Path) -> None:
    succeed("bench", tmp_path / "new", *SMALL, "--topic", "trial", "--keep")
    with MessageStore.open(tmp_path / "new", read_only=True) as store:
        assert store.max_offset("trial", 0) > 0


def test_bench_refuses_an_existing_topic(path: Path) -> None:
    succeed("send", path, "orders", "mine")
    assert "Topic 'orders' exists" in run("bench", path, *SMALL, "--topic", "orders").stderr
    assert succeed("tail", path, "orders", "--until-end") == "mine\n"


def test_bench_refuses_a_directory_of_a_running_broker(path: Path) -> None:
    command = [sys.executable, "-c", BROKER, path / "lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        done = run("bench", path, *SMALL)
        process.kill()
    assert done.returncode == 1
    assert "locked by a running RocketMQ broker" in done.stderr
    assert succeed("topic", "list", path) == "orders: 2 queues\n"


@pytest.mark.parametrize(
    ("error", "code"), [(StoreFull("full"), 1), (KeyboardInterrupt(), 130)], ids=["full", "ctrl-c"]
)
def test_bench_deletes_its_topic_after_an_error(
    path: Path, error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(MessageStore, "put_many", fail)
    assert run("bench", path, *SMALL).returncode == code
    assert succeed("topic", "list", path) == "orders: 2 queues\n"
