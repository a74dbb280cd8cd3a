"""`pyspark-mq stats`."""

import json
import signal
from pathlib import Path

from tests.pyspark_mq.cli.process import TIMEOUT_SECONDS, run, started, succeed


def test_stats_counts_messages_and_bytes(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c", "--queue", 1)
    lines = [line.split() for line in succeed("stats", path).splitlines()]
    assert lines[1] == ["orders", "0", "0", "0", "0", "0"]
    assert lines[2][:5] == ["orders", "1", "0", "3", "3"]
    assert lines[-1][1] == lines[2][5]  # all that was published is in queue 1
    assert lines[-1][4:8] == ["1", "segments", "of", "1,048,576"]
    assert lines[-1][-4:] == ["dispatch", "lag", "0", "bytes"]


def test_as_json(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c", "--queue", 1)
    found = json.loads(succeed("stats", path, "--json"))
    assert [queue["messages"] for queue in found["queues"]] == [0, 3]
    assert found["queues"][1] == {
        "topic": "orders",
        "queueId": 1,
        "minOffset": 0,
        "maxOffset": 3,
        "messages": 3,
        "bytes": found["log"]["publishedBytes"],
    }
    assert found["log"]["dispatchLagBytes"] == 0


def test_again_and_again(path: Path) -> None:
    lines = succeed("stats", path, "--json", "--watch", 0.1, "--count", 3).splitlines()
    times = [json.loads(line)["timestamp"] for line in lines]
    assert len(times) == 3
    assert times[2] - times[0] >= 200
    assert run("stats", path, "--count", 3).returncode == 2


def test_ctrl_c_ends_it(path: Path) -> None:
    with started("stats", path, "--watch", 0.1, "--json") as stats:
        assert stats.stdout is not None
        stats.stdout.readline()
        stats.send_signal(signal.SIGINT)
        _, err = stats.communicate(timeout=TIMEOUT_SECONDS)
    assert stats.returncode == 130
    assert err.decode().startswith("Interrupted: ")
