from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import MessageStore, Producer
from tests.store.client.producers import opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


@pytest.fixture
def producer(store: MessageStore) -> Iterator[Producer]:
    with Producer(store.path) as it:
        yield it
