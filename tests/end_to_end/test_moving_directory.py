"""Read a directory in every way while another process writes to it and deletes its messages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_mq.cli import main
from store import Message, MessageStore, OffsetLost, StoreConfig
from store.upkeep.verify import verify

ROOT = Path(__file__).parents[2]
SMALL = StoreConfig(
    mappedFileSizeCommitLog=8192,
    mappedFileSizeConsumeQueue=400,
    maxHashSlotNum=50,
    maxIndexNum=60,
    deleteFileBatchMax=3,
)
QUEUES = 2
ROUNDS, SEGMENTS = int(os.environ.get("ROUNDS", "25")), 20  # number of checks, and of segments written during them

WRITER = """
import sys, threading
from store import Message, MessageStore
ended = threading.Thread(target=sys.stdin.read)
ended.start()
with MessageStore.open(sys.argv[1]) as store:
    number = 0
    while ended.is_alive():
        number += 1
        store.put_many([Message("t", bytes(size * 40), tags="a", keys=("all",)) for size in range(10)])
        if number % 3 == 0:
            store.clean(forced=True)
"""


def brokers_view(path: Path) -> Path:
    """Copy the files to look like a broker's: no watermark, no settings of ours, and `abort`."""
    theirs = path.with_name("theirs")
    theirs.mkdir()
    (theirs / "abort").touch()
    for name in ("commitlog", "consumequeue"):
        (theirs / name).symlink_to(path / name)
    return theirs


def published(path: Path) -> int:
    with MessageStore.open(path, read_only=True) as store:
        return store.confirm_offset


def no_findings(path: Path) -> None:
    assert verify(path).findings == []


def stats(path: Path) -> None:
    result = CliRunner().invoke(main, ["stats", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def scan(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        for queue in range(QUEUES):
            first, end = store.offsets("t", queue)
            try:
                batches = list(store.scan("t", queue, first, end, ("queueOffset",)))
            except OffsetLost:
                continue
            assert [offset for batch in batches for offset in batch.column(0).to_pylist()] == list(range(first, end))


def pull(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        first = store.min_offset("t", 0)
        assert store.get_message("g", "t", 0, first).next_begin_offset >= first


def follow(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        seen = store.confirm_offset
        try:
            arrivals = store.arrivals(seen, store.wait(seen, 0.01))
        except OffsetLost:
            return
        assert {arrival.topic for arrival in arrivals} <= {"t"}


def by_key(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        assert all(message.topic == "t" for message in store.query("t", "all"))


LOOKS: list[Callable[[Path], None]] = [no_findings, stats, scan, pull, follow, by_key]


@pytest.mark.parametrize("whose", ["ours", "a broker's"])
def test_readers_survive_concurrent_writes_and_retention(tmp_path: Path, whose: str) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", QUEUES)
        store.put_many([Message("t", b"first", queue_id=queue) for queue in range(QUEUES)])
    looked_at = path if whose == "ours" else brokers_view(path)
    rounds = 0
    begin = published(path)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdin=subprocess.PIPE) as writer:
        while rounds < ROUNDS or published(path) < begin + SEGMENTS * SMALL.mappedFileSizeCommitLog:
            for look in LOOKS:
                look(looked_at)
            rounds += 1
            assert writer.poll() is None
        writer.communicate()
    assert writer.returncode == 0
