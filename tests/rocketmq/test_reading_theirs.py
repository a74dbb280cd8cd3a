"""Directories that RocketMQ writes: every message, field by field, as RocketMQ's own reader prints it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store import MessageStore
from tests import seen
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import MIXES, Mix

pytestmark = pytest.mark.rocketmq

Compare = Callable[[seen.Queues, seen.Queues], None]
MESSAGES = int(os.environ.get("MESSAGES", "1000"))  # in each mix; `make test-rocketmq MESSAGES=10000` is the whole run
EVERYTHING = next(mix for mix in MIXES if mix.name == "everything")


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_equal_field_by_field(mix: Mix, rocketmq: RocketMQ, tmp_path: Path, compare: Compare) -> None:
    if rocketmq.line not in mix.lines:
        pytest.skip(f"RocketMQ {rocketmq.line} cannot write this")
    directory = tmp_path / "theirs"
    answers = rocketmq.write(directory, mix.puts(MESSAGES), mix.full_config, mix.exit)
    assert {answer["status"] for answer in answers} == {"PUT_OK"}
    copy = shutil.copytree(directory, tmp_path / "copy")
    theirs = seen.by_rocketmq(rocketmq.read(copy, mix.full_config))
    assert sum(len(queue.rows) for queue in theirs.values()) >= MESSAGES / 3  # some mixes have many outside queues

    with MessageStore.open(directory, read_only=True) as store:
        seen.assert_same(seen.by_get_message(store), theirs)
        compare(seen.by_scan(store), theirs)


@pytest.mark.parametrize("deleted", [1, 3])
def test_a_log_whose_head_retention_cut(deleted: int, rocketmq53: RocketMQ, tmp_path: Path) -> None:
    """Not with 4.9: of a queue without any record left it does not move the first offset to the last."""
    directory = tmp_path / "theirs"
    rocketmq53.write(directory, EVERYTHING.puts(2000), EVERYTHING.full_config)
    for segment in sorted((directory / "commitlog").iterdir())[:deleted]:
        segment.unlink()
    copy = shutil.copytree(directory, tmp_path / "copy")
    theirs = seen.by_rocketmq(rocketmq53.read(copy, EVERYTHING.full_config))
    assert any(queue.minimum for queue in theirs.values())
    with MessageStore.open(directory, read_only=True) as store:
        seen.assert_same(seen.by_scan(store), theirs)
