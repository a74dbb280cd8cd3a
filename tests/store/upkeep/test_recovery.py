from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import CorruptStore, Message, MessageStore, StoreLocked
from store.upkeep.recovery import _Times
from store.upkeep.verify import repair
from tests.end_to_end.test_kill import bodies
from tests.store.upkeep.test_damaged import digests


@pytest.mark.parametrize(
    ("times", "least", "expected"),
    [([5, 5, 6], 6, 0), ([5, 5, 6], 5, 30), ([5, 4, 4], 6, 10), ([5, 6, 4], 6, 20), ([7, 8, 8], 9, 0)],
)
def test_begin_of_ascending_times(times: list[int], least: int, expected: int) -> None:
    walked = _Times(0)
    walked.follow(np.array([0, 10, 20]), np.array(times))
    assert walked.ascend_from(30, least) == expected


def test_recovery_excludes_other_writers(path: Path) -> None:
    with MessageStore.open(path):
        (path / "watermark").unlink()
        with pytest.raises(StoreLocked, match="were deleted while other processes write here"):
            MessageStore.open(path)


def test_recovery_is_idempotent(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        expected = bodies(reader)
    for keep in range(0, 540, 45):
        (path / "watermark").unlink()
        for queue in range(3):
            for file in sorted((path / f"consumequeue/t/{queue}").iterdir()):
                content = file.read_bytes()
                kept = min(max(keep - int(file.name), 0), 200)
                file.write_bytes(content[:kept].ljust(200, b"\0"))
        with MessageStore.open(path) as store:
            assert bodies(store) == expected


@pytest.mark.parametrize("topics", [{"t": {"readQueueNums": "x"}}, {"t": {"readQueueNums": 3}, "a/b": {}}])
@pytest.mark.parametrize("use", [lambda path: MessageStore.open(path).close(), repair])
def test_wrong_table_of_topics_is_refused_before_any_write(
    path: Path, use: Callable[[Path], None], topics: dict[str, object]
) -> None:
    (path / "config/topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (path / "watermark").unlink()
    shutil.rmtree(path / "consumequeue/t/1")
    before = digests(path)
    with pytest.raises(CorruptStore, match="Correct the file"):
        use(path)
    assert digests(path) == before


def test_damaged_body_at_the_last_segments_begin_is_no_loss(path: Path) -> None:
    """Reading the message raises an error; opening the store does not walk the log to find it."""
    last = max((path / "commitlog").iterdir())
    content = bytearray(last.read_bytes())
    content[100] ^= 1
    last.write_bytes(content)
    with MessageStore.open(path) as store:
        store.put(Message("t", b"next", queue_id=0))
        assert store.max_offset("t", 0) == 28
