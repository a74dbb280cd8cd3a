"""Every queue of a damaged directory has the same content after our recovery as after RocketMQ's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store import MessageStore, StoreConfig
from tests import seen
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import INDEX, MIXES

pytestmark = pytest.mark.rocketmq

HALTED = next(mix for mix in MIXES if mix.name == "halted")
MESSAGES = 1000


def untouched(directory: Path) -> None:
    pass


def without_queues(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue")


def without_one_queue(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue" / "plain" / "1")


def without_an_index(directory: Path) -> None:
    shutil.rmtree(directory / "index")


def queues_cut_short(directory: Path) -> None:
    """The last files lack their last entries, which did not reach the device."""
    for queue in (directory / "consumequeue").glob("*/*"):
        overwrite(sorted(queue.iterdir())[-1], lambda data: data[: len(data) // 3 // 20 * 20])


def log_cut_short(directory: Path) -> None:
    """The log ends early, and queue entries point past its end."""
    overwrite(last_segment(directory), lambda data: data[: len(data) // 2])


def log_torn(directory: Path) -> None:
    """The middle of the last segment is zero, and records follow."""
    overwrite(
        last_segment(directory), lambda data: data[: len(data) // 3] + bytes(3000) + data[len(data) // 3 + 3000 :]
    )


def a_body_flipped(directory: Path) -> None:
    """A bit of the body of the last segment's third record is flipped: only the CRC shows it."""

    def flip(data: bytes) -> bytes:
        at = 0
        for _ in range(2):
            at += int.from_bytes(data[at : at + 4], "big")
        return data[: at + 120] + bytes([data[at + 120] ^ 1]) + data[at + 121 :]

    overwrite(last_segment(directory), flip)


def drop_empty_segments(directory: Path) -> None:
    """After a halt RocketMQ's next segment may have no length yet, and 4.9 does not load that."""
    for path in (directory / "commitlog").iterdir():
        if not path.stat().st_size:
            path.unlink()


def last_segment(directory: Path) -> Path:
    """Return the last segment with records: the one after it is preallocated."""
    return [path for path in sorted((directory / "commitlog").iterdir()) if path.read_bytes()[:8].strip(b"\0")][-1]


def overwrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Keep the file's length: removed bytes become zero."""
    data = path.read_bytes()
    path.write_bytes(change(data).ljust(len(data), b"\0"))


DAMAGES = (
    untouched,
    without_queues,
    without_one_queue,
    without_an_index,
    queues_cut_short,
    log_cut_short,
    log_torn,
    a_body_flipped,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_recovery_equals_rocketmqs(damage: Callable[[Path], None], rocketmq: RocketMQ, tmp_path: Path) -> None:
    directory = tmp_path / "ours"
    rocketmq.write(directory, HALTED.puts(MESSAGES, rocketmq.line), HALTED.full_config, exit="halt")
    drop_empty_segments(directory)
    damage(directory)
    copy = shutil.copytree(directory, tmp_path / "theirs")
    theirs = seen.by_rocketmq(rocketmq.read(copy, INDEX))
    with MessageStore.open(directory, config=StoreConfig(**INDEX)) as store:
        seen.assert_same(seen.by_scan(store), theirs)
    seen.assert_same(seen.by_rocketmq(rocketmq.read(directory, INDEX)), theirs)
