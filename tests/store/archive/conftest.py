from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import MessageStore, StoreConfig


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(mappedFileSizeCommitLog=4096)) as it:
        it.create_topic("orders", 1)
        it.create_topic("other", 1)
        yield it


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "archive")
