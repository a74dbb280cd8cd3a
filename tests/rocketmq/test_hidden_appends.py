from __future__ import annotations

import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from tests.end_to_end.dying_writers import TOPIC
from tests.end_to_end.test_kill import ROOT, bodies
from tests.rocketmq.harness import RocketMQ, put
from tests.rocketmq.mixes import INDEX
from tests.rocketmq.test_after_kills import DYING_WRITERS, seen_by

pytestmark = pytest.mark.rocketmq

SIZES = {"mappedFileSizeCommitLog": 2048, "mappedFileSizeConsumeQueue": 200}
OLD = {(n % 2, n // 2): f"old {n}".encode() for n in range(12)}
NEW = {(n % 2, 6 + n // 2): bytes([65 + n]) * 700 for n in range(12)}
THEIRS = {(n % 2, 6 + n // 2): f"theirs {n}".encode() for n in range(4)}
HEAD_BYTES = 4
CALLS = 60


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


def new_store(path: Path, flush: str = "ASYNC_FLUSH") -> Path:
    with MessageStore.open(path, config=StoreConfig(**SIZES, **INDEX, flushDiskType=flush)) as store:
        store.create_topic(TOPIC, 2)
        store.put_many([Message(TOPIC, body, queue_id=queue) for (queue, _), body in OLD.items()])
    return path


def states(path: Path) -> tuple[bool, bool]:
    """Return whether it died before publication, and whether the head of its first record is written."""
    with closing(PublishedEnd(path, writable=False)) as published:
        end, announced = published.confirm_offset, published.announced_end
    log = CommitLog(path, SIZES["mappedFileSizeCommitLog"], writable=False)
    return announced > end, any(log.segments.read(end, HEAD_BYTES))


def killed(tmp_path: Path, verb: str, flush: str) -> tuple[list[Path], list[Path]]:
    """Return the directories of an append killed at each of its calls: while its head was missing, and afterwards."""
    base = new_store(tmp_path / "base", flush)
    paths = [shutil.copytree(base, tmp_path / f"{call}") for call in range(CALLS)]
    calls = "".join(f"{verb} {path} half {call}\n" for call, path in enumerate(paths))
    subprocess.run([*DYING_WRITERS, "at"], cwd=ROOT, input=calls, text=True, check=True, capture_output=True)
    dead = [path for path in paths if states(path)[0]]
    hidden = [path for path in dead if not states(path)[1]]
    return hidden, dead[len(hidden) :]


@pytest.mark.parametrize(("verb", "flush"), [("append", "SYNC_FLUSH"), ("publish", "ASYNC_FLUSH")])
def test_rocketmq_ignores_a_dead_append_without_its_head(
    rocketmq: RocketMQ, tmp_path: Path, verb: str, flush: str
) -> None:
    """Although complete records follow the missing head. With the head, it sees all of them."""
    hidden, shown = killed(tmp_path, verb, flush)
    last = hidden[-1]
    assert len(segments(last)) - len(segments(tmp_path / "base")) >= 3, "everything except the head is written"
    assert all((path / "abort").exists() for path in (last, shown[0]))
    in_the_middle = hidden[len(hidden) // 2]
    assert seen_by(rocketmq, in_the_middle) == OLD
    assert seen_by(rocketmq, shown[0]) == OLD | NEW
    theirs = [put(TOPIC, body, queue) for (queue, _), body in THEIRS.items()]
    rocketmq.write(last, theirs, {**SIZES, **INDEX})
    with MessageStore.open(last) as store:
        assert bodies(store) == OLD | THEIRS
    assert seen_by(rocketmq, last) == OLD | THEIRS


def test_rocketmq_ignores_empty_segments_of_a_dead_append(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ looks at the last three segments, and appends at our end."""
    hidden, _ = killed(tmp_path, "publish", "ASYNC_FLUSH")
    path = hidden[-1]
    assert len(segments(path)) - len(segments(tmp_path / "base")) >= 3
    with MessageStore.open(path) as store:
        assert bodies(store) == OLD
        end = store.confirm_offset
    first, *_ = rocketmq.write(path, [put(TOPIC, body, queue) for (queue, _), body in THEIRS.items()], SIZES | INDEX)
    assert first["physicalOffset"] == end
    assert seen_by(rocketmq, path) == OLD | THEIRS
    with MessageStore.open(path) as store:
        assert bodies(store) == OLD | THEIRS
