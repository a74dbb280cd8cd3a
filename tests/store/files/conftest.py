from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore


@pytest.fixture(params=[False, True], ids=["writer", "reader"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path) as writer:
        writer.create_topic("t", 1)
        writer.put(Message("t", b"first", keys=("k",)))
    with MessageStore.open(tmp_path, read_only=request.param) as it:
        yield it
