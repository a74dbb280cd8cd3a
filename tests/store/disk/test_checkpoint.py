from __future__ import annotations

from pathlib import Path

import pytest

from store import Message, MessageStore
from store.disk.checkpoint import read_checkpoint, read_index_checkpoint, write_checkpoint
from store.format.layout import CHECKPOINT_FILE_BYTES
from tests.store.read.test_golden import GOLDEN


def test_checkpoint_of_rocketmq_is_read() -> None:
    assert read_checkpoint(GOLDEN / "clean") is None  # without a thorough flush the first time is 0
    assert read_checkpoint(GOLDEN / "batch-5.3") == 1795215767235


def test_own_checkpoint_is_read(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"1"), Message("t", b"2")])
        newest = store.get_message("g", "t", 0, 1).messages[0].store_timestamp
    assert len((tmp_path / "checkpoint").read_bytes()) == CHECKPOINT_FILE_BYTES
    assert read_checkpoint(tmp_path) == newest
    assert read_index_checkpoint(tmp_path) == 0


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_missing_or_short_checkpoint_is_replaced(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    assert read_checkpoint(tmp_path) is None
    assert read_index_checkpoint(tmp_path) == 0
    write_checkpoint(tmp_path, 5)
    assert read_checkpoint(tmp_path) == 5
