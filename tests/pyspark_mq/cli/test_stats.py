"""`pyspark-mq stats`."""

from pathlib import Path

from tests.pyspark_mq.cli.process import succeed


def test_stats_counts_messages_and_bytes(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c", "--queue", 1)
    lines = [line.split() for line in succeed("stats", path).splitlines()]
    assert lines[1] == ["orders", "0", "0", "0", "0", "0"]
    assert lines[2][:5] == ["orders", "1", "0", "3", "3"]
    assert lines[-1][1] == lines[2][5]  # all that was published is in queue 1
    assert lines[-1][4:8] == ["1", "segments", "of", "1,048,576"]
    assert lines[-1][-4:] == ["dispatch", "lag", "0", "bytes"]
