from __future__ import annotations

from pathlib import Path

import pytest

from store import Message, MessageStore
from tests.store.log.damages import SMALL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cleanly closed store with 75 messages in three queues, 25 in each."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        store.put_many([Message("t", b"%d" % n, keys=(f"k{n}",), queue_id=n % 3) for n in range(75)])
    return path
