from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore
from tests.store.disk.damages import SMALL


@pytest.fixture(params=[False, True], ids=["writer", "reader"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path) as writer:
        writer.create_topic("t", 1)
        writer.put(Message("t", b"first", keys=("k",)))
    with MessageStore.open(tmp_path, read_only=request.param) as it:
        yield it


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cleanly closed store with 75 messages in three queues, 25 in each."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        store.put_many([Message("t", b"%d" % n, keys=(f"k{n}",), queue_id=n % 3) for n in range(75)])
    return path
