"""Our directories after a machine went down, opened by RocketMQ: at once, and after our own recovery."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from tests.end_to_end.dying_writers import TOPIC
from tests.end_to_end.test_kill import bodies
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import INDEX
from tests.rocketmq.test_after_kills import seen_by
from tests.store.test_recovery import another_boot

pytestmark = pytest.mark.rocketmq

CRASHES = int(os.environ.get("CRASHES", "2"))  # of machines
BLOCK = 512
QUEUES = 3
CONFIG = StoreConfig(
    mappedFileSizeCommitLog=1 << 14, mappedFileSizeConsumeQueue=2000, flushIntervalCommitLog=3_600_000, **INDEX
)


def crashed(path: Path, chance: random.Random) -> tuple[dict[tuple[int, int], bytes], dict[tuple[int, int], bytes]]:
    """A directory as a page cache that died leaves it; what was flushed in it, and all that was acknowledged."""
    live = path.with_name(f"{path.name}-live")
    with MessageStore.open(live, config=CONFIG) as store:
        store.create_topic(TOPIC, QUEUES)
        put(store, chance.randrange(1, 100), chance)
        store.flush()
        flushed, end = bodies(store), store.confirm_offset
        put(store, chance.randrange(1, 100), chance)
        acknowledged = bodies(store)
        shutil.copytree(live, path)
    another_boot(path)
    for segment in (path / "commitlog").iterdir():
        lose_blocks(segment, end - int(segment.name), chance)
    for queue in range(QUEUES):
        entries = sum(1 for place in flushed if place[0] == queue) * 20
        for file in (path / f"consumequeue/{TOPIC}/{queue}").glob("*"):
            lose_blocks(file, entries - int(file.name), chance)
    return flushed, acknowledged


def put(store: MessageStore, count: int, chance: random.Random) -> None:
    messages = [Message(TOPIC, chance.randbytes(chance.randrange(600)), keys=(f"k{n}",)) for n in range(count)]
    store.put_many(messages)


def lose_blocks(file: Path, flushed: int, chance: random.Random) -> None:
    """Blocks behind the first `flushed` bytes that never reached the device: they read as zeros."""
    content = bytearray(file.read_bytes())
    for begin in range(0, len(content), BLOCK):
        lost = range(max(begin, flushed), min(begin + BLOCK, len(content)))
        if lost and chance.random() < 0.4:
            content[lost.start : lost.stop] = bytes(len(lost))
    file.write_bytes(content)


def test_nothing_flushed_is_lost_and_nothing_torn_served(rocketmq: RocketMQ, tmp_path: Path) -> None:
    for seed in range(CRASHES):
        path, copy = tmp_path / f"{seed}", tmp_path / f"{seed}-copy"
        flushed, acknowledged = crashed(path, random.Random(seed))
        shutil.copytree(path, copy)
        at_once = seen_by(rocketmq, copy)
        assert flushed.items() <= at_once.items() <= acknowledged.items()
        with MessageStore.open(path) as store:
            recovered = bodies(store)
            assert flushed.items() <= recovered.items() <= acknowledged.items()
            offset = store.put(Message(TOPIC, b"next", queue_id=1)).queue_offset
        assert seen_by(rocketmq, path) == {**recovered, (1, offset): b"next"}
