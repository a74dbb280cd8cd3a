from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store import MessageStore
from tests.end_to_end.test_kill import bodies
from tests.store.upkeep.crashed import SMALL, Crashed, another_boot, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was closed cleanly: 80 messages in three queues."""
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("t", 3)
        put(store, 80)
    return tmp_path / "mq"


@pytest.fixture
def crashed(tmp_path: Path) -> Crashed:
    """The files of a live writer with 40 flushed and 40 unflushed messages; also returns the flushed ones."""
    store = MessageStore.open(tmp_path / "live", config=SMALL)
    store.create_topic("t", 3)
    put(store, 40)
    store.flush()
    flushed, end = bodies(store), store.confirm_offset
    put(store, 40)
    shutil.copytree(tmp_path / "live", tmp_path / "mq")
    store.close()
    another_boot(tmp_path / "mq")
    return tmp_path / "mq", flushed, end
