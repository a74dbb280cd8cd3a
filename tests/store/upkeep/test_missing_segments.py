from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.format.layout import segment_name
from store.upkeep.verify import repair, verify

SIZE = 4096
CONFIG = StoreConfig(mappedFileSizeCommitLog=SIZE, mappedFileSizeConsumeQueue=200, deleteFileBatchMax=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five segments, of which retention deleted the first two."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(500)) for _ in range(32)])
        store.clean(forced=True)
        assert store.put(Message("t", b"next")).queue_offset == 32
    return path


def told(path: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        MessageStore.open(path).close()
    return [str(warning.message) for warning in found]


def test_opening_warns_of_a_hole_in_the_log(path: Path) -> None:
    (path / "commitlog" / segment_name(4 * SIZE)).unlink()
    (warning,) = told(path)
    assert warning.startswith(f"{path}/commitlog: the file of bytes {4 * SIZE} to {5 * SIZE} is missing")
    assert [finding.what[:23] for finding in verify(path).findings[:1]] == ["the segment is missing;"]


@pytest.mark.parametrize("use", [lambda path: MessageStore.open(path).close(), repair])
def test_published_end_older_than_the_last_retention(path: Path, use: Callable[[Path], None]) -> None:
    """A restored end does not describe this log: the log is walked, and no byte is deleted."""
    before = (path / "watermark").read_bytes()
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(500)) for _ in range(32)])
        while store.clean(forced=True).log:
            pass
        expected = store.offsets("t", 0)
    (path / "watermark").write_bytes(before)
    assert verify(path).findings == []
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 0) == expected
    use(path)
    assert told(path) == []
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == expected
        assert store.put(Message("t", b"next")).queue_offset == expected[1]
    assert verify(path).findings == []
