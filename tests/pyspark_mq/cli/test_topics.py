"""`pyspark-mq topic`."""

import subprocess
from pathlib import Path

from tests.pyspark_mq.cli.process import TIMEOUT_SECONDS, bodies, run, started, succeed
from tests.waiting import until


def test_topics_are_created_grown_and_listed(path: Path) -> None:
    succeed("topic", "create", path, "payments")
    assert succeed("topic", "create", path, "orders", "--queues", 3) == "orders: 3 queues\n"
    assert succeed("topic", "list", path) == "orders: 3 queues\npayments: 4 queues\n"


def test_deleted_for_good(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c")
    assert succeed("topic", "delete", path, "orders", "--dry-run") == "would delete orders: 2 queues, 3 messages\n"
    assert succeed("topic", "delete", path, "orders") == "deleted orders: 2 queues, 3 messages\n"
    assert succeed("topic", "list", path) == ""
    assert "no topic 'orders'" in run("tail", path, "orders").stderr
    assert "no topic 'orders'" in run("topic", "delete", path, "orders").stderr
    assert "no findings" in succeed("verify", path)


def test_while_another_process_writes(path: Path) -> None:
    with started("send", path, "orders", stdin=subprocess.PIPE) as send:
        assert send.stdin is not None
        send.stdin.write(b"one\n")
        send.stdin.flush()
        until(lambda: len(bodies(path)) == 1)
        assert succeed("topic", "delete", path, "orders") == "deleted orders: 2 queues, 1 messages\n"
        _, said = send.communicate(b"two\n", timeout=TIMEOUT_SECONDS)
    assert send.returncode == 1
    assert b"no topic 'orders'" in said
    assert succeed("topic", "list", path) == ""
