from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from store import MessageStore
from tests import seen
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import MIXES, Mix

pytestmark = pytest.mark.rocketmq

Compare = Callable[[seen.Queues, seen.Queues], None]
Written = tuple[Path, seen.Queues]
MESSAGES = int(os.environ.get("MESSAGES", "1000"))  # in each mix; the full run is `make test-rocketmq MESSAGES=10000`
AT_ONCE = 4
EVERYTHING = next(mix for mix in MIXES if mix.name == "everything")


@pytest.fixture(scope="module")
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[RocketMQ, Mix], Written]]:
    """Return a directory that RocketMQ wrote, and RocketMQ's reading of it.

    All requested directories are written concurrently: a RocketMQ shutdown sleeps for seconds.
    """
    folder = tmp_path_factory.mktemp("theirs")
    names = {item.name for item in request.session.items}

    def write(rocketmq: RocketMQ, mix: Mix) -> Written:
        directory = folder / f"{mix.name}-{rocketmq.line}"
        answers = rocketmq.write(directory, mix.puts(MESSAGES, rocketmq.line), mix.full_config, mix.exit)
        assert {answer["status"] for answer in answers} == {"PUT_OK"}
        copy = shutil.copytree(directory, directory.with_name(f"{directory.name}-copy"))
        theirs = seen.by_rocketmq(rocketmq.read(copy, mix.full_config))
        shutil.rmtree(copy)
        return directory, theirs

    with ThreadPoolExecutor(AT_ONCE) as writers:

        @cache
        def of_line(rocketmq: RocketMQ) -> dict[str, Future[Written]]:
            mixes = [mix for mix in MIXES if rocketmq.line >= mix.since]
            asked = [mix for mix in mixes if any(f"[{rocketmq.line}-{mix.name}]" in name for name in names)]
            return {mix.name: writers.submit(write, rocketmq, mix) for mix in asked}

        yield lambda rocketmq, mix: of_line(rocketmq)[mix.name].result()


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_messages_equal_rocketmqs_in_every_field(
    mix: Mix, rocketmq: RocketMQ, written: Callable[[RocketMQ, Mix], Written], compare: Compare
) -> None:
    if rocketmq.line < mix.since:
        pytest.skip(f"RocketMQ {rocketmq.line} cannot write this")
    directory, theirs = written(rocketmq, mix)
    assert sum(len(queue.rows) for queue in theirs.values()) >= MESSAGES / 3

    with MessageStore.open(directory, read_only=True) as store:
        seen.assert_same(seen.by_get_message(store), theirs)
        compare(seen.by_scan(store), theirs)


@pytest.mark.parametrize("deleted", [1, 3])
def test_log_shortened_by_retention_is_read_as_rocketmq_does(deleted: int, rocketmq5: RocketMQ, tmp_path: Path) -> None:
    """Not for RocketMQ 4: it does not advance the first offset of a queue without records."""
    directory = tmp_path / "theirs"
    rocketmq5.write(directory, EVERYTHING.puts(2000, rocketmq5.line), EVERYTHING.full_config)
    for segment in sorted((directory / "commitlog").iterdir())[:deleted]:
        segment.unlink()
    copy = shutil.copytree(directory, tmp_path / "copy")
    theirs = seen.by_rocketmq(rocketmq5.read(copy, EVERYTHING.full_config))
    assert any(queue.minimum for queue in theirs.values())
    with MessageStore.open(directory, read_only=True) as store:
        seen.assert_same(seen.by_scan(store), theirs)
