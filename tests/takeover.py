"""Simulate a RocketMQ broker that takes over a directory of ours, and a reader that continues."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store import MessageStore
from store.format.layout import ABORT_FILE, COMMIT_LOG_DIR, CONFIG_DIR, CONSUME_QUEUE_DIR
from tests.end_to_end.dying_writers import QUEUES, TOPIC
from tests.end_to_end.test_kill import ROOT

PATIENCE = 60.0

_SHARED = (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, CONFIG_DIR)


@contextmanager
def broker(path: Path, *, killed: bool = False) -> Iterator[MessageStore]:
    """Recover from the log alone, and write to the same files through a directory with its own watermark.

    So it keeps complete records of a dead writer of ours, as RocketMQ does. killed: leave `abort` behind.
    """
    theirs = path.with_name(f"{path.name}.broker")
    theirs.mkdir()
    for name in _SHARED:
        (theirs / name).symlink_to(path / name)
    abort = path / ABORT_FILE
    with MessageStore.open(theirs) as store:
        abort.touch()
        yield store
    if not killed:
        abort.unlink()
    shutil.rmtree(theirs)


def die(path: Path) -> None:
    """Kill a writer while it writes twelve records to the log."""
    command = [sys.executable, "-m", "tests.end_to_end.dying_writers", "at"]
    done = subprocess.run(
        command, cwd=ROOT, input=f"append {path} half 1\n", text=True, check=True, capture_output=True
    )
    assert done.stdout == "exit 9\n"


class Follower:
    """A reader that continues at its own offsets, and records repeated and skipped messages."""

    def __init__(self, store: MessageStore) -> None:
        self.read: dict[tuple[int, int], bytes] = {}
        self._store = store
        self._next = [0] * QUEUES
        self._confirm_offset = 0

    def until(self, expected: dict[tuple[int, int], bytes]) -> None:
        """Read, woken by `wait`, until exactly `expected` was read."""
        deadline = time.monotonic() + PATIENCE
        while True:
            before = len(self.read)
            self.read_on()
            assert self.read.items() <= expected.items()
            if len(self.read) == len(expected):
                return
            assert time.monotonic() < deadline, f"read {len(self.read)} of {len(expected)} messages"
            if len(self.read) == before:
                self._store.wait(self._confirm_offset, 1.0)

    def read_on(self) -> None:
        seen = self._store.confirm_offset
        assert seen >= self._confirm_offset, "the published end moved back"
        self._confirm_offset = seen
        for queue in range(QUEUES):
            for message in self._store.get_message("g", TOPIC, queue, self._next[queue]).messages:
                assert message.queue_offset == self._next[queue]
                self.read[queue, message.queue_offset] = message.body
                self._next[queue] += 1
