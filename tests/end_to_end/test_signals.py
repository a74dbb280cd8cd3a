"""Ctrl-C and SIGTERM at random moments: no message is lost, no offset is used twice, and work continues.

SIGNALS sets the number of signals of each kind for each kind of work, 10 by default.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from store import Consumer, MessageStore, ReceivedMessage, StoreConfig
from tests.end_to_end.signalled import CONFIG, CONSUMING, GROUP, QUEUES, TOPIC, WORKS
from tests.end_to_end.test_kill import ROOT, acknowledged_in, bodies, check_log
from tests.waiting import PATIENCE, until

SIGNALS = int(os.environ.get("SIGNALS", "10"))
SMALL = StoreConfig(
    mappedFileSizeCommitLog=16 << 10, mappedFileSizeConsumeQueue=2000, maxHashSlotNum=1000, maxIndexNum=4000
)


@pytest.mark.parametrize("work", WORKS)
def test_signals_lose_no_acknowledged_message(tmp_path: Path, work: str) -> None:
    path, seed = tmp_path / "mq", random.randrange(1 << 32)
    print(f"seed {seed}")
    for kind in ("acks", "seen"):
        (tmp_path / f"mq.{kind}").mkdir()
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic(TOPIC, QUEUES)
    subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.signalled", work, str(path), str(SIGNALS), str(seed)],
        cwd=ROOT,
        check=True,
        timeout=PATIENCE + 3 * SIGNALS,
    )
    acknowledged = acknowledged_in(tmp_path / "mq.acks")
    assert len(acknowledged) >= SIGNALS
    with MessageStore.open(path) as store:
        found = bodies(store)
    assert acknowledged.items() <= found.items()
    assert max(Counter(found.values()).values()) == 1, "a message is stored twice"
    assert not (path / "abort").exists()
    check_log(path, len(found))
    if work in CONSUMING:
        check_consumed(path, tmp_path / "mq.seen", set(found.values()))


def check_consumed(path: Path, reports: Path, put: set[bytes]) -> None:
    """Check that each message was consumed, or is delivered to the next member."""
    left = put - {body for file in reports.iterdir() for body in file.read_bytes().splitlines()}

    def listener(messages: Sequence[ReceivedMessage]) -> None:
        left.difference_update(message.body for message in messages)

    with Consumer(path, GROUP, TOPIC, listener, config=CONFIG):
        until(lambda: not left)
