import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_mq.cli import main
from store import MessageStore
from tests.pyspark_mq.cli.process import TIMEOUT_SECONDS, bodies, run, started, succeed
from tests.waiting import until


def test_topics_are_created_and_listed(path: Path) -> None:
    assert succeed("topic", "create", path, "payments", "--queues", 3) == "payments: 3 queues\n"
    assert succeed("topic", "list", path) == "orders: 2 queues\npayments: 3 queues\n"


def test_topic_is_deleted(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c")
    assert succeed("topic", "delete", path, "orders", "--dry-run") == "would delete orders: 2 queues, 3 messages\n"
    assert succeed("topic", "delete", path, "orders") == "deleted orders: 2 queues, 3 messages\n"
    assert succeed("topic", "list", path) == ""
    assert "Topic 'orders' does not exist" in run("tail", path, "orders").stderr
    assert "Topic 'orders' does not exist" in run("topic", "delete", path, "orders").stderr
    assert "no findings" in succeed("verify", path)


def test_topic_is_deleted_while_another_process_writes(path: Path) -> None:
    with started("send", path, "orders", stdin=subprocess.PIPE) as send:
        assert send.stdin is not None
        send.stdin.write(b"one\n")
        send.stdin.flush()
        until(lambda: len(bodies(path)) == 1)
        assert succeed("topic", "delete", path, "orders") == "deleted orders: 2 queues, 1 messages\n"
        _, said = send.communicate(b"two\n", timeout=TIMEOUT_SECONDS)
    assert send.returncode == 1
    assert b"'orders'" in said
    assert succeed("topic", "list", path) == ""


def test_existing_topic_is_not_created_again(path: Path) -> None:
    done = run("topic", "create", path, "orders", "--queues", 4)
    assert done.returncode == 1
    assert f"pyspark-mq topic alter {path} orders --queues N" in done.stderr
    assert succeed("topic", "list", path) == "orders: 2 queues\n"


def test_alter_adds_queues(path: Path) -> None:
    assert succeed("topic", "alter", path, "orders", "--queues", 3) == "orders: 3 queues\n"
    assert (
        "Topic 'ordrs' does not exist. Did you mean orders? Existing topics: orders"
        in run("topic", "alter", path, "ordrs", "--queues", 3).stderr
    )
    assert run("topic", "alter", path, "orders", "--queues", 1).returncode == 1


def test_internal_topics_are_listed_on_request(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.create_topic("%RETRY%readers", 1)
    assert succeed("topic", "list", path) == "orders: 2 queues\n"
    assert "%RETRY%readers: 1 queues\n" in succeed("topic", "list", path, "--all")


@pytest.mark.parametrize("command", [("stats",), ("top", "--count", 1)], ids=["stats", "top"])
def test_internal_topics_are_counted_on_request(path: Path, command: tuple[object, ...]) -> None:
    name, *options = command
    with MessageStore.open(path) as store:
        store.create_topic("rmq_sys_x", 1)
    assert "rmq_sys_x" not in succeed(name, path, *options)
    assert "rmq_sys_x" in succeed(name, path, *options, "--all")


def test_describe_shows_queues_and_groups(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "--queue", 0)
    with MessageStore.open(path) as store:
        store.commit_offsets("billing", "orders", {0: 1})
    header, first, second, group = succeed("topic", "describe", path, "orders").splitlines()
    assert header.split() == ["queue", "first", "end", "messages", "bytes", "oldest", "newest"]
    assert first.split()[:4] == ["0", "0", "2", "2"]
    assert first.split()[5] <= first.split()[6]
    assert second.split() == ["1", "0", "0", "0", "0", "-", "-"]
    assert group == "group billing: 1 messages behind"


@pytest.mark.parametrize(("answer", "left"), [("n\n", "orders: 2 queues\n"), ("y\n", "")], ids=["refused", "confirmed"])
def test_delete_asks_at_a_terminal(path: Path, answer: str, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_mq.cli.terminal.at_a_terminal", lambda: True)
    done = CliRunner().invoke(main, ["topic", "delete", str(path), "orders"], input=answer)
    assert "Delete orders with 0 messages? [y/N]" in done.stderr
    assert succeed("topic", "list", path) == left


def test_yes_skips_the_question(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_mq.cli.terminal.at_a_terminal", lambda: True)
    succeed("topic", "delete", path, "orders", "--yes")
    assert succeed("topic", "list", path) == ""
